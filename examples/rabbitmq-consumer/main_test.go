package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/internal/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestEachOrderIsChargedOnce(t *testing.T) {
	url := "amqp://" + servers.RabbitMQ(t)
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	queue := servicestest.Topic()
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		t.Fatal(err)
	}
	const messages = 6
	for i := range messages {
		m := amqp.Publishing{MessageId: string(rune('a' + i%2)), Body: []byte("order")}
		if err := ch.PublishWithContext(t.Context(), "", queue, true, false, m); err != nil {
			t.Fatal(err)
		}
	}
	output := capture(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, queue, t.TempDir()) }()
	text := output(messages + 2) // a line for each message, and one for each charge
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if charged := strings.Count(text, "charging order"); charged != 2 {
		t.Errorf("%d charges, want 2:\n%s", charged, text)
	}
}

// capture replaces the standard output. The function that it returns reads lines.
func capture(t *testing.T) func(lines int) string {
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
	return func(lines int) string {
		if err := reader.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for one := make([]byte, 1); strings.Count(text.String(), "\n") < lines; {
			if _, err := io.ReadFull(reader, one); err != nil {
				t.Fatalf("%v after %q", err, text.String())
			}
			text.Write(one)
		}
		return text.String()
	}
}
