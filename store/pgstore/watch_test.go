package pgstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// ways lead from one transaction to another in a single text, so that a transaction is open
// before and after.
var ways = []string{
	"ROLLBACK; BEGIN", "rollback and chain", "COMMIT; START TRANSACTION", "COMMIT AND/**/CHAIN", "ABORT;begin", "END AND CHAIN",
	"ROLLBACK; BEGIN; SELECT 1",
}

// TestAnEffectCannotContinueInAnotherTransaction has effects that end their
// transaction and immediately begin another. It would be committed without the
// key, or with a key whose effect was rolled back.
func TestAnEffectCannotContinueInAnotherTransaction(t *testing.T) {
	t.Parallel()
	for name, migrate := range map[string]*MigrateOptions{"plain": nil, "message time": {Cleanup: CleanupMessageTime}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := &Options{}
			if migrate != nil && migrate.Cleanup == CleanupMessageTime {
				hour := time.UnixMilli(time.Now().UnixMilli() / 36e5 * 36e5)
				opts.MessageTime = func(semel.Key) (time.Time, bool) { return hour, true }
			}
			address := shared.Database(t)
			for _, mode := range []string{"cache_describe", "simple_protocol"} {
				d := deskWith(t, address+"&default_query_exec_mode="+mode, migrate, opts)
				for i, sql := range ways {
					id := func(of string) string { return fmt.Sprint(of, mode, i) }
					for of, do := range goingOn(d, sql, id) {
						if err := do(t.Context()); !errors.Is(err, semel.ErrOutcomeUnknown) {
							t.Errorf("%s: %s in %s: %v", mode, sql, of, err)
						}
					}
				}
				d.wantIdle(t)
			}
		})
	}
}

// goingOn are effects that send a text. Each returns the error of a call that the
// text may have left without its effect.
func goingOn(d *desk, sql string, id func(of string) string) map[string]func(ctx context.Context) error {
	both := func(of string) []semel.Call { return []semel.Call{{Key: key(id(of))}, {Key: key(id(of + " after"))}} }
	one := func(of string, send TxFunc) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := d.DoTx(ctx, key(id(of)), send)
			return err
		}
	}
	return map[string]func(ctx context.Context) error{
		"Exec": one("exec", func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, sql)
			return nil, err
		}),
		"Exec with a result": one("result", func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, sql)
			return []byte("done"), err
		}),
		"Exec and failing": one("fails", func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, sql)
			return nil, errors.Join(err, errors.New("failed"))
		}),
		"Conn": one("conn", func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Conn().Exec(ctx, sql)
			return nil, err
		}),
		"TxBatchFunc": func(ctx context.Context) error {
			out := d.DoTxBatch(ctx, both("batch"), TxBatchFunc(func(ctx context.Context, tx pgx.Tx, _ []*semel.BatchItem) error {
				_, err := tx.Exec(ctx, sql)
				return err
			}))
			return out[1].Err
		},
		"TxItemFunc": func(ctx context.Context) error {
			first := true
			out := d.DoTxBatch(ctx, both("each"), TxItemFunc(func(ctx context.Context, tx pgx.Tx, _ *semel.BatchItem) (err error) {
				if first {
					_, err = tx.Exec(ctx, sql)
				}
				first = false
				return err
			}))
			return out[1].Err
		},
	}
}

// TestErrorAfterACommitLeavesTheOutcomeUnknown commits the key, and then fails in the
// next transaction. The commit must not be reported as rolled back.
func TestErrorAfterACommitLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	for _, sql := range []string{"COMMIT; BEGIN; SELECT 1/0", "COMMIT AND CHAIN; SELECT 1/0"} {
		out := d.DoTxBatch(t.Context(), []semel.Call{{Key: key(sql)}, {Key: key(sql + " after")}}, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, _ []*semel.BatchItem) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}))
		for i := range out {
			if !errors.Is(out[i].Err, semel.ErrOutcomeUnknown) {
				t.Errorf("%s: %s, %v", sql, out[i].Decision, out[i].Err)
			}
		}
	}
}

// TestStatementsCannotEndTheirTransaction also covers statements for which the
// server begins an implicit transaction.
func TestStatementsCannotEndTheirTransaction(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	for _, mode := range []string{"cache_describe", "simple_protocol"} {
		d := deskWith(t, address+"&default_query_exec_mode="+mode, nil, nil)
		makeOptimistic(t, d)
		for _, sql := range []string{"ROLLBACK", "BEGIN", "COMMIT", "END", "ABORT", "-- now\nEND"} {
			call := semel.Call{Key: key(mode + sql)}
			_, err := d.queueOne(t.Context(), call, func(b *pgx.Batch) {
				b.Queue(sql)
				b.Queue(count, call.Key.ID)
			})
			if sql == "BEGIN" { // which the server accepts
				if err != nil {
					t.Errorf("%s: %s: %v", mode, sql, err)
				}
				d.wantEffects(t, call.Key.ID, 1)
			} else if !errors.Is(err, semel.ErrOutcomeUnknown) {
				t.Errorf("%s: %s: %v", mode, sql, err)
			}
		}
		d.wantIdle(t)
	}
}

// TestTransactionKeywordsInsideStatementsAreAllowed sends such words where they end nothing.
func TestTransactionKeywordsInsideStatementsAreAllowed(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	for _, sql := range []string{
		"SELECT 'ROLLBACK; BEGIN'", "DO $$ BEGIN PERFORM 1; END $$", "SELECT 1 AS transaction", "SELECT 1 /* COMMIT AND CHAIN */", "SELECT 1; -- begin",
	} {
		out, err := d.DoTx(t.Context(), key(sql), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			savepoint, err := tx.Begin(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := savepoint.Exec(ctx, sql); err != nil {
				return nil, err
			}
			if err := savepoint.Commit(ctx); err != nil {
				return nil, err
			}
			return counting(sql)(ctx, tx)
		})
		want(t, out, err, semel.Fresh, "result of "+sql, nil)
	}
	failed := errors.New("failed")
	_, err := d.DoTx(t.Context(), key("failed"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if _, err := tx.Exec(ctx, "DO $$ BEGIN PERFORM 1/0; END $$"); err == nil {
			t.Error("no error")
		}
		return nil, failed
	})
	if !errors.Is(err, failed) || errors.Is(err, semel.ErrOutcomeUnknown) {
		t.Errorf("got %v", err)
	}
	for _, sql := range []string{"SELECT 1/0 AS chain", "SELECT chain/0 FROM (SELECT 1 AS chain) AS transaction"} {
		_, err := d.DoTx(t.Context(), key("failing "+sql), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, sql)
			return nil, errors.Join(failed, err)
		})
		if !errors.Is(err, failed) || errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Errorf("%s: got %v", sql, err)
		}
	}
}

func TestStatementsThatEndATransactionAreFound(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string][2]bool{
		"INSERT INTO commits (ended, beginning, chain_id) VALUES ($1, $2, 'x')":  {},
		"UPDATE t SET a = CASE WHEN b THEN 1 ELSE 2 END WHERE id = $1;":          {},
		"INSERT INTO transactions (start, recall, callback) VALUES ($1, $2, $3)": {},
		"INSERT INTO transaction (chain, prepare, call) VALUES ($1, $2, $3)":     {},
		"": {}, "e": {}, "END": {false, true}, "\tend ;": {false, true}, "SELECT 1;END": {false, true}, "/**/END": {false, true},
		"CALL p()": {false, true}, "Rollback": {false, true}, "SELECT 1;COMMIT;": {false, true},
		"COMMIT AND CHAIN": {true, true}, "ROLLBACK;BEGIN": {true, true}, "END;START TRANSACTION": {true, true}, "PREPARE TRANSACTION 'x'": {true, true},
	} {
		if got := [2]bool{mayBegin(sql), mayEnd(sql)}; got != want {
			t.Errorf("%q: %v, want %v", sql, got, want)
		}
	}
}

// deskWith creates the tables of a form at an address, unless they exist.
func deskWith(t testing.TB, address string, migrate *MigrateOptions, opts *Options) *desk {
	t.Helper()
	p := pool(t, address)
	migrated(t, address, migrate)
	if _, err := p.Exec(t.Context(), "CREATE TABLE IF NOT EXISTS effects (id text PRIMARY KEY, count int NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return openDesk(t, p, opts, nil)
}

func TestNilFunctionIsRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	ctx, calls := t.Context(), []semel.Call{{Key: key("a")}, {Key: key("b")}}
	var errs []error
	_, err := d.DoTx(ctx, key("a"), nil)
	errs = append(errs, err)
	for _, fn := range []BatchEffect{nil, TxBatchFunc(nil), TxItemFunc(nil), TxQueueFunc(nil)} {
		outcomes := d.DoTxBatch(ctx, calls, fn)
		errs = append(errs, outcomes[0].Err, outcomes[1].Err)
	}
	for i, err := range errs {
		if !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	out, err := d.DoTx(ctx, key("a"), counting("a"))
	want(t, out, err, semel.Fresh, "result of a", nil)
}
