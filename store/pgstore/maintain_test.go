package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// age makes all rows older, as if time had passed.
func (b *bundle) age(by string) {
	b.t.Helper()
	b.exec("UPDATE semel_keys SET seen = seen - $1::interval, until = until - $1::interval", by)
}

// lifetime brings six keys into different states: 1 done, 2 done forever, 3
// claimed, 4 held, 5 released, 6 done with a window of a second.
func (b *bundle) lifetime() {
	b.t.Helper()
	a := b.want(semel.Fresh, 1, 2, 3, 5, 6)
	b.complete(1, a[0], time.Hour)
	b.complete(2, a[1], semel.Forever)
	b.release(5, a[3], false)
	b.complete(6, a[4], time.Second)
	held := request(keyOf(4))
	held.Hold = true
	answers := make([]semel.ClaimAnswer, 1)
	if err := b.Claim(context.Background(), []semel.ClaimRequest{held}, answers); err != nil || answers[0].Decision != semel.Fresh {
		b.t.Fatalf("claim: %v, %+v", err, answers[0])
	}
}

func (b *bundle) purged() int64 {
	b.t.Helper()
	n, err := b.Purge(context.Background())
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

func TestPurgeDeletesExpiredRecordsAfterAWhile(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 4} {
		address := shared.Database(t)
		migrated(t, address, &MigrateOptions{Partitions: partitions})
		b := openAt(t, address, nil)
		b.lifetime()
		if n := b.purged(); n != 0 {
			t.Errorf("%d rows are purged immediately", n)
		}
		b.age("2 minutes") // the window of 6 and the release of 5 are over, and so are the leases of 3 and 4
		if n := b.purged(); n != 2 {
			t.Errorf("after two minutes %d rows are purged, want 2", n)
		}
		b.age("58 minutes 30 seconds")
		if n := b.purged(); n != 0 {
			t.Errorf("of a done key half a minute after its window and of a claim an hour old %d rows are purged", n)
		}
		b.age("2 minutes")
		if n := b.purged(); n != 2 {
			t.Errorf("of a done key and an abandoned claim %d rows are purged, want 2", n)
		}
		b.age("1000 days")
		if n := b.purged(); n != 0 {
			t.Errorf("of a key kept forever and an unknown one %d rows are purged", n)
		}
		b.want(semel.Duplicate, 2)
		b.want(semel.OutcomeUnknown, 4)
		b.want(semel.Fresh, 1, 3, 5, 6)
	}
}

func TestFencingTokensGrowAcrossAPurge(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	a := b.want(semel.Fresh, 1)[0]
	b.release(1, a, false)
	b.age("2 minutes")
	if n := b.purged(); n != 1 {
		t.Fatalf("%d rows are purged, want 1", n)
	}
	if again := b.want(semel.Fresh, 1)[0]; again.Claim.Token <= a.Claim.Token || again.Claim.Attempt != 1 {
		t.Errorf("after a purge the claim is %+v, was %+v", again.Claim, a.Claim)
	}
}

func TestPurgeDoesNotWaitForClaims(t *testing.T) {
	t.Parallel()
	b := opened(t, &Options{LockWait: 20 * time.Second})
	a := b.want(semel.Fresh, 1, 2)
	b.complete(1, a[0], time.Second)
	b.complete(2, a[1], time.Second)
	b.age("5 minutes")
	tx := b.begin()
	answers := make([]semel.ClaimAnswer, 1)
	on := session{Store: b.Store, q: tx, lockWait: "1s"}
	if err := on.claim(t.Context(), []semel.ClaimRequest{request(keyOf(1))}, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatalf("claim again in a transaction: %v, %+v", err, answers[0])
	}
	if n := b.purged(); n != 1 {
		t.Errorf("%d rows are purged next to a claim, want the other one", n)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want(semel.InFlight, 1)
}

func TestOneStoreAtATimeMaintainsTheTables(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	other := &bundle{openSame(t, b), t}
	o := &MaintainOptions{Every: time.Hour}
	worked := func(s *Store) bool {
		t.Helper()
		_, worked, err := s.pass(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return worked
	}
	if !worked(b.Store) || worked(other.Store) || worked(b.Store) {
		t.Error("not exactly the first of three took the turn")
	}
	b.exec("UPDATE semel_meta SET at = at - interval '1 hour' WHERE name = 'cleaning'")
	if !worked(other.Store) {
		t.Error("no store took the turn over")
	}
	if f := finding(t, b.Store, "clean-up"); f.Severity != doctor.Fine {
		t.Errorf("after a clean-up the examination says %+v", f)
	}
	b.exec("UPDATE semel_meta SET at = at - interval '1 day' WHERE name = 'cleaned'")
	if f := finding(t, b.Store, "clean-up"); f.Severity != doctor.Notice {
		t.Errorf("a day after a clean-up the examination says %+v", f)
	}
}

// openSame opens another store on the same pool.
func openSame(t testing.TB, b *bundle) *Store {
	t.Helper()
	s, err := New(t.Context(), b.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMaintainEndsWithItsContextAndReportsPasses(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	a := b.want(semel.Fresh, 1)[0]
	b.complete(1, a, time.Second)
	b.age("5 minutes")
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	var gone int64
	err := b.Maintain(ctx, &MaintainOptions{Every: time.Second, OnPass: func(n int64, err error) {
		gone += n
		if err != nil {
			t.Errorf("a pass: %v", err)
		}
		cancel(stopped)
	}})
	if !errors.Is(err, stopped) || gone != 1 {
		t.Errorf("maintain ends with %v and %d rows gone, want the cause and 1", err, gone)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Maintain(t.Context(), nil); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("maintain a closed store: %v", err)
	}
}

func TestCountOfALargeTableIsAnEstimate(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	// Many pages with few keys each, which takes a tenth of the time to create.
	const keys = 120_000
	b.exec(`ALTER TABLE semel_keys SET (fillfactor = 10)`)
	b.exec(`INSERT INTO semel_keys (key, until, seen)
		SELECT gen_random_uuid(), now() + interval '1 hour', now() - interval '30 minutes' FROM generate_series(1, $1)`, keys)
	c, err := b.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if pages := b.number("SELECT pg_relation_size('semel_keys') / 8192"); pages <= countPages {
		t.Fatalf("the table has %d pages: it is counted whole", pages)
	}
	if c.Done < keys*11/12 || c.Done > keys*13/12 || c.Claimed != 0 || c.Unknown != 0 {
		t.Errorf("of %d keys the count is %+v", keys, c)
	}
	if c.Oldest < 30*time.Minute || c.Oldest > 45*time.Minute || c.DiskBytes < countPages*8192 {
		t.Errorf("the count says %v old and %d bytes", c.Oldest, c.DiskBytes)
	}
}

func TestStoreRefusesTablesWithAnotherCleanupForm(t *testing.T) {
	t.Parallel()
	_, p := timed(t)
	if _, err := New(t.Context(), p, &Options{Cleanup: CleanupDelete}); !errors.Is(err, ErrSchema) {
		t.Errorf("a store that wants another form: %v, want ErrSchema", err)
	}
	if _, err := Migrate(t.Context(), p, &MigrateOptions{Cleanup: CleanupDelete}); !errors.Is(err, ErrSchema) {
		t.Errorf("a migration to another form: %v, want ErrSchema", err)
	}
	if _, err := Migrate(t.Context(), p, nil); err != nil {
		t.Errorf("a migration that leaves the form open: %v", err)
	}
}

// TestCleanupFormOfAnotherVersionIsRefused has tables that keep keys where this version
// does not look. It would treat all of them as new.
func TestCleanupFormOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	b.exec("UPDATE semel_meta SET value = 'generations' WHERE name = 'cleanup'")
	b.exec("DELETE FROM semel_migrations WHERE version = 3")
	b.exec("DROP TABLE semel_parked")
	steps := b.number("SELECT count(*) FROM semel_migrations")
	_, opening := New(t.Context(), b.pool, nil)
	applied, migrating := Migrate(t.Context(), b.pool, nil)
	if len(applied) > 0 || b.number("SELECT count(*) FROM semel_migrations") != steps {
		t.Errorf("steps were applied: %v", applied)
	}
	for verb, err := range map[string]error{"open": opening, "migrate": migrating} {
		if !errors.Is(err, ErrSchema) || semel.Classify(err) != semel.ClassPermanent {
			t.Errorf("%s: %v, want ErrSchema", verb, err)
			continue
		}
		for _, part := range []string{`"generations"`, "semel_*", "public", "another prefix"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error does not have %s: %v", verb, part, err)
			}
		}
	}
}

// Transactions of every kind decide the same in every form of clean-up.
func TestTransactionsWorkInEveryForm(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(address string) *Store{
		"delete": func(address string) *Store {
			migrated(t, address, &MigrateOptions{Partitions: 3})
			s, err := New(t.Context(), pool(t, address), &Options{Prepare: true})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"message time": func(address string) *Store {
			migrated(t, address, &MigrateOptions{Cleanup: CleanupMessageTime})
			hour := time.UnixMilli(time.Now().UnixMilli() / 36e5 * 36e5)
			s, err := New(t.Context(), pool(t, address), &Options{MessageTime: func(semel.Key) (time.Time, bool) { return hour, true }})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := shared.Database(t)
			s := make(address)
			g, err := NewGuard(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
				out, err := g.DoTx(t.Context(), semel.Key{ID: "guarded"}, func(context.Context, pgx.Tx) ([]byte, error) { return []byte("r"), nil })
				if err != nil || out.Decision != want || string(out.Result.Data) != "r" {
					t.Errorf("DoTx %d: %+v, %v, want %s", i, out, err, want)
				}
			}
			db, err := sql.Open("pgx", address)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			for i, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				in := g.InSQLTx(tx)
				out, err := in.Claim(t.Context(), semel.Call{Key: semel.Key{ID: "owned"}})
				if err != nil || out.Decision != want {
					t.Errorf("claim %d: %+v, %v, want %s", i, out, err, want)
				}
				if want == semel.Fresh {
					err = in.SetResult(t.Context(), semel.Key{ID: "owned"}, semel.Result{Kind: semel.Value, Data: []byte("kept")})
				} else if string(out.Result.Data) != "kept" {
					t.Errorf("the result is %q", out.Result.Data)
				}
				if err := errors.Join(err, tx.Commit()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
