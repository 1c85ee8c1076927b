package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// Tx claims keys in a transaction that its caller began and ends. The keys are
// done when it commits, and free again when it rolls back. It belongs to a transaction and, like
// the transaction, to one goroutine at a time.
//
// The transaction must be at READ COMMITTED, the server's default. It must be
// rolled back after a database error, as after any other failed statement. If it
// has no lock_timeout, the first call sets it to Options.LockWait for the rest of
// the transaction. If another transaction holds a key for longer, the error has
// SQLSTATE 55P03 and wraps ErrStoreUnavailable.
//
// Keys that one call claims are locked in one order. Transactions that claim the
// same keys in several calls may deadlock, as with any rows. The server then
// fails one of them with SQLSTATE 40P01, and its caller may start again.
type Tx struct {
	guard   *Guard
	on      session
	checked bool
	fresh   map[semel.Digest]struct{} // granted in this transaction
}

// InTx returns a Tx for a pgx transaction. It sends nothing yet.
func (g *Guard) InTx(tx pgx.Tx) *Tx { return g.inTx(tx) }

// InSQLTx returns a Tx for a database/sql transaction, with any PostgreSQL
// driver. It sends nothing yet.
func (g *Guard) InSQLTx(tx *sql.Tx) *Tx { return g.inTx(&sqlQuerier{tx, pgtype.NewMap()}) }

func (g *Guard) inTx(q querier) *Tx {
	return &Tx{guard: g, on: session{Store: g.store, q: q, lockWait: g.store.wait}, fresh: make(map[semel.Digest]struct{})}
}

// Claim claims a key. After the decision Fresh, the caller writes the message's
// effect in the same transaction and commits. A Duplicate has its stored result.
// A claim repeated after the commit is a Duplicate too, because its effect
// committed with it. Other decisions are errors, as for [semel.Guard.Do]; they
// leave the transaction unchanged.
//
// Claim blocks for one round trip, or two at the first call, and while another
// transaction holds the key.
func (t *Tx) Claim(ctx context.Context, call semel.Call) (semel.Outcome, error) {
	out := t.ClaimBatch(ctx, []semel.Call{call})[0]
	return out.Outcome, out.Err
}

// ClaimBatch is Claim for many calls in one round trip. The outcomes are in the
// order of the calls. A key that occurs twice is a Duplicate the second time. A
// database error is the error of each call.
func (t *Tx) ClaimBatch(ctx context.Context, calls []semel.Call) []semel.BatchOutcome {
	outcomes := make([]semel.BatchOutcome, len(calls))
	reqs, answers := make([]semel.ClaimRequest, len(calls)), make([]semel.ClaimAnswer, len(calls))
	for i := range calls {
		reqs[i] = t.guard.Request(&calls[i])
		reqs[i].Done = true
	}
	asked := time.Now()
	if err := t.claim(ctx, reqs, answers); err != nil {
		for i := range outcomes {
			outcomes[i].Err = err
			t.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: calls[i].Key, Err: err})
		}
		return outcomes
	}
	elapsed := time.Since(asked)
	for i := range answers {
		call, a, out := &calls[i], &answers[i], &outcomes[i]
		if a.Err != nil {
			t.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: call.Key, Err: a.Err})
			out.Err = a.Err
			continue
		}
		out.Outcome, out.Err = t.guard.Settle(ctx, call, a, elapsed)
	}
	return outcomes
}

// claim claims keys that become done with the transaction.
func (t *Tx) claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if err := t.on.enter(ctx, "claim", len(reqs), len(answers)); err != nil {
		return err
	}
	defer t.on.leave()
	err := t.check(ctx)
	if err == nil {
		err = t.on.claim(ctx, reqs, answers)
	}
	if err != nil {
		return fmt.Errorf("pgstore: claim in a transaction: %w", err)
	}
	for i := range answers {
		if answers[i].Decision == semel.Fresh {
			t.fresh[t.on.hasher.Key(reqs[i].Key)] = struct{}{}
		}
	}
	return nil
}

// checkSQL reads the isolation level of the transaction and limits its lock
// waits.
const checkSQL = `SELECT current_setting('transaction_isolation') AS level,
	set_config('lock_timeout', CASE current_setting('lock_timeout') WHEN '0' THEN $1 ELSE current_setting('lock_timeout') END, true) AS wait`

// check refuses a transaction whose claims could not see what others commit. At
// such an isolation level, a key that another transaction inserts first is an
// error instead of a duplicate. An old snapshot also hides rows that ended.
func (t *Tx) check(ctx context.Context) error {
	if t.checked {
		return nil
	}
	type setting struct{ level, wait string }
	settings, err := collect(ctx, t.on, checkSQL, nil, func(row pgx.CollectableRow) (s setting, err error) {
		return s, row.Scan(&s.level, &s.wait)
	})
	if err != nil {
		return err
	}
	if level := settings[0].level; level != "read committed" {
		return fmt.Errorf("the transaction is at %s; begin it at read committed: %w", level, semel.ErrInvalidRequest)
	}
	t.on.lockWait, t.checked = settings[0].wait, true
	return nil
}

// SetResult stores the result of a key that was Fresh in this transaction, to
// replay it to duplicates. If it is larger than the store keeps, SetResult
// returns ErrResultTooLarge before anything is sent. It blocks for one round
// trip. If ROLLBACK TO SAVEPOINT undid the claim, claim the key again first:
// another transaction may have it by now.
func (t *Tx) SetResult(ctx context.Context, key semel.Key, result semel.Result) error {
	if err := t.on.enter(ctx, "set result", 0, 0); err != nil {
		return err
	}
	defer t.on.leave()
	req := semel.CompleteRequest{Key: key, Result: result, Window: time.Second} // the window of the claim stays in force
	if err := req.Validate(t.on.opts.MaxResult); err != nil {
		return fmt.Errorf("pgstore: set result: %w", err)
	}
	digest := t.on.hasher.Key(key)
	if _, ok := t.fresh[digest]; !ok {
		return fmt.Errorf("pgstore: set result: %s was not claimed in this transaction: %w", key, semel.ErrInvalidRequest)
	}
	args := []any{pgtype.FlatArray[[16]byte]{digest}, pgtype.FlatArray[[]byte]{encodeResult(result)}}
	stored, err := collect(ctx, t.on, t.on.sql.keep, args, pgx.RowTo[bool])
	if err != nil {
		return fmt.Errorf("pgstore: set result: %w", err)
	}
	if len(stored) != 1 {
		return fmt.Errorf("pgstore: set result: %s is no longer there: %w", key, semel.ErrInvalidRequest)
	}
	return nil
}
