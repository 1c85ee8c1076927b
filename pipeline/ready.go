package pipeline

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
)

// notReady stands for an error that a message met. Probes show its text to
// anybody, so the text is made of words that cannot come from the message.
type notReady struct {
	text string
	err  error
}

// Error implements error.
func (e *notReady) Error() string { return e.text }

// Unwrap returns the error that the message met.
func (e *notReady) Unwrap() error { return e.err }

// newNotReady says what keeps a pipeline from its work; nil if err is nil.
func newNotReady(what string, err error) error {
	if err == nil {
		return nil
	}
	if cause := knownCause(err); cause != nil {
		what += ": " + cause.Error()
	}
	return &notReady{what + ": the log has the error", err}
}

// notReady says for how long sink or store do not work; nil if they do.
func (t *trouble) notReady(what string) error {
	if t.err == nil {
		return nil
	}
	return newNotReady(fmt.Sprintf("%s has not worked since %s", what, t.since.UTC().Format(time.RFC3339)), t.err)
}

// knownCause returns the part of an error whose text is that of this module, of the
// network or of the system; nil if there is none.
func knownCause(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return of
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	for _, known := range []error{
		semel.ErrStoreFull, semel.ErrStoreFailed, semel.ErrCorrupt, semel.ErrClosed, semel.ErrStoreUnavailable, semel.ErrOutcomeUnknown, ErrStopped,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return nil
}
