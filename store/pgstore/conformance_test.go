package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// shared is the server of tests that do not change it.
var shared = servicestest.Pool{Unsynced: true}

func TestMain(m *testing.M) {
	os.Exit(shared.Run(m))
}

// pool returns a connection pool to an address, closed when the test ends.
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

// migrated creates the tables in a database.
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

// caseStores are the stores of a case.
type caseStores struct {
	mu   sync.Mutex
	list []*Store
}

func (c *caseStores) add(s *Store) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, s)
}

// idle reports whether each store has been without a call for a moment since idle
// last returned true.
func (c *caseStores) idle(seen map[*Store]bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := true
	for _, s := range c.list {
		if !seen[s] && s.mu.TryLock() {
			s.mu.Unlock()
			seen[s] = true
		}
		all = all && seen[s]
	}
	if all {
		clear(seen)
	}
	return all
}

// conformance runs the suite, each case on its own tables. Each function of more
// gets the stores of the case and another store on the same tables, which runs
// concurrently.
func conformance(t *testing.T, server string, migrate MigrateOptions, opts Options, more ...func(tb testing.TB, beside *Store, stores *caseStores)) {
	t.Helper()
	connections := pool(t, server)
	opts.LockWait = mostLockWait // on a busy machine a commit takes long
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
			stores := new(caseStores)
			for _, f := range more {
				beside, err := New(tb.Context(), connections, &o)
				if err != nil {
					tb.Fatal(err)
				}
				f(tb, beside, stores)
			}
			return func() (semel.Store, error) {
				s, err := New(context.Background(), connections, &o)
				if err == nil {
					stores.add(s)
				}
				return s, err
			}
		},
		Transact: transact,
	})
}

func BenchmarkSuite(b *testing.B) {
	connections := pool(b, shared.Database(b))
	storetest.RunBenchmarks(b, storetest.Harness{New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
		names := Names{Schema: "s" + strings.ToLower(rand.Text()[:10])}
		if _, err := Migrate(tb.Context(), connections, &MigrateOptions{Names: names}); err != nil {
			tb.Fatal(err)
		}
		return func() (semel.Store, error) { return New(tb.Context(), connections, &Options{Names: names}) }
	}})
}

// transact claims in one transaction.
func transact(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	s := store.(*Store)
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	if err := (&Guard{store: s}).InTx(tx).claim(ctx, reqs, answers); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if commit {
		return tx.Commit(ctx)
	}
	return tx.Rollback(ctx)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for form, run := range sampletest.Sampled(map[string]func(t *testing.T){
		"zero options": func(t *testing.T) { conformance(t, shared.Database(t), MigrateOptions{}, Options{}) },
		"readable keys and partitions": func(t *testing.T) {
			conformance(t, shared.Database(t), MigrateOptions{KeepIDs: true, KeepOrigins: true, Partitions: 3}, Options{Prepare: true})
		},
		"behind PgBouncer": func(t *testing.T) {
			bouncer := servicestest.StartPgBouncer(t, servicestest.StartPostgres(t, nil), nil)
			conformance(t, bouncer.URL(), MigrateOptions{KeepOrigins: true}, Options{MaxResult: 4096})
		},
	}, 1) {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}
