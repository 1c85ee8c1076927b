// Command nats-consumer is an idempotent consumer of NATS JetStream with nats.go.
// Each order is charged once, however often the server delivers it. A message is
// acknowledged when its outcome is durable, and parked when no retry can help.
//
//	NATS_URL=nats://127.0.0.1:4222 go run ./examples/nats-consumer -create
//	nats pub orders.new '{"event_id":"e1","customer":"alice"}'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

type order struct {
	EventID  string `json:"event_id"`
	Customer string `json:"customer"`
}

func main() {
	stream := flag.String("stream", "ORDERS", "the stream to read")
	create := flag.Bool("create", false, "create the stream if it does not exist; ORDERS gets the subjects orders.>")
	dir := flag.String("keys", "./keys", "the directory of the keys")
	ackWait := flag.Duration("ack-wait", time.Minute, "how long the server waits for an acknowledgement; longer than a charge takes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *stream, *create, *dir, *ackWait); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, stream string, create bool, dir string, ackWait time.Duration) error {
	store, err := logstore.Open(dir, nil) // for one process; several share redisstore or pgstore
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, nil) // keys are remembered for 24 hours
	if err != nil {
		return err
	}
	conn, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer conn.Close()
	consumer, err := connect(ctx, conn, stream, create, ackWait)
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullHeartbeat(time.Second))
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, messages.Stop)
	fmt.Println("waiting for messages of stream", stream)
	for {
		msg, err := messages.Next()
		switch {
		case errors.Is(err, jetstream.ErrMsgIteratorClosed):
			return conn.Flush() // the server has read the acknowledgements
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			fmt.Println("waiting for the server") // nats.go connects again, and the messages come again
			continue
		case err != nil:
			return err
		}
		if err := handle(ctx, guard, msg); err != nil {
			return err
		}
	}
}

// connect returns the durable consumer of a stream.
func connect(ctx context.Context, conn *nats.Conn, stream string, create bool, ackWait time.Duration) (jetstream.Consumer, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	if _, err := js.Stream(ctx, stream); create && errors.Is(err, jetstream.ErrStreamNotFound) {
		config := jetstream.StreamConfig{Name: stream, Subjects: []string{strings.ToLower(stream) + ".>"}}
		if _, err := js.CreateStream(ctx, config); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, fmt.Errorf("stream %s: %w (-create creates it)", stream, err)
	}
	return js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: "charges", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
	})
}

// handle charges the order of a message once, and tells the server the outcome.
func handle(ctx context.Context, guard *semel.Guard, msg jetstream.Msg) error {
	var o order
	if err := json.Unmarshal(msg.Data(), &o); err != nil {
		fmt.Println("parked", err)
		return msg.TermWithReason("not an order") // keep the message elsewhere first if you need it
	}
	err := guard.Run(ctx, semel.Key{Scope: "charges", ID: o.EventID}, func(ctx context.Context) error {
		return charge(ctx, o)
	})
	var permanent *semel.PermanentError
	switch {
	case errors.As(err, &permanent), errors.Is(err, semel.ErrInvalidKey),
		errors.Is(err, semel.ErrMismatch), errors.Is(err, semel.ErrLate):
		fmt.Println("parked", err) // no retry can help
		return msg.TermWithReason("refused")
	case !semel.MayAck(err):
		return msg.NakWithDelay(5 * time.Second) // the server delivers it again
	}
	fmt.Println("charged", o.EventID) // now, or by an earlier delivery
	return msg.Ack()
}

// charge is the effect. It must not happen twice.
func charge(_ context.Context, o order) error {
	fmt.Println("charging", o.Customer, "for", o.EventID)
	return nil
}
