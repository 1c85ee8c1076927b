package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
	"github.com/semel-dev/semel/store/storetest"
)

// shared is the server of the tests that do nothing to it.
var shared servicestest.Pool

func TestMain(m *testing.M) {
	os.Exit(shared.Run(m))
}

// pool returns connections to an address, closed when the test ends.
func pool(t testing.TB, address string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 16
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// migrated makes the tables in a database.
func migrated(t testing.TB, address string, opts *MigrateOptions) {
	t.Helper()
	p, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := Migrate(t.Context(), p, opts); err != nil {
		t.Fatal(err)
	}
}

// conformance runs the suite, each case on tables of its own. Each of more
// gets another store on them, that goes on beside the case.
func conformance(t *testing.T, server string, migrate MigrateOptions, opts Options, more ...func(testing.TB, *Store)) {
	t.Helper()
	connections := pool(t, server)
	storetest.Run(t, storetest.Harness{
		Time: storetest.Wall,
		New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
			migrate := migrate
			migrate.Schema = "s" + strings.ToLower(rand.Text()[:10])
			if _, err := Migrate(tb.Context(), connections, &migrate); err != nil {
				tb.Fatal(err)
			}
			o := opts
			o.Names, o.KeepIDs = migrate.Names, migrate.KeepIDs
			for _, f := range more {
				beside, err := New(tb.Context(), connections, &o)
				if err != nil {
					tb.Fatal(err)
				}
				f(tb, beside)
			}
			return func() (semel.Store, error) { return New(context.Background(), connections, &o) }
		},
		Transact: transact,
	})
}

// transact claims in one transaction.
func transact(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	s := store.(*Store)
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := s.InTx(tx).Claim(ctx, reqs, answers); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if commit {
		return tx.Commit(ctx)
	}
	return tx.Rollback(ctx)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance(t, shared.Database(t), MigrateOptions{}, Options{})
}

func TestConformanceWithReadableKeysAndPartitions(t *testing.T) {
	t.Parallel()
	conformance(t, shared.Database(t), MigrateOptions{KeepIDs: true, Partitions: 3}, Options{Prepare: true})
}

func TestConformanceBehindPgBouncer(t *testing.T) {
	t.Parallel()
	bouncer := servicestest.StartPgBouncer(t, servicestest.StartPostgres(t, nil), nil)
	conformance(t, bouncer.URL(), MigrateOptions{}, Options{MaxResult: 4096})
}
