package memstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

func ExampleNew() {
	store, err := memstore.New(&memstore.Options{
		MaxKeys: 10_000_000, // about 200 MB
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	guard, err := semel.NewGuard(store, &semel.GuardOptions{Window: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		outcome, err := guard.Do(context.Background(), semel.Key{Scope: "mailer", ID: "order-17"},
			func(context.Context, semel.Claim) ([]byte, error) {
				fmt.Println("sending the mail")
				return nil, nil
			})
		fmt.Println(outcome.Decision, err)
	}
	// Output:
	// sending the mail
	// fresh <nil>
	// duplicate <nil>
}
