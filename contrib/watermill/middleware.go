// Package watermill makes the handlers of a Watermill router take effect once.
//
//	once, err := watermill.Middleware(guard, nil)
//	router.AddMiddleware(once)
//
// Watermill delivers a message again after a nack, a crash or a lost connection, and
// producers send some twice. The middleware claims the key of each message and runs the
// handler for the first one. A duplicate is acknowledged without the handler.
//
// # Errors
//
// The middleware returns nil if the message may be acknowledged, and otherwise the error
// of the guard: Watermill then nacks the message, and it comes again. A key that another
// process holds is such an error ([semel.ErrInFlight]). Some brokers deliver a nacked
// message again immediately: let the guard wait (semel.GuardOptions.Wait), or add
// Watermill's Retry or DelayOnError before this middleware.
//
// No retry helps some messages; [Parkable] tells which. Add a poison queue before this
// middleware, or they come again and again:
//
//	poison, err := middleware.PoisonQueueWithFilter(publisher, "orders-parked", watermill.Parkable)
//	router.AddMiddleware(poison, once)
//
// # Produced messages
//
// Watermill publishes the messages that a handler returns after the handler and its
// middlewares. That is too late here: the key is complete by then, so a message whose
// publication fails would come again, be a duplicate, and its output would be lost. So
// the middleware publishes the outputs itself, with Options.Publisher, as a part of the
// effect, and completes the key after that. It returns no messages to the router.
//
// If the process dies between publication and completion, the handler runs again and its
// outputs are published twice. Give them UUIDs that are made from the key, so that the
// next consumer recognises them.
package watermill

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/semel-dev/semel"
)

// Options are the options of Middleware.
type Options struct {
	// Scope is the scope of the keys. Two handlers of one topic need two scopes, or the
	// second one gets only duplicates. Defaults to the name of the handler in the router.
	Scope string
	// ID returns the id of a message, as ByMetadata does. If it fails or returns "", the
	// message has no key: the handler does not run, and the error is Parkable. Many
	// handlers call it concurrently. Defaults to the UUID of the message, which finds
	// redeliveries. It finds a message that was sent twice only if both copies have the
	// same UUID.
	ID func(*message.Message) (string, error)
	// Publisher publishes the messages that a handler returns, to the topic that the
	// router has for the handler. Pass the publisher of the handler. It must return after
	// the broker has confirmed. Defaults to none: a handler that returns messages then
	// gets an error, and its message is nacked.
	Publisher message.Publisher
}

// ByMetadata returns an Options.ID for the id that a message has in its metadata.
func ByMetadata(name string) func(*message.Message) (string, error) {
	return func(msg *message.Message) (string, error) {
		id := msg.Metadata.Get(name)
		if id == "" {
			return "", fmt.Errorf("the message has no metadata %q", name)
		}
		return id, nil
	}
}

// Middleware returns a middleware that runs a handler once for each key. Add it to a
// router, or with options of its own to one handler. It is safe for concurrent use. Nil
// options are the zero options. If guard is nil, the error wraps
// [semel.ErrInvalidRequest].
//
// The context of the message ends if the lease of its key is lost. [ClaimOf] returns the
// claim.
func Middleware(guard *semel.Guard, opts *Options) (message.HandlerMiddleware, error) {
	if guard == nil {
		return nil, fmt.Errorf("watermill: Middleware: the guard is nil: %w", semel.ErrInvalidRequest)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.ID == nil {
		o.ID = func(msg *message.Message) (string, error) { return msg.UUID, nil }
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			key, err := o.key(msg)
			if err != nil {
				return nil, err
			}
			_, err = guard.Do(msg.Context(), key, func(ctx context.Context, claim semel.Claim) ([]byte, error) {
				return nil, o.handle(context.WithValue(ctx, claimKey{}, claim), msg, h)
			})
			if _, permanent := errors.AsType[*semel.PermanentError](err); semel.MayAck(err) && !permanent {
				return nil, nil
			}
			return nil, err // a permanent failure must be parked before it is acknowledged
		}
	}, nil
}

// key returns the key of a message.
func (o *Options) key(msg *message.Message) (semel.Key, error) {
	key := semel.Key{Scope: o.Scope}
	if key.Scope == "" {
		key.Scope = message.HandlerNameFromCtx(msg.Context())
	}
	id, err := o.ID(msg)
	if err == nil {
		key.ID = id
		err = key.Validate()
	}
	if err != nil {
		return key, fmt.Errorf("watermill: key of message %s: %w: %w", msg.UUID, semel.ErrInvalidKey, err)
	}
	return key, nil
}

// handle is the effect: the handler, and the publication of its messages.
func (o *Options) handle(ctx context.Context, msg *message.Message, h message.HandlerFunc) error {
	defer msg.SetContext(msg.Context())
	msg.SetContext(ctx)
	produced, err := h(msg)
	if err != nil || len(produced) == 0 {
		return err
	}
	topic := message.PublishTopicFromCtx(ctx)
	if o.Publisher == nil || topic == "" {
		return fmt.Errorf("watermill: the handler returned %d messages for topic %q: set Options.Publisher, and add the handler with AddHandler: otherwise a failed publication would lose them", len(produced), topic)
	}
	if err := o.Publisher.Publish(topic, produced...); err != nil {
		return fmt.Errorf("watermill: publish to %s: %w: %w", topic, semel.ErrOutcomeUnknown, err) // some may be there
	}
	return nil
}

// Parkable reports whether no retry helps a message after an error of the middleware. Use
// it as the filter of a poison queue. It is true if the handler failed with
// [semel.Permanent], or if the message has no valid key, has another payload than the
// first message of its key, or is too old.
func Parkable(err error) bool {
	_, permanent := errors.AsType[*semel.PermanentError](err)
	return permanent || errors.Is(err, semel.ErrInvalidKey) || errors.Is(err, semel.ErrMismatch) || errors.Is(err, semel.ErrLate)
}

type claimKey struct{}

// ClaimOf returns the claim under which a handler runs, from the context of its message.
// Its token is for targets that refuse an older one. ok is false outside of the
// middleware.
func ClaimOf(ctx context.Context) (claim semel.Claim, ok bool) {
	claim, ok = ctx.Value(claimKey{}).(semel.Claim)
	return claim, ok
}
