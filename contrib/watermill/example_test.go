package watermill_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/semel-dev/semel"
	once "github.com/semel-dev/semel/contrib/watermill"
	"github.com/semel-dev/semel/store/memstore"
)

func ExampleMiddleware() {
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{}) // or a broker
	store, err := memstore.New(nil)                                                             // or a durable store
	if err != nil {
		panic(err)
	}
	if err := serve(pubsub, store); err != nil {
		panic(err)
	}
	// Output:
	// charging c-17
	// receipt for c-17
}

// serve charges two orders with the same event-id, and prints the receipt.
func serve(pubsub *gochannel.GoChannel, store semel.Store) error {
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		return err
	}
	dedup, err := once.Middleware(guard, &once.Options{ID: once.ByMetadata("event-id"), Publisher: pubsub})
	if err != nil {
		return err
	}
	poison, err := middleware.PoisonQueueWithFilter(pubsub, "orders-parked", once.Parkable)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddHandler("charge", "orders", pubsub, "receipts", pubsub, charge).AddMiddleware(poison, dedup)
	go router.Run(context.Background()) // returns after Close
	defer router.Close()
	<-router.Running()

	receipts, err := pubsub.Subscribe(context.Background(), "receipts")
	if err != nil {
		return err
	}
	for range 2 {
		order := message.NewMessage(watermill.NewUUID(), []byte("c-17"))
		order.Metadata.Set("event-id", "evt-1")
		if err := pubsub.Publish("orders", order); err != nil {
			return err
		}
	}
	receipt := <-receipts
	fmt.Println(string(receipt.Payload))
	receipt.Ack()
	return nil
}

// charge is the handler. It must not run twice for an order.
func charge(order *message.Message) ([]*message.Message, error) {
	fmt.Println("charging", string(order.Payload))
	uuid := "receipt-" + order.Metadata.Get("event-id") // the same for each attempt
	return []*message.Message{message.NewMessage(uuid, append([]byte("receipt for "), order.Payload...))}, nil
}
