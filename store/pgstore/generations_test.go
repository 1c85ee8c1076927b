package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// phased is a store in generations, in phase p.
func phased(t *testing.T, address string, p phase, opts Options) *Store {
	t.Helper()
	connections := pool(t, address)
	if _, err := connections.Exec(t.Context(), "UPDATE semel_phase SET phase = $1", int64(p)); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), connections, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func doneRequest(id string) semel.ClaimRequest {
	return semel.ClaimRequest{Key: semel.Key{ID: id}, Window: time.Hour, Done: true}
}

// The truncation is held off by the locks of all statements, and by nothing
// else: each must lock both tables of its phase, and no other, whether its plan
// is new or kept.
func TestGenerationsStatementsLockTheTablesOfTheirPhase(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Cleanup: CleanupGenerations})
	for p := range phase(4) {
		for _, prepare := range []bool{false, true} {
			s := phased(t, address, p, Options{Prepare: prepare})
			conn, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			want := []string{ringTable(p.lower()), ringTable(p.upper())}
			slices.Sort(want)
			for range 7 { // the server keeps a plan from the sixth time on
				for verb, call := range statementCalls(t) {
					got := tablesLocked(t, s, conn.Conn(), call)
					if !slices.Equal(got, want) {
						t.Fatalf("phase %d, prepared: %t: %s locks %v, want %v", p, prepare, verb, got, want)
					}
				}
			}
		}
	}
}

// statementCalls are calls that send one kind of statement each.
func statementCalls(t *testing.T) map[string]func(on session) error {
	ctx := t.Context()
	key := semel.Key{ID: "nobody's"}
	return map[string]func(on session) error{
		"insert": func(on session) error {
			c := on.claims([]semel.ClaimRequest{doneRequest("1")}, make([]semel.ClaimAnswer, 1))
			return c.insert(ctx, c.sorted())
		},
		"read": func(on session) error {
			_, _, err := on.rows(ctx, [][16]byte{on.hasher.Key(key)})
			return err
		},
		"lift": func(on session) error { return on.lift(ctx, [][16]byte{on.hasher.Key(key)}) },
		"put": func(on session) error {
			c := &claims{session: on}
			return c.put(ctx, nil, []change{{was: row{until: moment(time.Now())}, next: row{seen: moment(time.Now())}}})
		},
		"complete": func(on session) error {
			_, err := on.finishHeld(ctx, &completion{[]semel.CompleteRequest{{Key: key, Token: 1, Window: 1}}, make([]error, 1), 1}, []held{{}})
			return err
		},
		"release": func(on session) error {
			_, err := on.finishHeld(ctx, &release{[]semel.ReleaseRequest{{Key: key, Token: 1}}, make([]error, 1)}, []held{{}})
			return err
		},
		"extend": func(on session) error {
			_, err := on.finishHeld(ctx, &extension{[]semel.ExtendRequest{{Key: key, Token: 1, Lease: 1}}, make([]semel.ExtendAnswer, 1)}, []held{{}})
			return err
		},
	}
}

// tablesLocked returns the tables of keys that a call has locked.
func tablesLocked(t *testing.T, s *Store, conn *pgx.Conn, call func(on session) error) []string {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rollback(t.Context(), tx)
	if err := call(session{Store: s, q: tx, lockWait: "1s"}); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), `SELECT DISTINCT substring(c.relname FROM 7) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
		WHERE l.pid = pg_backend_pid() AND c.relname ~ '^semel_keys_[0-9]$' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A transaction holds off the truncation, and that holds off nobody.
func TestGenerationsWaitForTransactionsAndNobodyForThem(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Cleanup: CleanupGenerations})
	s := phased(t, address, 0, Options{Generation: time.Millisecond})
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rollback(context.Background(), tx)
	answers := make([]semel.ClaimAnswer, 1)
	if err := s.InTx(tx).Claim(t.Context(), []semel.ClaimRequest{doneRequest("held")}, answers); err != nil {
		t.Fatal(err)
	}
	purged(t, s)
	purged(t, s)
	if p := s.ring.phase(); p != 1 {
		t.Fatalf("phase %d while a transaction of phase 0 is open, want 1", p)
	}
	for i := range 50 {
		began := time.Now()
		wantDecision(t, s, semel.Fresh, fmt.Sprint(i))
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("a claim took %v while generations overlap", took)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantDecision(t, s, semel.Duplicate, "held")
	purged(t, s)
	if p := s.ring.phase(); p != 2 {
		t.Errorf("phase %d after the transaction ended, want 2", p)
	}
	wantDecision(t, s, semel.Duplicate, "held", "0", "49")
}

// Transactions of every kind decide in every phase and form as they do on one
// table.
func TestTransactionsWorkInEveryForm(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(address string) *Store{
		"overlap": func(address string) *Store {
			migrated(t, address, &MigrateOptions{Cleanup: CleanupGenerations})
			return phased(t, address, 3, Options{})
		},
		"generations": func(address string) *Store {
			migrated(t, address, &MigrateOptions{Cleanup: CleanupGenerations})
			return phased(t, address, 4, Options{Prepare: true})
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
				in := s.InSQLTx(tx)
				out, err := g.Once(t.Context(), in, semel.Call{Key: semel.Key{ID: "owned"}})
				if err != nil || out.Decision != want {
					t.Errorf("Once %d: %+v, %v, want %s", i, out, err, want)
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
