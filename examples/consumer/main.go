// Command consumer is an idempotent consumer. It reads the same order three
// times, as after a redelivery, and charges it once.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

type message struct{ OrderID, Customer string }

func main() {
	dir := "./seen"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := run(context.Background(), dir); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string) error {
	store, err := logstore.Open(dir, nil) // keys on disk, for one process
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, nil) // keys are remembered for 24 hours
	if err != nil {
		return err
	}
	// The ids of this scope are order ids. A program that takes another field is refused.
	if err := semel.BindScope(ctx, store, "payments", semel.ScopeOwner{Rule: ".OrderID"}); err != nil {
		return err
	}
	order := message{OrderID: "order-42", Customer: "alice"}
	for range 3 { // the broker delivers the message three times
		if err := handle(ctx, guard, order); err != nil {
			return err
		}
	}
	return nil
}

// handle returns nil when the message may be acknowledged.
func handle(ctx context.Context, guard *semel.Guard, m message) error {
	key := semel.Key{Scope: "payments", ID: m.OrderID}
	receipt, duplicate, err := semel.Do(ctx, guard, key, func(ctx context.Context) (string, error) {
		return charge(ctx, m)
	})
	var permanent *semel.PermanentError
	switch {
	case errors.As(err, &permanent), errors.Is(err, semel.ErrInvalidKey), errors.Is(err, semel.ErrInvalidRequest),
		errors.Is(err, semel.ErrMismatch), errors.Is(err, semel.ErrLate):
		fmt.Println("rejected:", err) // no retry helps: park the message, then acknowledge it
		return nil
	case !semel.MayAck(err):
		return err // the broker delivers the message again
	}
	fmt.Printf("%s (duplicate: %t)\n", receipt, duplicate)
	return nil
}

// charge is the effect. It must not happen twice.
func charge(_ context.Context, m message) (string, error) {
	fmt.Println("charging", m.Customer)
	return "receipt for " + m.OrderID, nil
}
