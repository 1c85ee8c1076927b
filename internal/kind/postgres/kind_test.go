package postgres_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	brokerpostgres "github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/postgres"
)

func TestSink(t *testing.T) {
	kindtest.Sink(t, postgres.NewSink, kindtest.Case{
		Least:   `{ store: rows, table: orders, columns: { id: .id } }`,
		Secrets: []string{`{ dsn: "postgres://u:` + kindtest.Secret + `@h/d", table: orders, columns: { id: .id } }`},
	})
}

func TestOutbox(t *testing.T) {
	kindtest.Source(t, postgres.NewOutbox, kindtest.Case{Least: `{ store: rows }`})
}

func TestStore(t *testing.T) {
	kindtest.Store(t, postgres.NewStore, kindtest.Case{
		Least:   `{ dsn: "host=h" }`,
		Secrets: []string{`{ dsn: "host=h password=` + kindtest.Secret + `" }`},
	})
}

// A trigger may put a part of a message into a name. Probes show names of the
// configuration alone.
func TestProbesShowNamesOfTheConfigurationAlone(t *testing.T) {
	t.Parallel()
	table := &postgres.Sink{Table: "app.orders", Columns: []brokerpostgres.Column{{Name: "id", From: ".id"}}}
	statement := &postgres.Sink{Statement: "INSERT INTO orders (id) VALUES ($1)"}
	for _, c := range []struct {
		sink          *postgres.Sink
		code, message string
		want          string
		public        bool
	}{
		{table, "42P01", `relation "app.orders" does not exist`, "table app.orders does not exist: create it, or correct sink.postgres.table", true},
		{table, "42P01", `relation "log_alice" does not exist`, "table log_alice does not exist: create it, or correct the trigger of app.orders", false},
		{table, "42703", `column "id" of relation "orders" does not exist`, "table orders has no column id: add it, or correct sink.postgres.columns", true},
		{statement, "42703", `column "id" of relation "orders" does not exist`, `column "id" of relation "orders" does not exist: add it, or correct sink.postgres.statement`, true},
		{statement, "42601", `syntax error at or near "alice"`, `syntax error at or near "alice": correct sink.postgres.statement`, false},
	} {
		got := c.sink.Advise(&config.File{}, nil, "sink.postgres", fmt.Errorf("postgres: %w", &pgconn.PgError{Code: c.code, Message: c.message}))
		if got == nil || got.Error() != c.want || got.Public != c.public {
			t.Errorf("%s %s becomes %v (public: %v), want %s", c.code, c.message, got, got != nil && got.Public, c.want)
		}
	}
	if got := table.Advise(&config.File{}, nil, "sink.postgres", &pgconn.PgError{Code: "22P02", Message: "invalid input: alice"}); got != nil {
		t.Errorf("the fault of a message: %v", got)
	}
}
