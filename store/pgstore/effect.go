package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// maxSavepoints is the maximum number of savepoints in one transaction. From 64
// on, PostgreSQL keeps them in shared memory, and its sessions stall.
const maxSavepoints = 50

// BatchEffect is the effect of [Guard.DoTxBatch]: a [TxBatchFunc], a [TxItemFunc]
// or a [TxQueueFunc]. All three get the items whose keys are new, in the order of
// the calls.
//
// An effect sets Data of an item to its result; nil means that there is none. It
// sets Err of an item that failed. An error that the function returns applies to
// all items of that call. Both kinds of error have the same meaning as an error
// of a [TxFunc].
type BatchEffect interface {
	// batch returns the effect for a batch of calls that share a transaction, and
	// the maximum number of calls that may share one.
	batch() (run effect, most int)
}

// TxBatchFunc runs once for all fresh items. If one of them fails, the
// transaction is rolled back, and fn runs again without that item. The rules of
// [TxFunc] apply.
type TxBatchFunc func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error

// TxItemFunc runs for one fresh item after another, each behind a savepoint. An
// item that fails loses its own work only. Each item takes two more round trips
// than with a [TxBatchFunc]. At most 50 items share a transaction. Savepoints
// that fn itself begins are not counted in this limit. The rules of [TxFunc]
// apply.
type TxItemFunc func(ctx context.Context, tx pgx.Tx, item *semel.BatchItem) error

// TxQueueFunc is an effect whose statements are known in advance. It adds the
// statements of all fresh items to a batch, one for each item or one for all. If
// all keys are new, which is the usual case, keys and statements are sent
// together and commit in one round trip.
//
// The function may be called again, with an empty batch. Its statements must not
// begin or end a transaction. A statement that contains such a word is sent as by
// a [TxBatchFunc], which detects it. The function may set Data and Err of items.
// Its queries may have callbacks, which may set them too. Each of these costs two
// more round trips.
//
// If a statement waits too long (SQLSTATE 55P03 or 57014), all calls of its
// transaction fail: waiting for each of them alone could take a time for each.
//
// The end of ctx does not cancel statements that were sent together with their
// keys. They are waited for like a commit.
type TxQueueFunc func(b *pgx.Batch, fresh []*semel.BatchItem) error

// effect is the work of a transaction after it has claimed its keys. It returns
// the keys to commit. An error rolls back all of them. Items that it leaves out
// have their Err set, and their keys are free again.
type effect func(ctx context.Context, u *guardTx, fresh []*semel.BatchItem) ([]kept, error)

// itemErrors is the error of an effect that says which items failed.
type itemErrors []*semel.BatchItem

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

// noEffect is the effect if the caller gave none. It fails, so that the keys stay
// free.
func noEffect(context.Context, *guardTx, []*semel.BatchItem) ([]kept, error) {
	return nil, fmt.Errorf("pgstore: the function that takes the effect is nil: %w", semel.ErrInvalidRequest)
}

func oneByOne(fn TxFunc) effect {
	if fn == nil {
		return noEffect
	}
	return together(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
		fresh[0].Data, fresh[0].Err = fn(ctx, tx)
		return nil
	})
}

func (fn TxBatchFunc) batch() (effect, int) {
	if fn == nil {
		return noEffect, maxStatement
	}
	return together(fn), maxStatement
}

func together(fn TxBatchFunc) effect {
	return func(ctx context.Context, u *guardTx, fresh []*semel.BatchItem) ([]kept, error) {
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

// valueOf is the result of an effect that succeeded.
func valueOf(data []byte) semel.Result {
	if data == nil {
		return semel.Result{}
	}
	return semel.Result{Kind: semel.Value, Data: data}
}

// failedResult is the result of an effect that failed permanently.
func failedResult(err error) semel.Result {
	return semel.Result{Kind: semel.Failed, Data: []byte(err.Error())}
}

func isPermanent(err error) bool {
	var permanent *semel.PermanentError
	return errors.As(err, &permanent)
}

func (fn TxItemFunc) batch() (effect, int) {
	if fn == nil {
		return noEffect, maxSavepoints
	}
	return behindSavepoints(fn), maxSavepoints
}

func behindSavepoints(fn TxItemFunc) effect {
	return func(ctx context.Context, u *guardTx, fresh []*semel.BatchItem) ([]kept, error) {
		var all []kept
		for _, item := range fresh {
			savepoint, err := u.tx.Begin(ctx)
			if err != nil {
				return nil, fmt.Errorf("pgstore: savepoint: %w", rolledBack(err))
			}
			u.seen.cause = nil
			if err := fn(ctx, &effectTx{Tx: savepoint, watch: &u.seen}, item); err != nil {
				item.Err = err
			}
			item.Err = u.verdict(ctx, item.Err)
			switch {
			case item.Err == nil:
				err = savepoint.Commit(ctx)
				all = append(all, kept{item, valueOf(item.Data)})
			case u.lost() || u.ended() || ctx.Err() != nil:
				// No item caused this error, and it is permanent for none.
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

// forget releases a key that this transaction claimed.
func (u *guardTx) forget(ctx context.Context, key semel.Key) error {
	_, err := collect(ctx, u.session, u.sql.remove, []any{[16]byte(u.hasher.Key(key))}, pgx.RowTo[bool])
	return err
}

func (queue TxQueueFunc) batch() (effect, int) {
	if queue == nil {
		return noEffect, maxStatement
	}
	return together(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
		var b pgx.Batch
		if err := queue(&b, fresh); err != nil {
			return err
		}
		if slices.ContainsFunc(fresh, func(item *semel.BatchItem) bool { return item.Err != nil }) {
			return nil // the transaction is repeated without them
		}
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("pgstore: statements: %w", rolledBack(ofEffect(err)))
		}
		return nil
	}), maxStatement
}
