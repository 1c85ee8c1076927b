package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// ErrSilent is wrapped by the error of a call whose server does not answer. Its
// connection was closed.
var ErrSilent = errors.New("the server does not answer")

const (
	// askAfter is how long a call may run until its server is asked for a sign of life on
	// another connection, again and again. answerWithin limits the wait for the answer.
	askAfter, answerWithin = 5 * time.Second, 5 * time.Second
)

// watched returns a context for a call, which ends when the server answers neither the call
// nor ask. So a statement may run long or wait for a lock, but not for a server that was
// stopped or cut off. Call stop after the call; it waits for the end of ask.
func watched(ctx context.Context, ask func(context.Context) error) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	asked := make(chan struct{})
	timer := time.AfterFunc(askAfter, func() {
		defer close(asked)
		for ctx.Err() == nil {
			limited, end := context.WithTimeout(ctx, answerWithin)
			err := ask(limited)
			end()
			if err != nil && ctx.Err() == nil {
				cancel(ErrSilent)
			}
			_ = retry.Sleep(ctx, askAfter)
		}
	})
	return ctx, func() {
		cancel(nil)
		if !timer.Stop() {
			<-asked
		}
	}
}

// silent returns the error of a call under a context of watched.
func silent(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrSilent) {
		return &silence{err}
	}
	return err
}

// silence is the error of a call that was ended because its server does not answer. It
// hides the end of the context, because no caller gave up the call. It keeps the class.
type silence struct{ err error }

// Error implements error.
func (e *silence) Error() string { return ErrSilent.Error() + ": " + e.err.Error() }

// Unwrap returns ErrSilent and the classes of the call's error.
func (e *silence) Unwrap() []error {
	wraps := []error{ErrSilent}
	for _, class := range []error{semel.ErrOutcomeUnknown, semel.ErrStoreUnavailable} {
		if errors.Is(e.err, class) {
			wraps = append(wraps, class)
		}
	}
	return wraps
}
