package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
)

// Sink is where messages go to. Many goroutines call Deliver, each with items of its
// own.
type Sink interface {
	// Deliver delivers items. It sets the Err of each, and the Result if there is
	// one. A nil Err means that the target has acknowledged the effect, and that the
	// effect lasts. Deliver blocks until then, or until ctx ends. The cause of ctx is
	// semel.ErrLeaseLost if another holder may have taken a key over. Slice and items
	// belong to the pipeline again when Deliver returns.
	//
	// The Err decides what follows:
	//   - a permanent error, see semel.Permanent: the item is not delivered again;
	//   - an UnavailableError: the target could not be reached and nothing was
	//     delivered; the pipeline pauses, and no attempt counts;
	//   - an error that wraps semel.ErrOutcomeUnknown, or an error of a context: the
	//     effect may have happened;
	//   - any other error: the effect did not happen, and the item is retried; see
	//     also Retry.
	//
	// Items of the same Group are ordered. Items of different groups are not. A sink
	// whose traits have Ordered unset never gets two items of a group in a call. A
	// sink with Ordered set delivers them in order. When one fails, it sets the Err
	// of those behind it in the group to ErrBehind.
	Deliver(ctx context.Context, items []*Item)

	// Traits says what the sink wants. Its answer does not change.
	Traits() SinkTraits

	// Close closes the sink's connections. It is called once, after the last Deliver
	// has returned, and blocks at most until ctx ends.
	Close(ctx context.Context) error
}

// SinkTraits say how a sink wants its items.
type SinkTraits struct {
	// MaxBatch is the most items that one Deliver gets; 0 is no limit.
	MaxBatch int
	// Batch is the most items that one Deliver should get by default; 0 is 500.
	Batch int
	// Parallel is how many Delivers should run concurrently by default; 0 is 1.
	Parallel int
	// Ordered: Deliver takes several items of one group.
	Ordered bool
	// MaxResult is the longest result in bytes that Deliver returns; 0 is
	// unknown.
	MaxResult int64
}

// deliver calls a sink. A panic is a failure of unknown outcome.
func deliver(ctx context.Context, sink Sink, items []*Item) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		for _, it := range items {
			if it.Err == nil {
				it.Err = fmt.Errorf("the sink panicked: %v: %w", p, semel.ErrOutcomeUnknown)
			}
		}
	}()
	sink.Deliver(ctx, items)
}

// ErrBehind is the Err of an item that was not delivered because one before it
// in its group failed. It counts as no attempt.
var ErrBehind = errors.New("behind a message of its group that failed")

// UnavailableError says that a target could not be reached, and that nothing was
// delivered.
type UnavailableError struct {
	Err error
	// After is how long the target asks to be left alone; 0 is unknown.
	After time.Duration
}

// Unavailable wraps err as an *UnavailableError; nil stays nil.
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

// RetryError says that a delivery failed and when the next one may succeed.
type RetryError struct {
	Err   error
	After time.Duration
}

// Retry wraps err as a *RetryError: the next attempt is not made before after is
// over. nil stays nil.
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
	// Key is what makes two deliveries the same.
	Key semel.Key
	// Attempt counts the deliveries of this key that were begun, from 1: above
	// 1 the effect may have happened.
	Attempt int
	// Token is the fencing token of the claim. A target that remembers the highest
	// token can refuse a holder that was thought dead.
	Token semel.Token
	// Redrive counts how often the message was redriven.
	Redrive int
}

// Handler is an effect as a function. Its errors mean what they mean in Sink. A
// handler that panics has failed with an unknown outcome.
type Handler func(ctx context.Context, d Delivery) (semel.Result, error)

// HandlerOptions are the options of NewHandler. The zero value is valid.
type HandlerOptions struct {
	// Parallel is how many calls run concurrently. Defaults to 16.
	Parallel int
}

// NewHandler returns a sink that calls a function once for each item. It panics if the
// function is nil.
func NewHandler(fn Handler, opts *HandlerOptions) Sink {
	if err := missing("NewHandler", argument{"function", fn == nil}); err != nil {
		panic(err)
	}
	h := &handler{fn: fn, parallel: 16}
	if opts != nil && opts.Parallel > 0 {
		h.parallel = opts.Parallel
	}
	return h
}

type handler struct {
	fn       Handler
	parallel int
}

func (h *handler) Traits() SinkTraits {
	return SinkTraits{MaxBatch: 1, Parallel: h.parallel}
}

func (h *handler) Close(context.Context) error { return nil }

func (h *handler) Deliver(ctx context.Context, items []*Item) {
	for _, it := range items {
		h.one(ctx, it)
	}
}

func (h *handler) one(ctx context.Context, it *Item) {
	defer func() {
		if p := recover(); p != nil {
			it.Err = fmt.Errorf("the handler panicked: %v: %w", p, semel.ErrOutcomeUnknown)
		}
	}()
	it.Result, it.Err = h.fn(ctx, DeliveryOf(it))
}

// DeliveryOf returns an item as a Handler sees it. The message shares the item's
// bytes.
func DeliveryOf(it *Item) Delivery {
	return Delivery{Message: it.Message, Key: it.Call.Key, Attempt: it.Attempt, Token: it.Token, Redrive: it.Redrive}
}
