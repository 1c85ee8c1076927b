package pipeline

import "context"

// Session decides, delivers and commits. Many goroutines call its methods, each with
// items of its own. [TwoPhase] and [Lossy] are sessions, and other packages have more:
// a session needs nothing but what this package exports.
type Session interface {
	// Process decides the items, delivers the fresh ones and commits. It sets
	// Decision, Result, Attempt and Err of each item. It blocks until the outcome of
	// each is as durable as the session promises.
	//
	// The items of a group stand together, in their order. If Traits has Ordered
	// unset, there is one item of each group. An item behind one that failed is not
	// delivered, and its Err is ErrBehind.
	//
	// With a nil Err the item is settled. An item with an Err may come again. What
	// the session holds for it until then, such as a claim, it keeps in Held. Err is
	// the sink's error as it is, or, for an item that was not delivered:
	//   - *semel.InFlightError: another holder's lease runs;
	//   - semel.ErrMismatch, semel.ErrLate: what they say;
	//   - semel.ErrOutcomeUnknown with the Decision InDoubt: the key is unknown, and
	//     a person must resolve it;
	//   - *StoreError: the store failed; nothing was delivered, unless it wraps
	//     semel.ErrOutcomeUnknown;
	//   - semel.ErrLeaseLost: another holder took the key over during the delivery,
	//     and decides what becomes of it.
	//
	// Slice and items belong to the runner again when Process returns.
	Process(ctx context.Context, items []*Item)

	// Abandon gives up what the session holds for items that will not come again:
	// they were parked, returned to the source, or lost with their partition. It sets
	// Held to nil. Among the items may be some for which nothing is held. Abandon
	// blocks for one round trip at most. It returns no error, because a claim that
	// cannot be given back ends with its lease.
	Abandon(ctx context.Context, items []*Item)

	// Traits says how the session wants its items: the traits of its sink.
	Traits() SinkTraits

	// Close closes what the session, or its sink, has open. The runner calls it once,
	// after the last Process has returned.
	Close(ctx context.Context) error
}

// PipelinedSession is a Session that takes pipelined batches: it decides a batch
// while the one before it is not yet durable. The runner uses Begin in place of
// Process if the session's traits have Ordered set.
type PipelinedSession interface {
	Session

	// Prepare does the part of the work that an item needs once, and in no order.
	// The goroutines that read call it when the items have their keys. An item may
	// be processed without.
	Prepare(items []*Item)

	// Begin starts processing a batch. It returns before the batch is durable; Wait
	// blocks until it is. after is the last batch that the caller began and did not
	// wait for, or nil: its items stand before these in their group. If one of them
	// was not delivered and comes again, none of these is delivered, and their Err
	// is ErrBehind. Slice and items belong to the session until Wait has returned.
	Begin(ctx context.Context, items []*Item, after Batch) Batch
}

// Batch is a batch that a PipelinedSession has begun. The goroutine that called
// Begin calls its methods, and calls Wait once.
type Batch interface {
	// Done reports whether Wait would return immediately.
	Done() bool
	// Wait does the rest of Process.
	Wait()
}

// StoreError is the Err of an item whose store failed.
type StoreError struct{ Err error }

// Error implements error.
func (e *StoreError) Error() string { return e.Err.Error() }

// Unwrap returns the store's error.
func (e *StoreError) Unwrap() error { return e.Err }
