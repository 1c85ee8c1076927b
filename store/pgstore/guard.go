package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// Guard is a [semel.Guard] whose effects may write to the same database. A key,
// the writes of its effect and its result then commit or roll back together.
// There is no lease, and at no moment does the effect exist without the key.
//
// There are three entry points: [Guard.DoTx] for one message, [Guard.DoTxBatch]
// for many, and [Guard.InTx] for a transaction that the caller began. [Guard.Do]
// is for effects elsewhere.
//
// A Guard is safe for concurrent use and has nothing to close.
type Guard struct {
	*semel.Guard
	store *Store
	wait  time.Duration
	// commitTimeout is the maximum wait for a commit after its caller has gone.
	commitTimeout time.Duration
	optimism      optimism // if all keys are new
	mostly        optimism // if some are known
}

// NewGuard returns a guard around a store. Nil options are the zero options.
// Errors are those of [semel.NewGuard]. The options Name, Heartbeat
// and OnLeaseExpired have no effect on transactions, which have no lease. Lease limits the wait for a commit after its caller has gone.
func NewGuard(store *Store, opts *semel.GuardOptions) (*Guard, error) {
	if store == nil {
		return nil, fmt.Errorf("pgstore: NewGuard: the store is nil: %w", semel.ErrInvalidRequest)
	}
	if opts != nil && opts.OnLate == semel.LateRun && store.hasher.times != nil {
		return nil, fmt.Errorf("pgstore: GuardOptions.OnLate: LateRun cannot be kept where clean-up is by message time: whether an old key was forgotten is not known: %w", semel.ErrInvalidRequest)
	}
	inner, err := semel.NewGuard(store, opts)
	if err != nil {
		return nil, err
	}
	g := &Guard{Guard: inner, store: store, commitTimeout: semel.DefaultLease}
	if opts != nil {
		g.wait = opts.Wait
		if opts.Lease > 0 {
			g.commitTimeout = opts.Lease
		}
	}
	return g, nil
}

// TxFunc is an effect inside a transaction. Its writes through tx commit together
// with the key, or not at all. Effects elsewhere may repeat. A nil result means
// that there is no result.
//
// The guard may call it again for the same message, after all writes of the
// earlier call were rolled back. This happens if the server rolled the
// transaction back because of another one (SQLSTATE 40001 and 40P01). It also
// happens if the connection broke at the commit and nothing was committed.
//
// The guard ends the transaction: Commit and Rollback of tx return [ErrNotYours],
// which wraps semel.ErrInvalidRequest.
// The function may begin and end nested transactions, which are savepoints. A
// statement waits for locks up to Options.LockWait. SET LOCAL lock_timeout
// changes that for the rest of the transaction.
type TxFunc func(ctx context.Context, tx pgx.Tx) (result []byte, err error)

// DoTx claims the key, runs fn and stores the result of fn in one transaction, at
// READ COMMITTED. A duplicate gets the stored result, and fn does not run.
//
// While fn runs, another delivery of the key waits for the key's row, up to
// Options.LockWait. If this transaction commits, that delivery gets the result.
// If this one rolls back, it runs fn itself. If the wait is over, it gets an
// InFlightError. A key under a lease, of Do for instance, is in flight. The guard
// retries such keys up to GuardOptions.Wait.
//
// DoTx blocks for these waits, for a free connection, for three round trips and
// for fn. It keeps the connection until it returns. If fn uses the guard or the
// store too, the pool needs another connection.
//
// An error of fn rolls back everything, including the key, and the next delivery
// runs fn again. An error made by [semel.Permanent] is then recorded as the
// result of the key, in its own transaction. A panic rolls back and continues. If
// fn ignores the error of a statement, DoTx returns that error, because
// PostgreSQL commits nothing after it.
//
// The errors are those of fn and of [semel.Guard.Do], except ErrLeaseLost. A
// database error before the commit means that nothing was changed. If the answer
// to the commit is lost, the guard claims the key once more, on another
// connection:
//
//   - If the commit happened, this delivery is a Duplicate with its own result.
//   - If it did not happen, fn runs again.
//   - If this answer is lost too, or the first transaction has not ended yet, DoTx
//     returns ErrOutcomeUnknown.
//
// The end of ctx does not cancel a commit: DoTx waits for it up to
// GuardOptions.Lease.
//
// The key's window begins with the transaction.
func (g *Guard) DoTx(ctx context.Context, key semel.Key, fn TxFunc) (semel.Outcome, error) {
	return g.DoTxCall(ctx, semel.Call{Key: key}, fn)
}

// DoTxCall is DoTx for a call with its own fingerprint, window or time.
func (g *Guard) DoTxCall(ctx context.Context, call semel.Call, fn TxFunc) (semel.Outcome, error) {
	run := oneByOne(fn)
	var out semel.BatchOutcome
	err := retry.Poll(ctx, time.Now().Add(g.wait), func() bool {
		b := g.newBatch([]semel.Call{call}, run)
		b.all(ctx, []int{0})
		out = b.outcomes[0]
		return out.Decision != semel.InFlight
	})
	if err != nil {
		return semel.Outcome{}, fmt.Errorf("pgstore: wait for %s: %w", call.Key, causeOf(ctx))
	}
	return out.Outcome, out.Err
}

// DoTxBatch is [Guard.DoTx] for many calls in one transaction. One statement claims all keys, the
// effect runs for the new ones, and one commit makes everything durable. The outcomes are in the
// order of the calls, with the errors of DoTx. DoTxBatch does not wait for keys under a lease.
//
// An item that fails does not affect the others: they commit without it. If the
// effect fails without saying which item failed, each item runs in its own
// transaction. The effect may therefore run several times, with fewer items.
//
// If a key occurs twice, the calls are decided in order, the second one in a
// later transaction. Batches that share keys do not deadlock on their keys. If
// they deadlock on the effect's writes, the server rolls one of them back, and
// the guard repeats it.
func (g *Guard) DoTxBatch(ctx context.Context, calls []semel.Call, fn BatchEffect) []semel.BatchOutcome {
	run, most := effect(noEffect), maxStatement
	if fn != nil {
		run, most = fn.batch()
	}
	b := g.newBatch(calls, run)
	b.queue, _ = fn.(TxQueueFunc)
	b.inParts(ctx, most)
	return b.outcomes
}

// sleep waits for d or until ctx ends. It then returns causeOf(ctx).
func sleep(ctx context.Context, d time.Duration) error {
	if retry.Sleep(ctx, d) != nil {
		return causeOf(ctx)
	}
	return nil
}

// causeOf returns the cause of an ended context. It keeps only the text of a
// PermanentError, which belongs to another message: callers acknowledge permanent
// failures.
func causeOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if isPermanent(cause) {
		return fmt.Errorf("%w: %v", ctx.Err(), cause)
	}
	return cause
}
