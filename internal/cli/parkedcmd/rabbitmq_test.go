package parkedcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// takeFrom waits for a message in a queue and removes it.
func takeFrom(t *testing.T, ch *amqp.Channel, queue string) amqp.Delivery {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		if m, ok, err := ch.Get(queue, true); err != nil {
			t.Fatal(err)
		} else if ok {
			return m
		}
	}
	t.Fatalf("no message in queue %s after a minute", queue)
	return amqp.Delivery{}
}

// TestAMessageOfRabbitMQIsParkedAndRedrivenUnderItsKey parks a message that is too late.
// It leaves its queue, copies of it do not take effect, and the redrive publishes it with
// the same message-id.
func TestAMessageOfRabbitMQIsParkedAndRedrivenUnderItsKey(t *testing.T) {
	t.Parallel()
	addr, dsn := programtest.Servers.RabbitMQ(t), programtest.NewDatabase(t, true)
	for place, parked := range parkedPlaces() {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			ch := programtest.RabbitChannel(t, "amqp://"+addr)
			in, out := servicestest.Topic(), servicestest.Topic()
			programtest.DeclareQueue(t, ch, in, amqp.QueueTypeQuorum, nil)
			programtest.DeclareQueue(t, ch, out, amqp.QueueTypeQuorum, nil)
			file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), fmt.Sprintf(`
stores:
  keys: { embedded: { path: keys } }
  db: { postgres: { dsn: %q } }
pipelines:
  %s:
    source: { rabbitmq: { servers: [%q], queue: %[2]s } }
    key: { id: property:message-id }
    window: 1h
    on_late: park
    store: keys
    sink: { rabbitmq: { servers: [%[3]q], routing_key: %s } }
    parked: %s
`, dsn, in, addr, out, parked))
			stop := programtest.Background(t, "run", file, "--admin", "off")
			late := amqp.Publishing{MessageId: "late", Body: []byte("a"), Timestamp: time.Now().Add(-2 * time.Hour)}
			pass := func(id string) amqp.Delivery { // sends a message of now, and awaits what comes out
				t.Helper()
				programtest.Publish(t, ch, in, amqp.Publishing{MessageId: id, Body: []byte(id), Timestamp: time.Now()})
				return takeFrom(t, ch, out)
			}
			programtest.Publish(t, ch, in, late)
			programtest.Publish(t, ch, in, late)
			if m := pass("one"); m.MessageId != "one" || m.Headers["semel-redrive"] != nil {
				t.Errorf("%s came out with %v", m.MessageId, m.Headers)
			}
			for t.Context().Err() == nil && strings.Count(programtest.Run(t, "", "parked", "ls", "--config", file, "--json", "-q").Stdout, "\n") < 2 {
				<-time.After(20 * time.Millisecond) // each copy is parked
			}
			list := asides(t, file)
			if m := list["late"]; len(list) != 1 || m.Reason != "late" {
				t.Errorf("parked are %+v", list)
			}
			programtest.Run(t, "", "parked", "retry", "--key", "late", "--config", file).Check(t, term.ExitDone, "waiting for it to redrive them")
			m := takeFrom(t, ch, out)
			if m.MessageId != "late" || m.Headers["semel-key"] != "late" || m.Headers["semel-redrive"] != "1" || m.Headers["semel-origin"] != "queue "+in || string(m.Body) != "a" {
				t.Errorf("%s came out with %v and body %q", m.MessageId, m.Headers, m.Body)
			}
			programtest.Publish(t, ch, in, late)
			if m := pass("two"); m.MessageId != "two" {
				t.Errorf("after the redrive, %s came out with %v", m.MessageId, m.Headers)
			}
			ended := stop()
			ended.Check(t, term.ExitDone, `"read":7,"fresh":3,"duplicate":2,"parked":2`) // each copy is parked, and redriven
			for _, queue := range []string{in, out} {
				if q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil || q.Messages != 0 {
					t.Errorf("queue %s has %d messages (%v)", queue, q.Messages, err)
				}
			}
			if list := asides(t, file); len(list) != 0 {
				t.Errorf("still parked: %v", list)
			}
		})
	}
}

// TestADeadLetterQueueOfRabbitMQIsReadUnderTheSameKeys lets the server move two messages
// to a dead-letter queue. One of them is a copy whose effect completed before.
func TestADeadLetterQueueOfRabbitMQIsReadUnderTheSameKeys(t *testing.T) {
	t.Parallel()
	addr := programtest.Servers.RabbitMQ(t)
	ch := programtest.RabbitChannel(t, "amqp://"+addr)
	in, dead, out := servicestest.Topic(), servicestest.Topic(), servicestest.Topic()
	programtest.DeclareQueue(t, ch, in, amqp.QueueTypeQuorum, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	programtest.DeclareQueue(t, ch, dead, amqp.QueueTypeQuorum, nil)
	programtest.DeclareQueue(t, ch, out, amqp.QueueTypeQuorum, nil)
	dir := t.TempDir()
	begin := func(queue string) (stop func() programtest.Outcome) {
		t.Helper()
		return programtest.Background(t, "run", programtest.WriteFile(t, filepath.Join(dir, "semel.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  orders:
    source: { rabbitmq: { servers: [%q], queue: %s } }
    key: { id: property:message-id }
    store: keys
    sink: { rabbitmq: { servers: [%[1]q], routing_key: %[3]s } }
`, addr, queue, out)), "--admin", "off")
	}
	stop := begin(in)
	programtest.Publish(t, ch, in, amqp.Publishing{MessageId: "a"})
	if m := takeFrom(t, ch, out); m.MessageId != "a" {
		t.Errorf("%s came out", m.MessageId)
	}
	stop().Check(t, term.ExitDone, `"fresh":1,"duplicate":0,`)
	for _, id := range []string{"a", "b"} {
		programtest.Publish(t, ch, in, amqp.Publishing{MessageId: id})
		m, ok, err := ch.Get(in, false)
		if err == nil && ok {
			err = m.Reject(false) // to the dead-letter queue
		}
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	stop = begin(dead)
	if m := takeFrom(t, ch, out); m.MessageId != "b" || m.Headers["x-death"] != nil {
		t.Errorf("%s came out with %v", m.MessageId, m.Headers)
	}
	stop().Check(t, term.ExitDone, `"fresh":1,"duplicate":1,`)
}
