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
)

func TestFormsAreNotMixed(t *testing.T) {
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

// TestAFormOfAnotherVersionIsRefused has tables whose keys are where this version
// does not look: it would call all of them new.
func TestAFormOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	b.exec("UPDATE semel_meta SET value = 'generations' WHERE name = 'cleanup'")
	b.exec("DELETE FROM semel_migrations WHERE version = 3")
	b.exec("DROP TABLE semel_parked")
	_, opening := New(t.Context(), b.pool, nil)
	applied, migrating := Migrate(t.Context(), b.pool, nil)
	if len(applied) > 0 || b.number("SELECT count(*) FROM semel_migrations") != 2 {
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
			s, err := New(t.Context(), pool(t, address), &Options{MessageTime: func(semel.Key) (time.Time, bool) { return time.UnixMilli(time.Now().UnixMilli() / 36e5 * 36e5), true }})
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
