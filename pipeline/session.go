package pipeline

import (
	"context"

	"github.com/semel-dev/semel"
)

// Session decides, delivers and commits. Many goroutines call its methods, each with its
// own items. [TwoPhase] is one, [NewLossy] returns another. Other packages can have sessions of
// their own, with the exported names of this package alone.
type Session interface {
	// Process decides the items, delivers the fresh ones and commits. It sets
	// Decision, Result, Attempt and Err of each item. It blocks until each outcome is
	// as durable as the session promises.
	//
	// The items of a group are adjacent and in order. Without the trait Ordered, there
	// is one item of each group. The session does not deliver an item behind one that
	// failed, and sets its Err to ErrBehind.
	//
	// An item with a nil Err is settled. An item with an Err may come again. Until then
	// the session keeps in Held what it holds for the item, such as a claim. Err is the
	// unchanged error of the sink or, for an item that was not delivered, one of these:
	//   - *semel.InFlightError: another holder's lease has not ended;
	//   - semel.ErrMismatch or semel.ErrLate;
	//   - semel.ErrOutcomeUnknown with the Decision OutcomeUnknown: the key is unknown, and
	//     a person must resolve it;
	//   - *StoreError: the store failed. The item was not delivered, unless the error
	//     wraps semel.ErrOutcomeUnknown;
	//   - semel.ErrLeaseLost: another holder took over the key during the delivery and
	//     decides its outcome.
	//
	// The slice and the items belong to the runner again when Process returns.
	Process(ctx context.Context, items []*Item)

	// Abandon gives up what the session holds for items that will not come again,
	// because they were parked, returned to the source, or lost with their partition.
	// It sets Held to nil. The session may hold nothing for some of the items. Abandon
	// blocks for at most one round trip. It returns no error, because a claim that was
	// not released ends with its lease.
	Abandon(ctx context.Context, items []*Item)

	// BindScope calls semel.BindScope for the session's store. The runner calls it before
	// the session gets the first message. A session without a store returns nil.
	BindScope(ctx context.Context, scope string, owner semel.ScopeOwner) error

	// Traits describes the batches that the session takes: the traits of its sink.
	Traits() SinkTraits

	// Close closes the session and its sink. The runner calls it once, after the last
	// Process has returned.
	Close(ctx context.Context) error
}

// PipelinedSession is a Session that decides a batch before the previous batch is
// durable. If its traits have Ordered, the runner calls Begin instead of Process.
type PipelinedSession interface {
	Session

	// Prepare does the work that an item needs once, in any order. The goroutines that
	// read call it when the items have their keys. The session must also accept items
	// that were not prepared.
	Prepare(items []*Item)

	// Begin starts processing a batch. It returns before the batch is durable; Wait
	// blocks until it is. after is the last batch for which the caller has not called
	// Wait, or nil. Its items precede these in their group. If an item of that batch
	// was not delivered and comes again, Begin delivers none of these, and sets their
	// Err to ErrBehind. The slice and the items belong to the session until Wait has
	// returned.
	Begin(ctx context.Context, items []*Item, after Batch) Batch
}

// Batch is a batch that a PipelinedSession processes. The goroutine that called Begin
// calls these methods, and calls Wait once.
type Batch interface {
	// Done reports whether Wait would return immediately.
	Done() bool
	// Wait blocks until the outcome of each item is durable.
	Wait()
}

// StoreError is the Err of an item whose store failed.
type StoreError struct{ Err error }

// Error implements error.
func (e *StoreError) Error() string { return e.Err.Error() }

// Unwrap returns the store's error.
func (e *StoreError) Unwrap() error { return e.Err }
