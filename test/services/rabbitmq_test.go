package services_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestKilledRabbitMQHasItsDataAfterRestart(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRabbitMQ(t, nil)
	open := func() *amqp.Channel {
		t.Helper()
		conn, err := amqp.Dial("amqp://" + server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the server may be gone
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		return ch
	}
	ch := open()
	const queue = "kept"
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		t.Fatal(err)
	}
	if err := services.AwaitQueue(t.Context(), server, queue); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("v")})
		if err != nil {
			t.Fatal(err)
		}
		if !confirm.Wait() {
			t.Fatal("the server refused a message")
		}
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := amqp.Dial("amqp://" + server.Addr()); err == nil {
		t.Fatal("a killed server answers")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A queue counts its messages late, but delivers them.
	got, err := open().ConsumeWithContext(t.Context(), queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	limit := time.After(2 * time.Minute)
	for n := range 20 {
		select {
		case <-got:
		case <-limit:
			t.Fatalf("after the restart %d of 20 messages came", n)
		}
	}
}
