package outbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/store/pgstore"
)

// ExamineAfter is Examine with a patience of its own. It warns of all deleted rows that are kept.
func ExamineAfter(ctx context.Context, dsn string, opts *Options, patience time.Duration) ([]doctor.Finding, error) {
	return examine(ctx, dsn, opts, patience, 0)
}

// Named returns options of a relay whose owner name begins with a name.
func Named(o Options, name string) *Options { o.name = name; return &o }

// NamedWAL is Named for a relay that reads a replication slot.
func NamedWAL(o WALOptions, name string) *WALOptions { o.name = name; return &o }

// Postpone makes the next Read of a source wait, unless it is woken.
func Postpone(s *Source, until time.Time) {
	select {
	case <-s.wake:
	default:
	}
	s.reading.next = until
}

// Owned returns how many shards a source owns.
func Owned(s *Source) int { return len(s.owned()) }

// Hear listens for notifications until ctx ends. The error says whether a pooler is
// between.
func Hear(ctx context.Context, s *Source) (pooled bool) { return errors.Is(s.hear(ctx), errPooled) }

// Migrated connects to a database for as long as the test runs, and creates the tables.
func Migrated(tb testing.TB, address string) *pgxpool.Pool {
	tb.Helper()
	pool, err := pgxpool.New(context.Background(), address)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	if _, err := pgstore.Migrate(context.Background(), pool, nil); err != nil {
		tb.Fatal(err)
	}
	return pool
}
