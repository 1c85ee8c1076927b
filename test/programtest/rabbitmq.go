package programtest

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitChannel opens a channel in confirm mode.
func RabbitChannel(t *testing.T, url string) *amqp.Channel {
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

// DeclareQueue makes a queue.
func DeclareQueue(t *testing.T, ch *amqp.Channel, name, kind string, args amqp.Table) {
	t.Helper()
	all := amqp.Table{amqp.QueueTypeArg: kind}
	for name, value := range args {
		all[name] = value
	}
	if _, err := ch.QueueDeclare(name, true, false, false, false, all); err != nil {
		t.Fatal(err)
	}
}

// Publish publishes a message and waits for its confirm.
func Publish(t *testing.T, ch *amqp.Channel, queue string, m amqp.Publishing) {
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
