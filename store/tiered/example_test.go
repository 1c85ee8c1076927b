package tiered_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/tiered"
)

func ExampleNew() {
	// Stands in for a database.
	durable, err := memstore.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	cache, err := memstore.New(&memstore.Options{MaxKeys: 1_000_000})
	if err != nil {
		log.Fatal(err)
	}
	store, err := tiered.New(durable, &tiered.Options{
		Layers:   []tiered.Layer{{Name: "memory", Cache: cache}},
		OnOutage: tiered.Wait,
		Observe:  func(e tiered.Event) { log.Printf("%s: %s: %v", e.Layer, e.Kind, e.Err) },
	})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		outcome, err := guard.Do(context.Background(), semel.Key{Scope: "mailer", ID: "order-17"},
			func(context.Context, semel.Claim) ([]byte, error) { return []byte("sent"), nil })
		fmt.Printf("%s %q %v\n", outcome.Decision, outcome.Result.Data, err)
	}
	fmt.Println("answered by the cache:", store.Status().Layers[0].Answered)
	// Output:
	// fresh "sent" <nil>
	// duplicate "sent" <nil>
	// duplicate "sent" <nil>
	// answered by the cache: 2
}

// Redis above PostgreSQL: Redis answers duplicates, PostgreSQL decides.
func ExampleDual() {
	ctx := context.Background()
	cache, err := redisstore.Connect(ctx, "redis://localhost:6379", &redisstore.Options{Prefix: "orders-cache:"})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	durable, err := pgstore.Connect(ctx, "postgres://localhost/orders", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer durable.Close()

	store, err := tiered.Dual(cache, durable, &tiered.Options{MaxAge: time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	_ = guard // use it as with any other store
}

// A stack can start while the server of its cache is down.
func ExampleOpenCache() {
	ctx := context.Background()
	options := &redisstore.Options{Prefix: "orders-cache:"}
	traits, err := options.Traits()
	if err != nil {
		log.Fatal(err)
	}
	cache, err := tiered.OpenCache(ctx, traits, func(ctx context.Context) (semel.Store, func() error, error) {
		store, err := redisstore.Connect(ctx, "redis://127.0.0.1:1", options) // no server listens there
		if err != nil {
			return nil, nil, err
		}
		return store, store.Close, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()
	durable, err := memstore.New(nil) // stands in for a database
	if err != nil {
		log.Fatal(err)
	}
	store, err := tiered.Dual(cache, durable, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the cache is down:", store.Status().Layers[0].Down)
	// Output:
	// the cache is down: true
}

func ExampleNewMemoryFilter() {
	filter, err := tiered.NewMemoryFilter(&tiered.FilterOptions{Window: time.Hour, Capacity: 100_000})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if err := filter.Add(ctx, []semel.Key{{ID: "order-17"}}); err != nil {
		log.Fatal(err)
	}
	maybe := make([]bool, 2)
	if err := filter.MayContain(ctx, []semel.Key{{ID: "order-17"}, {ID: "order-18"}}, maybe); err != nil {
		log.Fatal(err)
	}
	fmt.Println(maybe)
	// Output: [true false]
}
