// Command rabbitmq-consumer reads a RabbitMQ queue and charges each order once,
// although RabbitMQ delivers some messages again. It creates the queue if it does
// not exist, and connects again when the server comes back. A message that no retry
// can help goes to the queue with the suffix .parked.
//
//	go run ./examples/rabbitmq-consumer amqp://127.0.0.1:5672/ orders ./keys
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

// quorum makes a queue that survives the loss of a server.
var quorum = amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: rabbitmq-consumer amqp://HOST/ QUEUE DIRECTORY")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, queue, dir string) error {
	store, err := logstore.Open(dir, nil) // keys on disk, for one process
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		fmt.Println("stopped:", consume(ctx, guard, url, queue)) // unacknowledged messages come again
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// consume handles messages until the connection is lost or ctx ends.
func consume(ctx context.Context, guard *semel.Guard, url, queue string) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
		if ch, err = conn.Channel(); err != nil { // the refusal closed the channel
			return err
		}
		if _, err := ch.QueueDeclare(queue, true, false, false, false, quorum); err != nil {
			return err
		}
	}
	if err := ch.Confirm(false); err != nil { // for park
		return err
	}
	if err := ch.Qos(100, 0, false); err != nil { // at most 100 without an acknowledgement
		return err
	}
	messages, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	fmt.Println("waiting for messages of queue", queue)
	for m := range messages {
		if err := handle(ctx, guard, ch, queue, m); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New("the connection was lost")
}

// handle charges the order of a message once, and tells the server the outcome.
func handle(ctx context.Context, guard *semel.Guard, ch *amqp.Channel, queue string, m amqp.Delivery) error {
	key := semel.Key{Scope: "charges", ID: m.MessageId}
	for {
		err := guard.Run(ctx, key, func(context.Context) error { return charge(m.Body) })
		var permanent *semel.PermanentError
		switch {
		case errors.As(err, &permanent), errors.Is(err, semel.ErrInvalidKey),
			errors.Is(err, semel.ErrMismatch), errors.Is(err, semel.ErrLate):
			return park(ctx, ch, queue, m, err) // no retry can help
		case semel.MayAck(err):
			fmt.Println("charged", m.MessageId) // now, or by an earlier delivery
			return m.Ack(false)                 // the outcome is durable
		}
		fmt.Println("later", err)
		select { // RabbitMQ 4 deletes a message that it has taken back 20 times
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// park keeps a message, with the reason, for a person to look at.
func park(ctx context.Context, ch *amqp.Channel, queue string, m amqp.Delivery, reason error) error {
	parked := queue + ".parked"
	if _, err := ch.QueueDeclare(parked, true, false, false, false, quorum); err != nil {
		return err
	}
	copied := amqp.Publishing{
		DeliveryMode: amqp.Persistent, ContentType: m.ContentType, MessageId: m.MessageId, Body: m.Body,
		Headers: amqp.Table{"reason": reason.Error()},
	}
	for name, value := range m.Headers {
		if name != "reason" && !strings.HasPrefix(name, "x-") { // those belong to the server
			copied.Headers[name] = value
		}
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", parked, true, false, copied)
	if err != nil {
		return err
	}
	if stored, err := confirm.WaitContext(ctx); err != nil {
		return err
	} else if !stored {
		return errors.New("the server did not confirm a message of queue " + parked)
	}
	fmt.Println("parked", reason)
	return m.Ack(false)
}

// charge is the effect. It must not happen twice.
func charge(order []byte) error {
	fmt.Printf("charging %s\n", order)
	return nil
}
