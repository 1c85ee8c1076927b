// Command rabbitmq-consumer reads a RabbitMQ queue and charges each order once,
// although RabbitMQ delivers some messages again.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

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
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(100, 0, false); err != nil { // at most 100 without an acknowledgement
		return err
	}
	messages, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for m := range messages {
		key := semel.Key{Scope: "charges", ID: m.MessageId}
		out, err := guard.Do(ctx, key, func(context.Context, semel.Claim) ([]byte, error) {
			return charge(m.Body)
		})
		if !semel.MayAck(err) {
			time.Sleep(time.Second) // RabbitMQ would deliver it again immediately
			err = m.Nack(false, true)
		} else {
			fmt.Printf("%s: %s\n", out.Decision, m.MessageId)
			err = m.Ack(false) // the outcome is durable
		}
		if err != nil {
			return err // the connection is lost: start again
		}
	}
	return ctx.Err()
}

// charge is the effect. It must not happen twice.
func charge(order []byte) ([]byte, error) {
	fmt.Printf("charging %s\n", order)
	return nil, nil
}
