package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestMain(m *testing.M) { os.Exit(new(servicestest.Pool).Run(m)) }

func TestEachOrderIsChargedOnce(t *testing.T) {
	server := servicestest.StartRabbitMQ(t, nil) // its own, to restart
	url, queue := "amqp://"+server.Addr(), servicestest.Topic()
	output := capture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, queue, t.TempDir()) }()
	text := output("waiting for") // for the queue that it created
	publish(t, url, queue, "a", "b", "a", "", "b")
	text += output("charging", "charging", "charged a", "charged b", "parked", "charged a", "charged b")
	if err := server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	text += output("stopped:", "waiting for")
	publish(t, url, queue, "a", "c")
	text += output("charging", "charged a", "charged c")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if charged := strings.Count(text, "charging order"); charged != 3 {
		t.Errorf("%d charges, want 3:\n%s", charged, text)
	}
	if parked := messages(t, url, queue+".parked"); parked != 1 {
		t.Errorf("%d messages are parked, want 1:\n%s", parked, text)
	}
}

// dial returns a channel of a connection of its own.
func dial(t *testing.T, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // a restart of the server may have closed it
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func publish(t *testing.T, url, queue string, ids ...string) {
	t.Helper()
	ch := dial(t, url)
	for _, id := range ids {
		m := amqp.Publishing{MessageId: id, Body: []byte("order"), DeliveryMode: amqp.Persistent}
		if err := ch.PublishWithContext(t.Context(), "", queue, true, false, m); err != nil {
			t.Fatal(err)
		}
	}
}

// messages returns the number of messages in a queue.
func messages(t *testing.T, url, queue string) int {
	t.Helper()
	found, err := dial(t, url).QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return found.Messages
}

// capture replaces the standard output. The function that it returns reads until
// there was a line with each of these beginnings, in any order.
func capture(t *testing.T) func(beginnings ...string) string {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = writer
	t.Cleanup(func() {
		os.Stdout = before
		_ = errors.Join(reader.Close(), writer.Close()) // nothing depends on it any more
	})
	lines := bufio.NewReader(reader)
	return func(beginnings ...string) string {
		if err := reader.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for len(beginnings) > 0 {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("%v: no %q after %q", err, beginnings, text.String())
			}
			text.WriteString(line)
			if i := slices.IndexFunc(beginnings, func(b string) bool { return strings.HasPrefix(line, b) }); i >= 0 {
				beginnings = slices.Delete(beginnings, i, i+1)
			}
		}
		return text.String()
	}
}
