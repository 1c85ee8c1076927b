package redisstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/redisstore"
)

// Several processes share keys in one Redis. The first process to claim a key
// runs the effect.
func Example() {
	ctx := context.Background()
	store, err := redisstore.Connect(ctx, "redis://localhost:6379", &redisstore.Options{Prefix: "orders:"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	key := semel.Key{Scope: "payments", ID: "order-42"}
	out, err := guard.Do(ctx, key, func(context.Context, semel.Claim) ([]byte, error) {
		return []byte("charged"), nil
	})
	fmt.Println(out.Decision, string(out.Result.Data), err)
}

// Keys that only need to be remembered take a few bytes each.
func ExampleConnect_compact() {
	ctx := context.Background()
	store, err := redisstore.Connect(ctx, "redis://localhost:6379", &redisstore.Options{
		Prefix:  "clicks:",
		Compact: &redisstore.Compact{Window: semel.DefaultWindow, Expect: 100_000_000},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	answers := make([]semel.ClaimAnswer, 1)
	err = store.Claim(ctx, []semel.ClaimRequest{{
		Key:    semel.Key{Scope: "clicks", ID: "0197c5b1-6f7e-7c7a-9d0e-2a4b1c3d5e6f"},
		Owner:  semel.Owner{Name: "counter-1", Nonce: 1},
		Window: semel.DefaultWindow,
		Done:   true,
	}}, answers)
	fmt.Println(answers[0].Decision, err)
}
