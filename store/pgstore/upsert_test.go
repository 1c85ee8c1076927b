package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

func accounts(t testing.TB, d *desk) *Upsert {
	t.Helper()
	if _, err := d.pool.Exec(t.Context(), `CREATE TABLE accounts (tenant text, id bigint, revision bigint, name text, PRIMARY KEY (tenant, id))`); err != nil {
		t.Fatal(err)
	}
	u, err := NewUpsert(Table{Name: "accounts", Keys: []string{"tenant", "id"}, Version: "revision", Columns: []string{"name"}})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAnUpsertKeepsTheNewestVersionAndTellsTheOthers(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	u := accounts(t, d)
	write := func(rows ...[]any) (applied []Applied) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), d.pool, func(tx pgx.Tx) (err error) {
			applied, err = u.WriteAll(t.Context(), tx, rows)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return applied
	}
	if _, err := d.pool.Exec(t.Context(), "INSERT INTO accounts VALUES ('a', 9, NULL, 'older than versions')"); err != nil {
		t.Fatal(err)
	}
	got := write([]any{"a", 1, 5, "five"}, []any{"a", 1, 4, "four"}, []any{"a", 1, 5, "five again"}, []any{"a", 1, 7, "seven"},
		[]any{"b", 1, 1, "other"}, []any{"a", 9, 0, "zero"})
	if want := []Applied{Written, Stale, Equal, Written, Written, Written}; !slices.Equal(got, want) {
		t.Errorf("one batch: %v, want %v", got, want)
	}
	if got := write([]any{"a", 1, 6, "six"}); got[0] != Stale {
		t.Errorf("an old version is %v", got[0])
	}
	var name string
	if err := d.pool.QueryRow(t.Context(), "SELECT name FROM accounts WHERE tenant = 'a' AND id = 1").Scan(&name); err != nil || name != "seven" {
		t.Errorf("name %q, %v", name, err)
	}
	for _, values := range [][]any{{"a", 1, 1}, {"a", 1, nil, "x"}} {
		_, err := d.DoTx(t.Context(), key("refused"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := u.Write(ctx, tx, values...)
			return nil, err
		})
		if !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("values %v: %v", values, err)
		}
	}
}

func TestConcurrentUpsertsLeaveTheNewest(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: mostLockWait}, nil)
	u := accounts(t, d)
	const versions = 200
	order := rand.Perm(versions)
	written := make([]Applied, versions)
	var wait sync.WaitGroup
	for worker := range 8 {
		wait.Go(func() {
			for i := worker; i < versions; i += 8 {
				version := order[i]
				_, err := d.DoTx(t.Context(), key(string(rune('a'+worker))+strings.Repeat("i", i)), func(ctx context.Context, tx pgx.Tx) (_ []byte, err error) {
					written[version], err = u.Write(ctx, tx, "a", 1, version, "v")
					return nil, err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	var newest int
	if err := d.pool.QueryRow(t.Context(), "SELECT revision FROM accounts").Scan(&newest); err != nil || newest != versions-1 {
		t.Errorf("the row is at %d, %v", newest, err)
	}
	for version, applied := range written {
		if applied != Written && applied != Stale || version == versions-1 && applied != Written {
			t.Errorf("version %d is %s", version, applied)
		}
	}
}

func TestAnUpsertOfBadNamesIsRefused(t *testing.T) {
	t.Parallel()
	_, err := NewUpsert(Table{Schema: "S", Name: "a b", Version: "v;", Columns: []string{"c", "c"}})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatal(err)
	}
	for _, part := range []string{`"S"`, `"a b"`, `"v;"`, "twice", "Keys: there are none"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not have %s: %v", part, err)
		}
	}
}
