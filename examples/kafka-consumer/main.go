// Command kafka-consumer is an idempotent Kafka consumer: franz-go, pgx and
// DoTx. Each order becomes one PostgreSQL row, however often Kafka delivers it,
// because row and key commit in one transaction. Offsets are committed after the
// rows. Records that no retry can help go to the topic orders-parked.
//
//	psql "$DATABASE_URL" -c 'CREATE TABLE orders_in_go (event_id text, customer text, amount numeric)'
//	DATABASE_URL=postgres://… KAFKA_BROKERS=host:9092 go run ./examples/kafka-consumer
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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// parked ends the name of the topic that takes what cannot be processed.
const parked = "-parked"

type order struct {
	EventID  string `json:"event_id"`
	Customer string `json:"customer"`
	Amount   string `json:"amount"`
}

func main() {
	topic := flag.String("topic", "orders", "the topic to read")
	group := flag.String("group", "orders-in-go", "the consumer group")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *topic, *group); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, topic, group string) error {
	store, err := pgstore.Connect(ctx, os.Getenv("DATABASE_URL"), &pgstore.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer store.Close()
	// The topic keeps records for 7 days: no record comes back after the window.
	guard, err := pgstore.NewGuard(store, &semel.GuardOptions{Window: 8 * 24 * time.Hour})
	if err != nil {
		return err
	}
	return consume(ctx, guard, strings.Split(os.Getenv("KAFKA_BROKERS"), ","), topic, group)
}

// consume processes records until ctx ends.
func consume(ctx context.Context, guard *pgstore.Guard, brokers []string, topic, group string) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.DisableAutoCommit(),    // offsets are committed after the rows
		kgo.BlockRebalanceOnPoll(), // no partition moves while its records are processed
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance() // Close would wait for AllowRebalance without end
	if err := create(ctx, client, topic+parked); err != nil {
		return err
	}
	for {
		fetches := client.PollRecords(ctx, 500)
		if err := fetches.Err(); err != nil {
			return err // also after Ctrl-C: ctx has ended
		}
		for _, record := range fetches.Records() {
			if err := handle(ctx, guard, client, record); err != nil {
				return err // offsets are not committed: Kafka delivers the records again
			}
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			return err
		}
		client.AllowRebalance()
	}
}

// create creates the topic for records that no retry can help, if it does not exist.
func create(ctx context.Context, client *kgo.Client, topic string) error {
	_, err := kadm.NewClient(client).CreateTopic(ctx, 1, -1, nil, topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

// handle returns nil when the record's offset may be committed.
func handle(ctx context.Context, guard *pgstore.Guard, client *kgo.Client, record *kgo.Record) error {
	var o order
	if err := json.Unmarshal(record.Value, &o); err != nil {
		return park(ctx, client, record, err)
	}
	key := semel.Key{Scope: "orders-in-go", ID: o.EventID}
	out, err := guard.DoTx(ctx, key, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		return nil, insert(ctx, tx, o)
	})
	var permanent *semel.PermanentError
	switch {
	case errors.As(err, &permanent), errors.Is(err, semel.ErrInvalidKey):
		return park(ctx, client, record, err)
	case !semel.MayAck(err):
		return err
	}
	fmt.Println(out.Decision, o.EventID)
	return nil
}

// insert is the effect: it writes the row in the transaction of the key.
func insert(ctx context.Context, tx pgx.Tx, o order) error {
	_, err := tx.Exec(ctx, "INSERT INTO orders_in_go VALUES ($1, $2, $3)", o.EventID, o.Customer, o.Amount)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "22") {
		return semel.Permanent(err) // a data exception: PostgreSQL will always refuse this value
	}
	return err
}

// park keeps a record, with the reason, for a person to look at.
func park(ctx context.Context, client *kgo.Client, record *kgo.Record, reason error) error {
	fmt.Println("parked", reason)
	return client.ProduceSync(ctx, &kgo.Record{
		Topic: record.Topic + parked, Key: record.Key, Value: record.Value,
		Headers: append(record.Headers, kgo.RecordHeader{Key: "reason", Value: []byte(reason.Error())}),
	}).FirstErr()
}
