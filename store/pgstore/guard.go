package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// Guard is a [semel.Guard] whose effects may be writes to the same database: a
// key, what was done for it, and its result then commit or roll back together,
// without lease and without a moment between effect and completion.
//
// It is safe for concurrent use and has nothing to close.
type Guard struct {
	*semel.Guard
	store *Store
	wait  time.Duration
	// patience is how long a commit is waited for when its caller has gone.
	patience time.Duration
	calm     calm
}

// NewGuard returns a guard of a store. Nil options are the zero options; errors
// are those of [semel.NewGuard]. Of the options, Name, Lease, Heartbeat,
// OnLeaseExpired and MaxJoin are about Do and DoBatch alone: a transaction has
// no lease.
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
	g := &Guard{Guard: inner, store: store, patience: semel.DefaultLease}
	if opts != nil {
		g.wait = opts.Wait
		if opts.Lease > 0 {
			g.patience = opts.Lease
		}
	}
	return g, nil
}

// TxFunc is an effect inside a transaction. All it writes by way of tx commits
// together with the key, or not at all; effects elsewhere may repeat. A nil
// result means that there is none.
//
// It may be called again for the same message: when the server rolled the
// transaction back because of another one (SQLSTATE 40001 and 40P01), and when
// the connection broke at the commit and the commit turns out not to have
// happened. Nothing is left of an earlier call then.
//
// The guard ends the transaction: Commit and Rollback of tx return [ErrNotYours].
// Nested transactions, which are savepoints, may be begun and ended. A
// statement waits for locks as long as Options.LockWait; SET LOCAL lock_timeout
// changes that for the rest of the transaction.
type TxFunc func(ctx context.Context, tx pgx.Tx) (result []byte, err error)

// DoTx claims the key, runs fn and stores fn's result in one transaction, at
// READ COMMITTED. A duplicate gets the stored result and fn does not run.
//
// While fn runs, another delivery of the key waits at the key's row, up to
// Options.LockWait: then it gets the result, or runs fn itself if this one was
// rolled back, or an InFlightError. A key that is held by a lease, of Do for
// instance, is in flight. Both are asked for again up to GuardOptions.Wait.
// DoTx blocks for that, for a free connection, and for three round trips and
// what fn does. It has the connection until it returns: if fn uses the guard or
// the store as well, the pool needs another.
//
// An error of fn rolls back everything, the key included, so that the next
// delivery runs fn again; one made by [semel.Permanent] is then recorded as the
// key's result in a transaction of its own. A panic rolls back and goes on. If
// fn swallows the error of a statement, without which the server does not go on
// in the transaction, DoTx returns that error.
//
// The errors are fn's own and those of [semel.Guard.Do], but for ErrLeaseLost,
// which cannot be. An error of the database before the commit means that
// nothing was changed. If the answer to the commit is lost, the guard asks for
// the key once more, on another connection: a commit that happened makes this
// delivery a Duplicate with the result that was stored, one that did not makes
// fn run again; only if that answer is lost too, or the first transaction still
// has not ended, DoTx returns ErrOutcomeUnknown. A commit is waited for also
// when ctx has ended meanwhile, as long as a lease.
//
// The key's window begins with the transaction.
func (g *Guard) DoTx(ctx context.Context, key semel.Key, fn TxFunc) (semel.Outcome, error) {
	return g.DoCallTx(ctx, semel.Call{Key: key}, fn)
}

// DoCallTx is DoTx for a call with a fingerprint, a window or a time of its
// own.
func (g *Guard) DoCallTx(ctx context.Context, call semel.Call, fn TxFunc) (semel.Outcome, error) {
	run := oneByOne(fn)
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		b := g.newBatch([]semel.Call{call}, run)
		b.all(ctx, []int{0})
		out := b.outcomes[0]
		left := g.wait - time.Since(start)
		if out.Decision != semel.InFlight || left <= 0 {
			return out.Outcome, out.Err
		}
		// Jitter keeps the waiters of one key apart.
		if err := sleep(ctx, min(left, pause/2+rand.N(pause))); err != nil {
			return semel.Outcome{}, fmt.Errorf("pgstore: wait for %s: %w", call.Key, err)
		}
	}
}

// DoTxBatch is [Guard.DoTx] for many calls in one transaction. One statement claims
// all keys, the effect runs for those that are new, and one commit makes all of it
// durable. The outcomes are in the order of the calls; their errors are those of
// DoTx. DoTxBatch does not wait for keys that a lease holds.
//
// An item that fails does not affect the others: they commit without it. If the
// effect fails without saying which item failed, each item is done in a transaction
// of its own. So the effect may run several times, with fewer items.
//
// A key that occurs twice among the calls is decided in order, the second time in a
// transaction after the first. Batches that share keys do not deadlock by their
// keys. If they deadlock by what the effect writes, the server rolls one of them
// back, and it is done again.
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

// sleep waits for d or the end of ctx, whose cause it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return causeOf(ctx)
	}
}

// causeOf returns why a context ended. Of a PermanentError, with which somebody
// ended it who had another message in hand, only the text stays: a caller may
// acknowledge what failed for good.
func causeOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if isPermanent(cause) {
		return fmt.Errorf("%w: %v", ctx.Err(), cause)
	}
	return cause
}
