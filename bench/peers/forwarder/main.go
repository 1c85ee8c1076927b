// Command forwarder relays an outbox of Watermill to Kafka, as Watermill's guide has it:
// a queue table in PostgreSQL whose rows are deleted when they are acknowledged, the
// forwarder component, and a publisher that takes the aggregate as the record key.
//
//	forwarder -dsn URL -bootstrap HOST:PORT -topic TOPIC [-fill N -bytes N -aggregates N]
//
// With -fill, it writes that many messages to the outbox and ends. Without it, it relays
// until SIGTERM.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	outboxTopic = "outbox"
	aggregate   = "aggregate"
	// fillBatch is how many messages a transaction writes.
	fillBatch = 1000
)

func main() {
	dsn := flag.String("dsn", "", "URL of PostgreSQL")
	bootstrap := flag.String("bootstrap", "", "address of Kafka")
	topic := flag.String("topic", "", "topic to write to")
	n := flag.Int("fill", 0, "messages to write")
	size := flag.Int("bytes", 1024, "bytes of each")
	aggregates := flag.Int("aggregates", 1000, "aggregates among which they are spread")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		pool, err := pgxpool.New(ctx, *dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		if *n > 0 {
			return fill(ctx, pool, *topic, *n, *size, *aggregates)
		}
		return relay(ctx, pool, *bootstrap)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "forwarder:", err)
		os.Exit(1)
	}
}

func schema() watermillsql.PostgreSQLQueueSchema {
	return watermillsql.PostgreSQLQueueSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}
}

func fill(ctx context.Context, pool *pgxpool.Pool, topic string, n, size, aggregates int) error {
	body := bytes.Repeat([]byte("x"), size)
	for _, q := range must(schema().SchemaInitializingQueries(watermillsql.SchemaInitializingQueriesParams{Topic: outboxTopic})) {
		if _, err := pool.Exec(ctx, q.Query, q.Args...); err != nil {
			return err
		}
	}
	for from := 0; from < n; from += fillBatch {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			inner, err := watermillsql.NewPublisher(watermillsql.TxFromPgx(tx), watermillsql.PublisherConfig{SchemaAdapter: schema()}, nil)
			if err != nil {
				return err
			}
			publisher := forwarder.NewPublisher(inner, forwarder.PublisherConfig{ForwarderTopic: outboxTopic})
			list := make([]*message.Message, 0, fillBatch)
			for i := from; i < min(n, from+fillBatch); i++ {
				m := message.NewMessage(watermill.NewUUID(), body)
				m.Metadata.Set(aggregate, strconv.Itoa(i%aggregates))
				list = append(list, m)
			}
			return publisher.Publish(topic, list...)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // the schema has no errors
	}
	return v
}

func relay(ctx context.Context, pool *pgxpool.Pool, bootstrap string) error {
	subscriber, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromPgx(pool), watermillsql.SubscriberConfig{
		SchemaAdapter:    schema(),
		OffsetsAdapter:   watermillsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		InitializeSchema: true,
	}, nil)
	if err != nil {
		return err
	}
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{bootstrap},
		Marshaler: kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
			return m.Metadata.Get(aggregate), nil
		}),
	}, nil)
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(subscriber, publisher, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: outboxTopic})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}
