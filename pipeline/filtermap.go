package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// FilterMap works on a fresh message before it is delivered. It returns the body that is
// delivered, or false to filter the message out: the message is not delivered, and its
// key is remembered as if it were. It must return the same for a message that comes
// again, must not block, and must not change the memory of the message. Many goroutines
// call it. It returns soon after ctx ends, with any error: the message is then not
// delivered, and comes again.
//
// Another error or a panic fails the message permanently: it is not delivered and not
// retried.
//
// The sessions call it after their decision, so that duplicates are dropped first, and
// keys and fingerprints belong to the message as it was read. A parked message is
// also the message as it was read.
type FilterMap func(ctx context.Context, d Delivery) (body []byte, pass bool, err error)

// Call calls the function. Its errors are permanent, unless ctx has ended: then Call
// returns the cause of that, and never a permanent error. A nil FilterMap passes every message.
func (f FilterMap) Call(ctx context.Context, d Delivery) (body []byte, pass bool, err error) {
	if f == nil {
		return d.Body, true, nil
	}
	defer func() {
		if p := recover(); p != nil {
			body, pass, err = nil, false, semel.Permanent(fmt.Errorf("the FilterMap panicked: %v", p))
		}
	}()
	if body, pass, err = f(ctx, d); err == nil {
		return body, pass, nil // without a question to ctx, which may cost
	}
	if cause := context.Cause(ctx); cause != nil {
		if semel.Classify(cause) == semel.ClassPermanent {
			cause = ctx.Err() // errgroup, for example, ends a context with the error of another message
		}
		if !errors.Is(err, cause) || semel.Classify(err) == semel.ClassPermanent {
			err = fmt.Errorf("%w: %v", cause, err) // not wrapped: it says nothing of the message
		}
		return nil, false, err
	}
	return nil, false, semel.Permanent(err)
}

// apply calls the function for fresh items, and sets Err or Filtered of those that are
// not delivered. The others have the body that is delivered until restore is called.
func (f FilterMap) apply(ctx context.Context, items []*Item) (pass []*Item, restore func()) {
	if f == nil {
		return items, func() {}
	}
	pass = make([]*Item, 0, len(items))
	bodies := make([][]byte, 0, len(items))
	group, blocked := uint64(0), false // the items of a group stand together
	for _, it := range items {
		if it.Group != group {
			group, blocked = it.Group, false
		}
		if blocked {
			it.Err = ErrBehind
			continue
		}
		body, ok, err := f.Call(ctx, DeliveryOf(it))
		it.Filtered = err == nil && !ok
		switch {
		case err != nil:
			it.Err, blocked = err, true
		case ok:
			pass, bodies = append(pass, it), append(bodies, it.Message.Body)
			it.Message.Body = body
		}
	}
	return pass, func() {
		for i, it := range pass {
			it.Message.Body = bodies[i]
		}
	}
}
