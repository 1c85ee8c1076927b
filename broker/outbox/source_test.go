package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/broker/brokertest"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

var migrated = relay.Migrated

// write commits messages.
func write(ctx context.Context, pool *pgxpool.Pool, msgs ...outbox.Message) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return outbox.Write(ctx, tx, msgs...) })
}

func TestSourcePassesTheSuite(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	brokertest.RunSource(t, brokertest.SourceHarness{Messages: 300, New: func(tb testing.TB) brokertest.SourcePlace {
		address := servicestest.NewDatabase(tb, server.URL())
		pool := migrated(tb, address)
		open := func(ctx context.Context, address string) (pipeline.Source, error) {
			for {
				s, err := relay.Open(ctx, address, &relay.Options{Lease: time.Second})
				if err == nil {
					return s, nil
				}
				if ctx.Err() != nil {
					return nil, err
				}
				<-time.After(10 * time.Millisecond)
			}
		}
		return brokertest.SourcePlace{
			Partitions: 3,
			Produce:    func(ctx context.Context, list []brokertest.Numbered) error { return produce(ctx, pool, list) },
			Open:       func(ctx context.Context) (pipeline.Source, error) { return open(ctx, address) },
			Server:     server.Addr(),
			OpenAt: func(ctx context.Context, other string) (pipeline.Source, error) {
				return open(ctx, strings.Replace(address, server.Addr(), other, 1))
			},
			Again:   func(ctx context.Context) error { return startAgain(ctx, pool) },
			Restart: func(ctx context.Context) error { return errors.Join(server.Kill(), server.Restart(ctx)) },
		}
	}})
}

// startAgain empties the outbox, and has its numbers start again.
func startAgain(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "TRUNCATE semel_outbox RESTART IDENTITY")
	return err
}

// produce commits messages in small transactions.
func produce(ctx context.Context, pool *pgxpool.Pool, list []brokertest.Numbered) error {
	for len(list) > 0 {
		n := min(len(list), 7)
		msgs := make([]outbox.Message, n)
		for i, m := range list[:n] {
			msgs[i] = outbox.Message{Aggregate: fmt.Sprint("p", m.Partition), Topic: "numbers", Payload: m.Body, Headers: m.Headers}
		}
		switch err := write(ctx, pool, msgs...); {
		case err == nil:
			list = list[n:]
		case ctx.Err() != nil:
			return errors.Join(err, ctx.Err())
		default:
			<-time.After(10 * time.Millisecond)
		}
	}
	return nil
}
