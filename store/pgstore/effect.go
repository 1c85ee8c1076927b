package pgstore

import (
	"context"
	"errors"
	"fmt"

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
// An effect sets Data of an item to its result; nil means that it has no result. It
// sets Err of an item that failed. An error that the function returns applies to
// all items of that call. Both kinds of error have the same meaning as an error
// of a [TxFunc].
//
// An error that says that the server is busy, full or stopping is an item's own only
// once in a call. The second time, all items that are left fail with it: each of them
// could wait as long.
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

// TxQueueFunc is an effect whose statements are known in advance. It queues the
// statements of all fresh items, one for each item or one for all. If all keys are
// new, which is the usual case, keys and statements are sent together and commit
// in one round trip.
//
// If the server refuses the statement of an item, that item fails with a
// [StatementError], and the others are sent again without it. One statement may also be of
// several items: see [Statements.Apart].
//
// The function may be called again, with no statements, and for items whose keys turn out
// to be known or in flight: their statements then have no effect. So it must change nothing
// but q. A finding about an item belongs into the item's Err, which is gone with such a
// call.
//
// Statements must not begin or end a transaction. A statement that contains such a word is
// sent as by a [TxBatchFunc], which detects it. The function may set Data and Err of items.
// Its queries may have callbacks, which may set them too. Each of these costs two
// more round trips.
//
// The end of ctx does not cancel statements that were sent together with their
// keys. They are waited for like a commit.
type TxQueueFunc func(q *Statements, fresh []*semel.BatchItem) error

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

// failedOf returns the items that failed.
func failedOf(items []*semel.BatchItem) itemErrors {
	var failed itemErrors
	for _, item := range items {
		if item.Err != nil {
			failed = append(failed, item)
		}
	}
	return failed
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
		if failed := failedOf(fresh); len(failed) > 0 {
			for _, item := range failed {
				item.Err = u.verdict(ctx, item.Err)
			}
			return nil, failed
		}
		all := make([]kept, len(fresh))
		for i, item := range fresh {
			all[i] = kept{item, valueOf(item.Data)}
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
	return together(queue.Send), maxStatement
}

// Send queues the statements and sends them in the transaction of a [TxBatchFunc],
// which may have written something before. It sets Err of the item whose statement is
// refused.
func (queue TxQueueFunc) Send(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
	var q Statements
	if own, ok := tx.(*effectTx); ok {
		q.apart = own.watch.apart
	}
	if err := queue(&q, fresh); err != nil {
		return err
	}
	if len(q.owners) == 0 || len(failedOf(fresh)) > 0 {
		return nil // the transaction is repeated without the failed items
	}
	at, err := q.read(tx.SendBatch(ctx, &q.batch), 0)
	switch {
	case err == nil || q.blame(at, err):
		return nil
	case q.shared(at, err):
		return &sharedError{err}
	}
	return fmt.Errorf("pgstore: statements: %w", rolledBack(ofEffect(err)))
}

// Statements are the statements of a [TxQueueFunc]. The server executes them in their
// order.
type Statements struct {
	batch  pgx.Batch
	owners []*semel.BatchItem // of each statement; nil for one of several items
	// apart means that each statement must be of one item. asked means that the function
	// knows.
	apart, asked bool
}

// Queue adds a statement of an item, or of several items if item is nil. If the server
// refuses a statement of several items, each item is processed in a transaction of its
// own, unless the function uses Apart.
func (q *Statements) Queue(item *semel.BatchItem, sql string, args ...any) *pgx.QueuedQuery {
	q.owners = append(q.owners, item)
	return q.batch.Queue(sql, args...)
}

// Apart reports whether each statement must be of one item. It is false at first. If the
// server then refuses a statement of several items, the function is called again for the
// same items, and Apart is true: the guard finds out whose statement is refused.
func (q *Statements) Apart() bool {
	q.asked = true
	return q.apart
}

// sharedError is the error of a statement of several items. The function can queue a
// statement for each of them instead.
type sharedError struct{ err error }

// Error implements error.
func (e *sharedError) Error() string { return "pgstore: statement of several items: " + e.err.Error() }

// Unwrap returns the server's error.
func (e *sharedError) Unwrap() error { return e.err }

// shared reports whether the server refused a statement of several items, and the
// function can queue a statement for each of them instead.
func (q *Statements) shared(at int, err error) bool {
	if !q.asked || q.apart || stateOf(err) == "" || repeatable(err) || errors.Is(failure(err), semel.ErrOutcomeUnknown) {
		return false
	}
	text, ofText := unprepared(err)
	for i, owner := range q.owners {
		if owner == nil && (i == at && !ofText || ofText && q.batch.QueuedQueries[i].SQL == text) {
			return true
		}
	}
	return false
}

// read reads the answers to the statements, beginning with statement at, and closes the
// batch. After an error it returns the statement that failed. If all were executed, the
// commit failed.
func (q *Statements) read(br pgx.BatchResults, at int) (failed int, err error) {
	queries := q.batch.QueuedQueries
	for ; at < len(queries) && err == nil; at++ {
		if fn := queries[at].Fn; fn != nil {
			err = fn(br)
		} else {
			_, err = br.Exec()
		}
	}
	if err == nil {
		return at, br.Close()
	}
	for _, later := range queries[at:] {
		later.Fn = nil // the callbacks after an error are not called
	}
	return at - 1, errors.Join(err, closed(br, err))
}

// blame sets Err of the item whose statement the server refused, and of all items with
// the same statement if it refused the text. It reports false if the error may not be
// about one of them.
func (q *Statements) blame(at int, err error) bool {
	code := stateOf(err)
	if code == "" || errors.Is(failure(err), semel.ErrOutcomeUnknown) {
		return false
	}
	queries := q.batch.QueuedQueries
	text, ofText := unprepared(err)
	if !ofText && at < len(queries) {
		text, ofText = queries[at].SQL, refusesText(code)
	}
	said, blamed := &StatementError{rolledBack(ofEffect(err))}, false
	for i, owner := range q.owners {
		if owner != nil && (i == at && !ofText || ofText && queries[i].SQL == text) {
			owner.Err, blamed = said, true
		}
	}
	return blamed
}

// unprepared returns the text of the statement that could not be prepared. pgx prepares
// the statements of a batch before it sends the first one, whose answer is then the error.
func unprepared(err error) (sql string, ok bool) {
	preparing, ok := errors.AsType[pgx.ErrPreprocessingBatch](err)
	return preparing.SQL(), ok
}
