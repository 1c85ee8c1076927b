package diagnose

import (
	"errors"
	"net"
	"syscall"

	"github.com/semel-dev/semel"
)

// errUnavailable stands for semel.ErrStoreUnavailable, which is also the error of sources
// and sinks whose servers cannot be reached. A probe must not call them stores.
var errUnavailable = errors.New("unavailable")

// PublicCause returns the part of an error whose text comes from this module, the network or
// the operating system, or the code that a database or an HTTP server gave. Such a text has
// no part of a message, so any client may see it. PublicCause returns nil if there is no such part.
func PublicCause(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return of
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	var answered interface{ Public() string }
	if errors.As(err, &answered) {
		return errors.New(answered.Public())
	}
	for _, known := range []error{
		semel.ErrStoreFull, semel.ErrStoreFailed, semel.ErrCorrupt, semel.ErrClosed, semel.ErrStoreUnavailable, semel.ErrOutcomeUnknown,
	} {
		if !errors.Is(err, known) {
			continue
		}
		if known == semel.ErrStoreUnavailable {
			return errUnavailable
		}
		return known
	}
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return errors.New("SQLSTATE " + coded.SQLState())
	}
	return nil
}
