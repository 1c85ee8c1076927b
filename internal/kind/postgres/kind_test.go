package postgres_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/postgres"
)

func TestSink(t *testing.T) {
	kindtest.Sink(t, postgres.NewSink, kindtest.Case{
		Least:   `{ store: rows, table: orders, columns: { id: .id } }`,
		Secrets: []string{`{ dsn: "postgres://u:` + kindtest.Secret + `@h/d", table: orders, columns: { id: .id } }`},
	})
}

func TestStore(t *testing.T) {
	kindtest.Store(t, postgres.NewStore, kindtest.Case{
		Least:   `{ dsn: "host=h" }`,
		Secrets: []string{`{ dsn: "host=h password=` + kindtest.Secret + `" }`},
	})
}
