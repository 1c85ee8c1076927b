package postgres_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// servers are those of the tests that do nothing to them.
var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func open(t testing.TB, address string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t testing.TB, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](t testing.TB, pool *pgxpool.Pool, sql string) (value T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// guard opens a guard whose tables are made if none exist.
func guard(t testing.TB, pool *pgxpool.Pool) *pgstore.Guard {
	t.Helper()
	return guardOf(t, pool, pgstore.Names{})
}

// guardOf creates tables with these names and opens a guard on them.
func guardOf(t testing.TB, pool *pgxpool.Pool, names pgstore.Names) *pgstore.Guard {
	t.Helper()
	ctx := context.Background()
	if _, err := pgstore.Migrate(ctx, pool, &pgstore.MigrateOptions{Names: names}); err != nil {
		t.Fatal(err)
	}
	store, err := pgstore.New(ctx, pool, &pgstore.Options{Names: names})
	if err != nil {
		t.Fatal(err)
	}
	g, err := pgstore.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// effects returns the bodies of a table in the order of their rows.
func effects(pool *pgxpool.Pool) func(ctx context.Context) ([]brokertest.Effect, error) {
	return func(ctx context.Context) ([]brokertest.Effect, error) {
		for {
			rows, err := pool.Query(ctx, "SELECT body FROM out ORDER BY n")
			if err == nil {
				var list []brokertest.Effect
				if list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e brokertest.Effect, err error) { return e, row.Scan(&e.Body) }); err == nil {
					return list, nil
				}
			}
			if ctx.Err() != nil { // the server may be on its way back
				return nil, err
			}
			<-time.After(10 * time.Millisecond)
		}
	}
}

const outTable = "CREATE TABLE out (n bigint GENERATED ALWAYS AS IDENTITY, body text NOT NULL)"

// target is a database of its own, or on a server of its own that is killed.
func target(tb testing.TB, kill bool) (address string, pool *pgxpool.Pool, restart func(context.Context) error) {
	address = servers.Database(tb)
	if kill {
		server := servicestest.StartPostgres(tb, nil)
		address = server.URL()
		restart = func(ctx context.Context) error {
			if err := server.Kill(); err != nil {
				return err
			}
			return server.Restart(ctx)
		}
	}
	pool = open(tb, address)
	exec(tb, pool, outTable)
	return address, pool, restart
}

// noText is a body that no column of type text takes.
const noText = "{\"id\":\"\x00\"}"

// hostOf returns the host and port of an address.
func hostOf(tb testing.TB, address string) string {
	tb.Helper()
	u, err := url.Parse(address)
	if err != nil {
		tb.Fatal(err)
	}
	return u.Host
}

var row = postgres.Options{Table: "out", Columns: []postgres.Column{{Name: "body", From: "body"}}}

func TestSinkPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{AtLeastOnce: true, NoHeaders: true, Messages: 400, New: func(tb testing.TB) brokertest.SinkTarget {
		address, pool, restart := target(tb, strings.HasSuffix(tb.Name(), "middle"))
		return brokertest.SinkTarget{
			Sink:   func(ctx context.Context) (pipeline.Sink, error) { return postgres.Open(ctx, address, &row) },
			Server: hostOf(tb, address),
			SinkAt: func(ctx context.Context, other string) (pipeline.Sink, error) {
				return postgres.Open(ctx, strings.Replace(address, hostOf(tb, address), other, 1), &row)
			},
			Refused: []byte(noText),
			Effects: effects(pool),
			Restart: restart,
		}
	}})
}

func TestSessionPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{NoHeaders: true, Messages: 400, New: func(tb testing.TB) brokertest.SinkTarget {
		address, pool, restart := target(tb, strings.HasSuffix(tb.Name(), "middle"))
		g := guard(tb, pool)
		return brokertest.SinkTarget{
			Session: func(context.Context) (pipeline.Session, error) { return postgres.NewSession(g, &row) },
			Server:  hostOf(tb, address),
			SessionAt: func(_ context.Context, other string) (pipeline.Session, error) {
				return postgres.NewSession(guard(tb, open(tb, strings.Replace(address, hostOf(tb, address), other, 1))), &row)
			},
			Refused: []byte(noText),
			Effects: effects(pool),
			Restart: restart,
		}
	}})
}

func TestHandlerPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{NoHeaders: true, Messages: 300, New: func(tb testing.TB) brokertest.SinkTarget {
		address, pool, restart := target(tb, strings.HasSuffix(tb.Name(), "middle"))
		g := guard(tb, pool)
		handler := func(g *pgstore.Guard) (pipeline.Session, error) {
			return postgres.NewHandler(g, func(ctx context.Context, tx pgx.Tx, m pipeline.Delivery) (semel.Result, error) {
				_, err := tx.Exec(ctx, "INSERT INTO out (body) VALUES ($1)", string(m.Body))
				if err != nil {
					err = fmt.Errorf("insert: %w", err)
				}
				return semel.Result{}, err
			}), nil
		}
		return brokertest.SinkTarget{
			Session: func(context.Context) (pipeline.Session, error) { return handler(g) },
			Server:  hostOf(tb, address),
			SessionAt: func(_ context.Context, other string) (pipeline.Session, error) {
				return handler(guard(tb, open(tb, strings.Replace(address, hostOf(tb, address), other, 1))))
			},
			Effects: effects(pool),
			Restart: restart,
		}
	}})
}
