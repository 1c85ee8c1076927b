package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// The examples need a server, so they are compiled and not run.

func ExampleConnect() {
	ctx := context.Background()
	store, err := pgstore.Connect(ctx, os.Getenv("DATABASE_URL"), &pgstore.Options{Migrate: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	outcome, err := guard.Do(ctx, semel.Key{Scope: "invoices", ID: "42"}, func(context.Context, semel.Claim) ([]byte, error) {
		return []byte("invoice 2026-17"), nil
	})
	fmt.Println(outcome.Decision, err)
}

func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	store, err := pgstore.New(ctx, pool, &pgstore.Options{Names: pgstore.Names{Schema: "app"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	// At least one process must clean up what has ended.
	ctx, stop := context.WithTimeout(ctx, time.Hour)
	defer stop()
	fmt.Println(store.Maintain(ctx, &pgstore.MaintainOptions{Every: 10 * time.Minute}))
}

func ExampleMigrate() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("OWNER_DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	applied, err := pgstore.Migrate(ctx, pool, &pgstore.MigrateOptions{Partitions: 16})
	for _, m := range applied {
		fmt.Println(m.Version, m.Name)
	}
	fmt.Println(err)
}
