package pgstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/semel-dev/semel"
)

// owned is a caller's transaction, in either library.
type owned struct {
	tx               *Tx
	exec             func(sql string, args ...any) error
	commit, rollback func() error
}

// libraries begin callers' transactions.
func libraries(d *desk) map[string]func(t testing.TB, level string) owned {
	return map[string]func(t testing.TB, level string) owned{
		"pgx":          func(t testing.TB, level string) owned { return ownedPGX(t, d, level) },
		"database/sql": func(t testing.TB, level string) owned { return ownedSQL(t, d, level, pgx.QueryExecModeCacheStatement) },
		// As sent by a driver that does not know our types.
		"database/sql, text alone": func(t testing.TB, level string) owned { return ownedSQL(t, d, level, pgx.QueryExecModeSimpleProtocol) },
	}
}

// place is where a caller's transaction may be.
type place struct {
	desk  *desk
	begin func(t testing.TB, level string) owned
}

// inBothForms are the libraries with the tables of each form of clean-up.
func inBothForms(t *testing.T) map[string]place {
	t.Helper()
	places := make(map[string]place)
	for form, opts := range forms() {
		address := shared.Database(t)
		migrated(t, address, &MigrateOptions{Cleanup: form})
		d := deskAt(t, address, &opts, nil)
		for name, begin := range libraries(d) {
			places[fmt.Sprintf("%s, %v", name, form)] = place{d, begin}
		}
	}
	return places
}

func ownedPGX(t testing.TB, d *desk, level string) owned {
	t.Helper()
	ctx := t.Context()
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
	if err != nil {
		t.Fatal(err)
	}
	return owned{d.InTx(tx), func(sql string, args ...any) error { _, err := tx.Exec(ctx, sql, args...); return err },
		func() error { return tx.Commit(ctx) }, func() error { return tx.Rollback(ctx) }}
}

func ownedSQL(t testing.TB, d *desk, level string, mode pgx.QueryExecMode) owned {
	t.Helper()
	config := d.pool.Config().ConnConfig.Copy()
	config.DefaultQueryExecMode = mode
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil && level != "" {
		_, err = tx.Exec("SET TRANSACTION ISOLATION LEVEL " + level)
	}
	if err != nil {
		t.Fatal(err)
	}
	return owned{d.InSQLTx(tx), func(sql string, args ...any) error { _, err := tx.Exec(sql, args...); return err }, tx.Commit, tx.Rollback}
}

func TestAKeyCommitsWithTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for name, at := range inBothForms(t) {
		d, begin := at.desk, at.begin
		t.Run(name, func(t *testing.T) {
			ctx, id := t.Context(), "by "+name
			for _, commit := range []bool{false, true} {
				tx := begin(t, "")
				out, err := tx.tx.Claim(ctx, semel.Call{Key: key(id), Window: semel.Forever})
				want(t, out, err, semel.Fresh, "", nil)
				if err := tx.exec(count, id); err != nil {
					t.Fatal(err)
				}
				if err := tx.tx.SetResult(ctx, key(id), semel.Result{Kind: semel.Value, Data: []byte{0, 255, '"', '\\'}}); err != nil {
					t.Fatal(err)
				}
				if err := tx.tx.SetResult(ctx, key("another"), semel.Result{}); !errors.Is(err, semel.ErrInvalidRequest) {
					t.Errorf("the result of a key that is not ours: %v", err)
				}
				end := tx.rollback
				if commit {
					end = tx.commit
				}
				if err := end(); err != nil {
					t.Fatal(err)
				}
			}
			tx := begin(t, "")
			out, err := tx.tx.Claim(ctx, semel.Call{Key: key(id)})
			want(t, out, err, semel.Duplicate, "\x00\xff\"\\", nil)
			if err := tx.commit(); err != nil {
				t.Fatal(err)
			}
			d.wantEffects(t, id, 1)
		})
	}
}

func TestEveryDecisionPassesThroughTheCallersTransaction(t *testing.T) {
	t.Parallel()
	for name, at := range inBothForms(t) {
		d, begin := at.desk, at.begin
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			k := func(id string) semel.Key { return key(id + " by " + name) }
			claim := func(id string, lease time.Duration, hold bool) {
				answers := make([]semel.ClaimAnswer, 1)
				req := semel.ClaimRequest{Key: k(id), Owner: semel.Owner{Name: "holder", Nonce: 1}, Lease: lease, Window: time.Hour, Hold: hold, Fingerprint: semel.Fingerprint{1}}
				if err := d.store.Claim(ctx, []semel.ClaimRequest{req}, answers); err != nil || answers[0].Decision != semel.Fresh {
					t.Fatal(answers[0], err)
				}
			}
			claim("held", time.Hour, false)
			claim("unknown", time.Millisecond, true)
			claim("lost", time.Millisecond, false)
			eventually(t, "leases to end", func() bool {
				records := make([]semel.Record, 2)
				err := d.store.Look(ctx, []semel.Key{k("unknown"), k("lost")}, records)
				return err == nil && records[0].State == semel.Unknown && !records[1].LeaseEnd.After(time.Now())
			})
			tx := begin(t, "")
			defer func() { _ = tx.rollback() }()
			var calls []semel.Call
			for _, id := range []string{"held", "unknown", "lost", "new", "new", "late", "other payload"} {
				call := semel.Call{Key: k(id), Window: time.Hour}
				switch id {
				case "late":
					call.Time = time.Now().Add(-2 * time.Hour)
				case "other payload":
					call.Key, call.Fingerprint = k("held"), semel.Fingerprint{2}
				}
				calls = append(calls, call)
			}
			outcomes := tx.tx.ClaimBatch(ctx, calls)
			for i, c := range []struct {
				decision semel.Decision
				err      error
			}{
				{semel.InFlight, semel.ErrInFlight}, {semel.OutcomeUnknown, semel.ErrOutcomeUnknown}, {semel.Fresh, nil}, {semel.Fresh, nil},
				{semel.Duplicate, nil}, {semel.Late, semel.ErrLate}, {semel.Mismatch, semel.ErrMismatch},
			} {
				if outcomes[i].Decision != c.decision || !errors.Is(outcomes[i].Err, c.err) {
					t.Errorf("%s is %s (%v), want %s (%v)", calls[i].Key, outcomes[i].Decision, outcomes[i].Err, c.decision, c.err)
				}
			}
			var flight *semel.InFlightError
			if outcomes[2].Attempt != 2 || !errors.As(outcomes[0].Err, &flight) || flight.Holder != "holder" {
				t.Errorf("attempt %d, %v", outcomes[2].Attempt, outcomes[0].Err)
			}
		})
	}
}

func TestTransactionIsolationAboveReadCommittedIsRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	for name, begin := range libraries(d) {
		for _, level := range []string{"repeatable read", "serializable"} {
			tx := begin(t, level)
			_, err := tx.tx.Claim(t.Context(), semel.Call{Key: key(name)})
			if !errors.Is(err, semel.ErrInvalidRequest) {
				t.Errorf("%s at %s: %v", name, level, err)
			}
			if err := tx.rollback(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestCallersTransactionKeepsItsLockTimeout(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 30 * time.Millisecond}, nil)
	holder := ownedPGX(t, d, "")
	if _, err := holder.tx.Claim(t.Context(), semel.Call{Key: key("a")}); err != nil {
		t.Fatal(err)
	}
	for name, begin := range libraries(d) {
		tx := begin(t, "")
		_, err := tx.tx.Claim(t.Context(), semel.Call{Key: key("a")})
		if semel.Classify(err) != semel.ClassRetryable || stateOf(err) != lockNotAvailable {
			t.Errorf("%s: %v", name, err)
		}
		if err := tx.rollback(); err != nil {
			t.Error(err)
		}
		// A transaction that sets its own timeout keeps it.
		tx = begin(t, "")
		var shown string
		if err := tx.exec("SET LOCAL lock_timeout = '77ms'"); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.tx.Claim(t.Context(), semel.Call{Key: key("b")}); err != nil {
			t.Fatal(err)
		}
		if shown = tx.tx.on.lockWait; shown != "77ms" {
			t.Errorf("%s: lock_timeout is %s", name, shown)
		}
		if err := tx.rollback(); err != nil {
			t.Error(err)
		}
	}
	if err := holder.rollback(); err != nil {
		t.Fatal(err)
	}
}

// strangeError is the error of a driver other than pgx.
type strangeError struct{ state string }

func (e strangeError) Error() string    { return "strange" }
func (e strangeError) SQLState() string { return e.state }

func TestErrorsOfOtherDriversHaveTheirClass(t *testing.T) {
	t.Parallel()
	for state, class := range map[string]semel.Class{"40P01": semel.ClassRetryable, "42501": semel.ClassPermanent, "53100": semel.ClassRetryable} {
		err := rolledBack(driverError(strangeError{state}))
		if semel.Classify(err) != class || stateOf(err) != state || !errors.As(err, new(strangeError)) {
			t.Errorf("%s: %v is %v", state, err, semel.Classify(err))
		}
	}
	if err := rolledBack(driverError(errors.New("connection reset"))); semel.Classify(err) != semel.ClassRetryable {
		t.Error(err)
	}
}
