package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
)

// Sink is where messages go to. Deliver is called by many goroutines at once,
// each with items of its own.
type Sink interface {
	// Deliver delivers items and sets the Err, and the Result if there is one,
	// of each. An Err of nil means that the effect is there and lasts: what
	// the target acknowledged, no less. It blocks for as long, and ends early
	// when ctx ends, which it does with the cause semel.ErrLeaseLost when
	// another may have taken a key over. Slice and items are the pipeline's again when
	// it returns.
	//
	// An Err that semel.Permanent made, or that wraps such a one, will come
	// again however often the item is delivered. One made by Unavailable says
	// that the target could not be reached and nothing was delivered: the
	// pipeline pauses and no attempt counts. One that wraps
	// semel.ErrOutcomeUnknown, or an error of a context, says that the effect
	// may have happened. Any other means that it did not, and may be tried
	// again; see also Retry.
	//
	// Items of one Group are in order, and no others need to be. A sink with
	// Ordered false in its traits never gets two of one group in a call. One
	// with true gets them, delivers them in order, and after one that failed
	// sets the Err of those behind it in the group to ErrBehind.
	Deliver(ctx context.Context, items []*Item)

	// Traits says what the sink wants. Its answer does not change.
	Traits() SinkTraits

	// Close ends the sink's connections. It is called once, after the last
	// Deliver returned, and blocks at most until ctx ends.
	Close(ctx context.Context) error
}

// SinkTraits say how a sink wants its items.
type SinkTraits struct {
	// MaxBatch is the most items that one Deliver gets; 0 is no limit.
	MaxBatch int
	// Batch is the most items that one Deliver should get if nobody says
	// otherwise; 0 is 500.
	Batch int
	// Parallel is how many Delivers should run at once if nobody says
	// otherwise; 0 is 1.
	Parallel int
	// Ordered: Deliver takes several items of one group.
	Ordered bool
	// MaxResult is the longest result in bytes that Deliver returns; 0 is
	// unknown.
	MaxResult int64
}

// deliver calls a sink, and takes a panic for a failure of unknown outcome.
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

// Delivery is a delivery as a Handler gets it.
type Delivery struct {
	semel.Message
	// Key is what makes two deliveries the same.
	Key semel.Key
	// Attempt counts the deliveries of this key that were begun, from 1: above
	// 1 the effect may have happened.
	Attempt int
	// Token is the fencing token of the claim: a target that remembers the
	// highest token it saw can refuse a holder that was thought dead.
	Token semel.Token
	// Redrive counts how often the message came back after it was put aside.
	Redrive int
}

// Handler is an effect as a function: the sink of those who write Go. Errors
// mean what they mean in Sink. A handler that panics has failed with an unknown
// outcome.
type Handler func(ctx context.Context, m Delivery) (semel.Result, error)

// HandlerOptions are the options of NewHandler. The zero value is valid.
type HandlerOptions struct {
	// Parallel is how many calls run at once. Defaults to 16.
	Parallel int
}

// NewHandler returns a sink that calls a function, once for each item. It panics
// if there is none.
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
