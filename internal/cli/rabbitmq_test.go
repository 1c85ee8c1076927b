package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// rabbit opens a channel in confirm mode.
func rabbit(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may be gone
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

// queueOf makes a queue.
func queueOf(t *testing.T, ch *amqp.Channel, name, kind string, args amqp.Table) {
	t.Helper()
	all := amqp.Table{amqp.QueueTypeArg: kind}
	for name, value := range args {
		all[name] = value
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, all); err != nil {
		t.Fatal(err)
	}
}

// enqueue publishes a message and waits for its confirm.
func enqueue(t *testing.T, ch *amqp.Channel, queue string, m amqp.Publishing) {
	t.Helper()
	m.DeliveryMode = amqp.Persistent
	confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, m)
	if err != nil {
		t.Fatal(err)
	}
	if !confirm.Wait() {
		t.Fatal("no confirm")
	}
}

// doctor runs semel doctor, which may find faults.
func (s *stage) doctor() outcome {
	s.Helper()
	var stdout, stderr bytes.Buffer
	status := Main(s.Context(), kind.All(), []string{"doctor", s.file}, strings.NewReader(""), &stdout, &stderr, s.getenv)
	return outcome{status: status, stdout: stdout.String(), stderr: stderr.String()}
}

func TestRabbitMQScenarioRunsAsPrinted(t *testing.T) {
	t.Parallel()
	management := servicestest.FreeAddr(t)
	server := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Management: management})
	ch := rabbit(t, "amqp://"+server.Addr())
	queueOf(t, ch, "orders", amqp.QueueTypeQuorum, nil)
	for range 2 {
		for i := range distinct {
			m := amqp.Publishing{Body: []byte(eventText(i))} // by the body
			switch i % 3 {
			case 1:
				m.MessageId = fmt.Sprint("m", i)
			case 2:
				m.Headers = amqp.Table{"event-id": fmt.Sprint("h", i)}
			}
			enqueue(t, ch, "orders", m)
		}
	}
	s := openScenario(t, "rabbitmq", map[string]string{"RABBITMQ_ADDR": server.Addr(), "DATABASE_URL": servers.Database(t)})
	s.until(func() []string { return s.query("SELECT event_id FROM orders") }, everyEvent("e"))

	writeFile(t, s.file, strings.Replace(readFile(t, s.file), `# management: "http://127.0.0.1:15672"`, `management: "http://`+management+`"`, 1))
	t.Run("doctor", func(t *testing.T) {
		got := s.doctor()
		for _, want := range []string{"RabbitMQ 3.10", "queue orders type", "quorum", "no alarm"} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("the doctor does not say %q:\n%s", want, got.stdout)
			}
		}
	})
	t.Run("the doctor names what loses messages", func(t *testing.T) {
		queueOf(t, ch, "risky", amqp.QueueTypeClassic, amqp.Table{"x-max-length": 10, "x-message-ttl": 1000, "x-dead-letter-exchange": "dead"})
		queueOf(t, ch, "counted", amqp.QueueTypeQuorum, amqp.Table{"x-delivery-limit": 3})
		queueOf(t, ch, "log", "stream", nil)
		text := readFile(t, s.file)
		for queue, want := range map[string][]string{
			"log":     {"messages are lost while no consumer reads"},
			"risky":   {"deliveries are not counted", "deletes the oldest messages", "1000 ms", "can be lost on the way"},
			"counted": {"delivery-limit", "a message is parked at delivery 3", "after delivery 4"},
			"absent":  {"it does not exist", "rabbitmqadmin declare queue name=absent"},
		} {
			writeFile(t, s.file, strings.Replace(text, "queue: orders ", "queue: "+queue+" ", 1))
			got := s.doctor()
			for _, words := range want {
				if !strings.Contains(strings.Join(strings.Fields(got.stdout), " "), words) {
					t.Errorf("the doctor does not say %q about %s:\n%s", words, queue, got.stdout)
				}
			}
		}
	})
	t.Run("mistakes have a cause and a remedy", func(t *testing.T) {
		text := readFile(t, s.file)
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
			writeFile(t, s.file, strings.Join(kept, ""))
			got := s.doctor()
			if got.status == term.ExitDone || !strings.Contains(strings.Join(strings.Fields(got.stdout+got.stderr), " "), want) {
				t.Errorf("%s: want %q, got %+v", change, want, got)
			}
		}
	})
}
