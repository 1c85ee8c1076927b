package programtest

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/cli/term"
)

// QueryRow reads one value from a database.
func QueryRow(t *testing.T, address string, value any, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql).Scan(value); err != nil {
		t.Fatal(err)
	}
}

// NewDatabase creates a database, with or without tables.
func NewDatabase(t *testing.T, migrated bool) string {
	t.Helper()
	address := Servers.Database(t)
	if migrated {
		file := filepath.Join(t.TempDir(), "migrate.yaml")
		WriteFile(t, file, "stores: { db: { postgres: { dsn: \""+address+"\" } } }")
		Run(t, "", "migrate", "up", "--config", file, "--quiet").Check(t, term.ExitDone)
	}
	return address
}

// QueryValue returns one value of a database.
func QueryValue[T any](t *testing.T, pool *pgxpool.Pool, sql string) (value T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// BecomesTrue waits until a statement is true.
func BecomesTrue(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	for late := time.Now().Add(5 * time.Minute); !QueryValue[bool](t, pool, sql); <-time.After(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("never: %s", sql)
		}
	}
}

// Exec runs a statement in a database.
func Exec(t *testing.T, address, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Connect returns a function that returns a connection.
func Connect(t *testing.T, dsn string) func(t *testing.T) *pgx.Conn {
	return func(t *testing.T) *pgx.Conn {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
}
