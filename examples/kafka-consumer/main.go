// Command kafka-postgres is an idempotent Kafka consumer. Each order becomes one
// row in PostgreSQL, however often Kafka delivers it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

type order struct {
	EventID  string `json:"event_id"`
	Customer string `json:"customer"`
	Amount   string `json:"amount"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pgstore.Migrate(ctx, pool, nil); err != nil { // creates the tables once
		return err
	}
	store, err := pgstore.New(ctx, pool, nil)
	if err != nil {
		return err
	}
	defer store.Close()
	guard, err := pgstore.NewGuard(store, &semel.GuardOptions{Window: 8 * 24 * time.Hour})
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BROKERS"), ",")...),
		kgo.ConsumerGroup("orders-in-go"),
		kgo.ConsumeTopics("orders"),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		return err
	}
	defer client.Close()

	for {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, record := range fetches.Records() {
			if err := handle(ctx, guard, record); err != nil {
				return err // offsets are not committed: Kafka delivers the records again
			}
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
	}
}

// handle writes the row and the key in one transaction.
func handle(ctx context.Context, guard *pgstore.Guard, record *kgo.Record) error {
	var o order
	if err := json.Unmarshal(record.Value, &o); err != nil {
		return err
	}
	key := semel.Key{Scope: "orders-in-go", ID: o.EventID}
	out, err := guard.DoTx(ctx, key, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, "INSERT INTO orders_in_go VALUES ($1, $2, $3)", o.EventID, o.Customer, o.Amount)
		return nil, err
	})
	if err != nil {
		return err
	}
	fmt.Println(out.Decision, o.EventID)
	return nil
}
