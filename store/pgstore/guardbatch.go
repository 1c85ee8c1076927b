package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// maxSavepoints is the most savepoints in one transaction. From 64 on the
// server's sessions look them up in a place that they share, and stall.
const maxSavepoints = 50

// TxBatchFunc is the effect of many calls at once, inside one transaction:
// those whose keys were new, in the order of the batch. It sets Data or Err of
// each item as a [TxFunc] would return them; an error that it returns is the
// error of all. What is said of a TxFunc holds for it too.
type TxBatchFunc func(ctx context.Context, tx pgx.Tx, fresh []*semel.Item) error

// DoTxBatch is [Guard.DoTx] for many calls in one transaction: their keys are
// claimed with one statement, fn runs once for all that are new, and all commit
// together. The outcomes are in the order of the calls; their errors are those
// of DoTx. It does not wait for keys that a lease holds.
//
// Where an item fails the transaction is rolled back, and done again without
// it, so that the others commit; where fn does not say which item failed, each
// is done in a transaction of its own. So fn may be called several times, with
// fewer items.
//
// A key that occurs twice among the calls is decided in order, the second in a
// transaction after the first. Batches that share keys do not dead-lock by
// their keys; where they do by what fn writes, the server rolls one back and
// it is done again.
func (g *Guard) DoTxBatch(ctx context.Context, calls []semel.Call, fn TxBatchFunc) []semel.BatchOutcome {
	b := g.newBatch(calls, together(fn))
	b.inParts(ctx, maxStatement)
	return b.outcomes
}

// DoTxEach is [Guard.DoTx] for many calls in few transactions: fn runs for one
// call after the other, in their order, each behind a savepoint, so that one
// that fails leaves what the others did. At most 50 calls share a transaction;
// savepoints that fn itself begins come on top.
// It costs a round trip more for each call than [Guard.DoTxBatch], and saves
// doing the others again where one fails.
func (g *Guard) DoTxEach(ctx context.Context, calls []semel.Call, fn func(ctx context.Context, tx pgx.Tx, call *semel.Call) (result []byte, err error)) []semel.BatchOutcome {
	b := g.newBatch(calls, behindSavepoints(fn))
	b.inParts(ctx, maxSavepoints)
	return b.outcomes
}

// effect is what is done in a transaction that has claimed its keys. It returns
// the keys to commit; an error rolls all back. Items that it leaves out have
// their Err, and their keys are free again.
type effect func(ctx context.Context, u *unit, fresh []*semel.Item) ([]kept, error)

// itemErrors is the error of an effect that says which items failed.
type itemErrors []*semel.Item

// Error implements error.
func (e itemErrors) Error() string {
	return fmt.Sprintf("%d items failed, the first with: %v", len(e), e[0].Err)
}

// Unwrap returns the items' errors.
func (e itemErrors) Unwrap() []error {
	errs := make([]error, len(e))
	for i, item := range e {
		errs[i] = item.Err
	}
	return errs
}

// noEffect is the effect where the caller gave none: it is refused, and its keys
// stay free.
func noEffect(context.Context, *unit, []*semel.Item) ([]kept, error) {
	return nil, fmt.Errorf("pgstore: the function that takes the effect is nil: %w", semel.ErrInvalidRequest)
}

func oneByOne(fn TxFunc) effect {
	if fn == nil {
		return noEffect
	}
	return together(func(ctx context.Context, tx pgx.Tx, fresh []*semel.Item) error {
		fresh[0].Data, fresh[0].Err = fn(ctx, tx)
		return nil
	})
}

func together(fn TxBatchFunc) effect {
	if fn == nil {
		return noEffect
	}
	return func(ctx context.Context, u *unit, fresh []*semel.Item) ([]kept, error) {
		if err := fn(ctx, &effectTx{Tx: u.tx, watch: &u.seen}, fresh); err != nil {
			return nil, err
		}
		var failed itemErrors
		all := make([]kept, len(fresh))
		for i, item := range fresh {
			if item.Err != nil {
				item.Err = u.verdict(ctx, item.Err)
				failed = append(failed, item)
			}
			all[i] = kept{item, valueOf(item.Data)}
		}
		if len(failed) > 0 {
			return nil, failed
		}
		return all, nil
	}
}

// valueOf is the result of an effect that went well.
func valueOf(data []byte) semel.Result {
	if data == nil {
		return semel.Result{}
	}
	return semel.Result{Kind: semel.Value, Data: data}
}

// failedResult is the result of an effect that failed for good.
func failedResult(err error) semel.Result {
	return semel.Result{Kind: semel.Failed, Data: []byte(err.Error())}
}

func isPermanent(err error) bool {
	var permanent *semel.PermanentError
	return errors.As(err, &permanent)
}

func behindSavepoints(fn func(context.Context, pgx.Tx, *semel.Call) ([]byte, error)) effect {
	if fn == nil {
		return noEffect
	}
	return func(ctx context.Context, u *unit, fresh []*semel.Item) ([]kept, error) {
		var all []kept
		for _, item := range fresh {
			savepoint, err := u.tx.Begin(ctx)
			if err != nil {
				return nil, fmt.Errorf("pgstore: savepoint: %w", rolledBack(err))
			}
			u.seen.cause = nil
			item.Data, item.Err = fn(ctx, &effectTx{Tx: savepoint, watch: &u.seen}, item.Call)
			item.Err = u.verdict(ctx, item.Err)
			switch {
			case item.Err == nil:
				err = savepoint.Commit(ctx)
				all = append(all, kept{item, valueOf(item.Data)})
			case u.lost() || u.ended() || ctx.Err() != nil:
				// No item's fault, and for none of them for good.
				return nil, fmt.Errorf("pgstore: rolled back at %s (%v): %w", item.Call.Key, item.Err, u.broken(ctx))
			case isPermanent(item.Err):
				err = savepoint.Rollback(ctx)
				all = append(all, kept{item, failedResult(item.Err)})
			case repeatable(u.seen.cause):
				return nil, item.Err
			default:
				if err = savepoint.Rollback(ctx); err == nil {
					err = u.forget(ctx, item.Call.Key)
				}
			}
			if err != nil {
				return nil, fmt.Errorf("pgstore: savepoint: %w", rolledBack(err))
			}
		}
		return all, nil
	}
}

// forget gives a key back that this transaction claimed.
func (u *unit) forget(ctx context.Context, key semel.Key) error {
	_, err := collect(ctx, u.session, u.sql.remove, []any{[16]byte(u.hasher.Key(key))}, pgx.RowTo[bool])
	return err
}

// inParts decides all calls, some in each transaction. A key that comes again
// is decided after the first of its calls has its outcome.
func (b *batch) inParts(ctx context.Context, most int) {
	todo := make([]int, len(b.calls))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		var again []int
		seen := make(map[semel.Key]bool, len(todo))
		now := slices.DeleteFunc(todo, func(i int) bool {
			key := b.calls[i].Key
			if seen[key] {
				again = append(again, i)
			}
			was := seen[key]
			seen[key] = true
			return was
		})
		for part := range slices.Chunk(now, most) {
			b.all(ctx, part)
		}
		todo = again
	}
}
