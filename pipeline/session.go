package pipeline

import "context"

// Session decides, delivers and commits. Its methods are called by many
// goroutines at once, each with items of its own.
type Session interface {
	// Process decides the items, delivers the fresh ones and commits, and sets
	// Decision, Result, Attempt and Err of each. It blocks until the outcome
	// of each is as durable as the session promises.
	//
	// An item whose delivery failed may come again; what the session holds for
	// it until then, such as its claim, it keeps. Err has an error of the sink
	// as it is, and of what was not delivered:
	//   - *semel.InFlightError: another holder's lease runs;
	//   - semel.ErrMismatch, semel.ErrLate: what they say;
	//   - semel.ErrOutcomeUnknown with the Decision InDoubt: the key is
	//     unknown and somebody must resolve it;
	//   - *StoreError: the store did not do its part; nothing was delivered,
	//     unless it wraps semel.ErrOutcomeUnknown;
	//   - semel.ErrLeaseLost: another took the key over while the item was
	//     delivered, and decides its fate.
	//
	// Slice and items are the runner's again when it returns.
	Process(ctx context.Context, items []*Item)

	// Abandon gives up what the session holds for items that will not come
	// again: they were put aside, or are returned to the source. It blocks for
	// a round trip at most. A failure is mended by the end of the lease and
	// therefore only observed.
	Abandon(ctx context.Context, items []*Item)

	// Traits says how the session wants its items: those of its sink.
	Traits() SinkTraits

	// Close ends what the session, or its sink, has open. It is called once,
	// after the last Process returned.
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
	// Done reports whether Wait would return at once.
	Done() bool
	// Wait does the rest of Process.
	Wait()
}

// StoreError is the Err of an item whose store did not do its part.
type StoreError struct{ Err error }

// Error implements error.
func (e *StoreError) Error() string { return e.Err.Error() }

// Unwrap returns the store's error.
func (e *StoreError) Unwrap() error { return e.Err }
