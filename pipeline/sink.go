package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// Sink delivers messages to a target. Many goroutines call Deliver, each with its own
// items.
type Sink interface {
	// Deliver delivers items. It sets the Err of each item, and its Result if there is
	// one. A nil Err means that the target has acknowledged the effect, and that the
	// effect lasts. Deliver blocks until then, or until ctx ends. The cause of ctx is
	// semel.ErrLeaseLost if another holder may have taken over a key. The slice and the
	// items belong to the pipeline again when Deliver returns.
	//
	// The Err decides what the pipeline does next:
	//   - a permanent error, see semel.Permanent: the item is not delivered again;
	//   - an UnavailableError: the target cannot take messages now, whatever they are;
	//     the pipeline pauses, and no attempt counts. Nothing was delivered, unless the
	//     error wraps semel.ErrOutcomeUnknown too;
	//   - an error that wraps semel.ErrOutcomeUnknown, or an error of a context: the
	//     effect may have happened;
	//   - any other error: the effect did not happen, and the item is retried; Retry
	//     sets a delay.
	//
	// Items of the same Group are ordered. Items of different groups are not. Without
	// the trait Ordered, a sink never gets two items of a group in one call. With
	// Ordered, it delivers them in order. When an item fails, even permanently, the sink does
	// not deliver the items behind it in the group, and sets their Err to ErrBehind. The
	// pipeline may stop at that item, which then comes before them.
	Deliver(ctx context.Context, items []*Item)

	// Traits describes the sink. Its answer does not change.
	Traits() SinkTraits

	// Close closes the sink's connections. It is called once, after the last Deliver
	// has returned, and blocks at most until ctx ends.
	Close(ctx context.Context) error
}

// SinkTraits describe how many items a sink takes, and in what order.
type SinkTraits struct {
	// MaxBatch limits the number of items in one call of Deliver; 0 is no limit.
	MaxBatch int
	// Batch is the default limit for one call of Deliver; 0 is 500.
	Batch int
	// Parallel is the default number of concurrent calls of Deliver; 0 is 1.
	Parallel int
	// Ordered: Deliver takes several items of one group.
	Ordered bool
}

// deliver calls a sink for the items that pass a FilterMap. After a panic of the sink
// their outcome is unknown.
func deliver(ctx context.Context, sink Sink, f FilterMap, items []*Item) {
	items, restore := f.apply(ctx, items)
	defer restore()
	if len(items) == 0 {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			for _, it := range items {
				it.Err = cmp.Or(it.Err, fmt.Errorf("the sink panicked: %v: %w", p, semel.ErrOutcomeUnknown))
			}
		}
	}()
	sink.Deliver(ctx, items)
}

// sinkReady asks a sink whether it can work, if it can tell.
func sinkReady(ctx context.Context, sink Sink) error {
	if ready, ok := sink.(doctor.Readier); ok {
		if err := ready.Ready(ctx); err != nil {
			return Unavailable(err, 0)
		}
	}
	return nil
}

// ErrBehind is the Err of an item that was not delivered, because an item before it
// in its group failed. It does not count as an attempt.
var ErrBehind = errors.New("behind a message of its group that failed")

// UnavailableError says that a target could not be reached, or that it fails. The message
// is not the cause. It was not delivered, unless the error wraps semel.ErrOutcomeUnknown.
type UnavailableError struct {
	Err error
	// After is how long the target wants no requests; 0 is unknown.
	After time.Duration
}

// Unavailable wraps err as an *UnavailableError; nil stays nil. If the target may have
// taken the message, err wraps semel.ErrOutcomeUnknown.
func Unavailable(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &UnavailableError{err, after}
}

// Error implements error.
func (e *UnavailableError) Error() string { return "unavailable: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

// RetryError says that a delivery failed, and when the next one may succeed.
type RetryError struct {
	Err   error
	After time.Duration
}

// Retry wraps err as a *RetryError: the next attempt starts no sooner than after this
// delay. nil stays nil.
func Retry(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryError{err, after}
}

// Error implements error.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// Delivery is a message as a Handler gets it.
type Delivery struct {
	semel.Message
	// Key is the message's key. Deliveries with equal keys are the same message.
	Key semel.Key
	// Attempt is the number of this delivery of the key, from 1. Above 1, an earlier
	// delivery may have had its effect.
	Attempt int
	// Token is the fencing token of the claim. A target that remembers the highest
	// token can refuse a holder that has lost its lease.
	Token semel.Token
	// Redrive counts how often the message was redriven.
	Redrive int
}

// Handler is an effect as a function. Its errors have the meaning of [Sink]. After a
// panic the outcome is unknown.
type Handler func(ctx context.Context, d Delivery) (semel.Result, error)

// NewHandler returns a sink that calls a function once for each item. Options.Workers
// says how many calls run concurrently; it defaults to 16 for this sink. NewHandler
// panics if the function is nil.
func NewHandler(fn Handler) Sink {
	if err := missing("NewHandler", argument{"function", fn == nil}); err != nil {
		panic(err)
	}
	return handler(fn)
}

type handler Handler

func (h handler) Traits() SinkTraits { return SinkTraits{MaxBatch: 1, Parallel: 16} }

func (h handler) Close(context.Context) error { return nil }

func (h handler) Deliver(ctx context.Context, items []*Item) {
	for _, it := range items {
		h.call(ctx, it)
	}
}

func (h handler) call(ctx context.Context, it *Item) {
	defer func() {
		if p := recover(); p != nil {
			it.Err = fmt.Errorf("the handler panicked: %v: %w", p, semel.ErrOutcomeUnknown)
		}
	}()
	it.Result, it.Err = h(ctx, DeliveryOf(it))
}

// DeliveryOf returns an item as a Handler sees it. The message shares the item's
// bytes.
func DeliveryOf(it *Item) Delivery {
	return Delivery{Message: it.Message, Key: it.Call.Key, Attempt: it.Attempt, Token: it.Token, Redrive: it.Redrive}
}
