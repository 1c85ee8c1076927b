package configcmd_test

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestRabbitMQScenarioRunsAsPrinted(t *testing.T) {
	t.Parallel()
	management := servicestest.FreeAddr(t)
	server := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Management: management})
	ch := programtest.RabbitChannel(t, "amqp://"+server.Addr())
	programtest.DeclareQueue(t, ch, "orders", amqp.QueueTypeQuorum, nil)
	for range 2 {
		for i := range programtest.Distinct {
			m := amqp.Publishing{Body: []byte(programtest.EventText(i))} // by the body
			switch i % 3 {
			case 1:
				m.MessageId = fmt.Sprint("m", i)
			case 2:
				m.Headers = amqp.Table{"event-id": fmt.Sprint("h", i)}
			}
			programtest.Publish(t, ch, "orders", m)
		}
	}
	s := programtest.OpenScenario(t, "rabbitmq", map[string]string{"RABBITMQ_ADDR": server.Addr(), "DATABASE_URL": programtest.Servers.Database(t)})
	s.Until(func() []string { return s.Query("SELECT event_id FROM orders") }, programtest.EveryEvent("e"))

	programtest.WriteFile(t, s.File, strings.Replace(programtest.ReadFile(t, s.File), `# management: "http://127.0.0.1:15672"`, `management: "http://`+management+`"`, 1))
	t.Run("doctor", func(t *testing.T) {
		got := s.Doctor()
		for _, want := range []string{"RabbitMQ 3.10", "queue orders type", "quorum", "no alarm"} {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("the doctor does not say %q:\n%s", want, got.Stdout)
			}
		}
	})
	t.Run("the doctor warns of settings that lose messages", func(t *testing.T) {
		programtest.DeclareQueue(t, ch, "risky", amqp.QueueTypeClassic, amqp.Table{"x-max-length": 10, "x-message-ttl": 1000, "x-dead-letter-exchange": "dead"})
		programtest.DeclareQueue(t, ch, "counted", amqp.QueueTypeQuorum, amqp.Table{"x-delivery-limit": 3})
		programtest.DeclareQueue(t, ch, "log", "stream", nil)
		text := programtest.ReadFile(t, s.File)
		for queue, want := range map[string][]string{
			"log":     {"messages are lost while no consumer reads"},
			"risky":   {"deliveries are not counted", "deletes the oldest messages", "1000 ms", "can be lost on the way"},
			"counted": {"delivery-limit", "a message is parked at delivery 3", "after delivery 4"},
			"absent":  {"it does not exist", "rabbitmqadmin declare queue name=absent"},
		} {
			programtest.WriteFile(t, s.File, strings.Replace(text, "queue: orders ", "queue: "+queue+" ", 1))
			got := s.Doctor()
			for _, words := range want {
				if !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), words) {
					t.Errorf("the doctor does not say %q about %s:\n%s", words, queue, got.Stdout)
				}
			}
		}
	})
	t.Run("mistakes have a cause and a remedy", func(t *testing.T) {
		text := programtest.ReadFile(t, s.File)
		for change, want := range map[string]string{
			`password: "wrong"`: "the servers refuse this user and password",
			"vhost: elsewhere":  "rabbitmqctl add_vhost elsewhere",
			`servers: ["` + servicestest.FreeAddr(t) + `"]`: "no RabbitMQ server answers at",
		} {
			name, _, _ := strings.Cut(change, ":")
			var kept []string
			for line := range strings.Lines(text) {
				if strings.HasPrefix(strings.TrimSpace(line), name+":") && strings.HasPrefix(line, "        ") && !strings.Contains(line, "DATABASE") {
					continue
				}
				kept = append(kept, line)
				if strings.TrimSpace(line) == "rabbitmq:" {
					kept = append(kept, "        "+change+"\n")
				}
			}
			programtest.WriteFile(t, s.File, strings.Join(kept, ""))
			got := s.Doctor()
			if got.Status == term.ExitDone || !strings.Contains(strings.Join(strings.Fields(got.Stdout+got.Stderr), " "), want) {
				t.Errorf("%s: want %q, got %+v", change, want, got)
			}
		}
	})
}
