package semel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Sentinel errors. Compare them with errors.Is.
var (
	// ErrInvalidKey: the key is empty or too long. See [Key.Validate].
	ErrInvalidKey = errors.New("invalid key")
	// ErrInvalidRequest: a request or option is out of bounds.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrInFlight: another holder has a running lease. A Guard returns it as an
	// [*InFlightError] when its Wait is over.
	ErrInFlight = errors.New("in flight elsewhere")
	// ErrMismatch: the key was used with another payload.
	ErrMismatch = errors.New("key used with another payload")
	// ErrOutcomeUnknown: it is not known whether the change, or the effect,
	// happened. Never treat it as success or as failure.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrLate: the message is older than the window.
	ErrLate = errors.New("older than the window")
	// ErrStaleToken: the token does not hold the key. See [*StaleTokenError].
	ErrStaleToken = errors.New("stale token")
	// ErrLeaseLost: another holder may have the key. It is the cause that cancels
	// the context of an effect, and the error of a Guard whose completion came too
	// late. The effect may have happened in part, completely, or twice.
	ErrLeaseLost = errors.New("lease lost")
	// ErrNotUnknown: Resolve was called for a record that is not Unknown.
	ErrNotUnknown = errors.New("record is not unknown")
	// ErrResultTooLarge: the result is larger than the store keeps.
	ErrResultTooLarge = errors.New("result too large for the store")
	// ErrResultNotKept: the effect of a duplicate is complete. Its result was too
	// large to store and cannot be replayed.
	ErrResultNotKept = errors.New("result was not kept")
	// ErrStoreFull: the store is at its limit. It deleted nothing to make room.
	ErrStoreFull = errors.New("store is full")
	// ErrStoreUnavailable: the store could not be reached. Nothing was changed.
	ErrStoreUnavailable = errors.New("store unavailable")
	// ErrStoreFailed: the store stopped after a failed write or sync. It must be
	// reopened.
	ErrStoreFailed = errors.New("store failed")
	// ErrCorrupt: stored data has a wrong checksum or format.
	ErrCorrupt = errors.New("corrupt store")
	// ErrPanic: the effect panicked, or ended its goroutine. Observers and a
	// [Tracer] get it. The caller of the Guard gets the panic itself.
	ErrPanic = errors.New("the effect panicked")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("closed")
)

// StaleTokenError refuses a change because its token does not hold the key.
// Either the lease ended and another claim was granted, or the key was released,
// completed under another token, resolved or deleted.
type StaleTokenError struct {
	Key   Key
	Token Token
	// State and Current are the present record in the store.
	State   State
	Current Token
}

// Error implements error.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("semel: token %d does not hold key %s: it is %s under token %d", e.Token, e.Key, e.State, e.Current)
}

// Is reports whether target is ErrStaleToken.
func (e *StaleTokenError) Is(target error) bool { return target == ErrStaleToken }

// InFlightError says which holder has a key, and until when.
type InFlightError struct {
	Key Key
	// Holder is the name of the holder. If the holder is an uncommitted
	// transaction, for instance, Holder says so. It is empty if the holder claimed
	// without a name.
	Holder string
	// LeaseEnd is zero if the key is held without a lease, by a transaction.
	LeaseEnd time.Time
}

// Error implements error.
func (e *InFlightError) Error() string {
	if e.LeaseEnd.IsZero() {
		return fmt.Sprintf("semel: key %s is in flight, held by %s: deliver the message again later", e.Key, named(e.Holder))
	}
	return fmt.Sprintf("semel: key %s is in flight, held by %s until %s: deliver the message again later",
		e.Key, named(e.Holder), e.LeaseEnd.UTC().Format(time.RFC3339Nano))
}

// Is reports whether target is ErrInFlight.
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// named returns the name of a holder, or a description if it has no name.
func named(holder string) string { return cmp.Or(holder, "a holder without a name") }

// PermanentError marks an effect's error as permanent: retries cannot fix it. A
// Guard records it as the key's result. The effect does not run again, and a
// duplicate gets a PermanentError with the same text.
type PermanentError struct {
	// Err is the cause. A replayed error keeps only its text.
	Err error
	// Replayed reports whether the effect failed in an earlier delivery.
	Replayed bool
}

// Error implements error.
func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent wraps err as a [*PermanentError]; nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &PermanentError{Err: err}
}

// MayAck reports whether a message may be acknowledged after a guard's call for it
// returned err. It may if err is nil, wraps ErrResultNotKept, or is a
// [*PermanentError]: the effect is complete, or its permanent failure is on record,
// and a later delivery would change nothing. Park a message that failed
// permanently first, if its failure matters.
//
// After any other error the message must come again, or must be parked. An
// acknowledgement could lose it.
func MayAck(err error) bool {
	return err == nil || isPermanent(err) || errors.Is(err, ErrResultNotKept)
}

// Class says how to react to an error.
type Class uint8

const (
	// ClassNone: no error.
	ClassNone Class = iota
	// ClassRetryable: nothing was changed, and the same call may succeed later.
	ClassRetryable
	// ClassPermanent: nothing was changed, and the same call will fail again.
	ClassPermanent
	// ClassUnknown: the change may have been made. Repeat the call: every Store
	// method recognises its own repetition.
	ClassUnknown
)

// String returns the class's name in lower case.
func (c Class) String() string {
	switch c {
	case ClassNone:
		return "none"
	case ClassRetryable:
		return "retryable"
	case ClassPermanent:
		return "permanent"
	case ClassUnknown:
		return "unknown outcome"
	}
	return "invalid"
}

// Classify returns the class of an error of a Store or a Guard. It is the only
// place that decides this. An unrecognised error is an unknown outcome. An error
// that wraps several others is an unknown outcome if one of them leaves the
// outcome open. A lost lease does, although it wraps the [*StaleTokenError] of
// the refused completion. Only a [*PermanentError] takes precedence, because the
// effect itself reported how it ended.
func Classify(err error) Class {
	switch {
	case err == nil:
		return ClassNone
	case isPermanent(err):
		return ClassPermanent
	}
	for _, known := range classes {
		if errors.Is(err, known.err) {
			return known.class
		}
	}
	return ClassUnknown
}

// classes are checked from the top. Errors that leave the outcome open come
// first, so that a wrapped error is not read as "nothing was changed". Context
// errors come last, because an error that says what happened often wraps one.
var classes = [...]struct {
	err   error
	class Class
}{
	{ErrOutcomeUnknown, ClassUnknown},
	// The effect has started, and may have happened in part or twice.
	{ErrLeaseLost, ClassUnknown},
	// A failed store may have written data that it could not sync.
	{ErrStoreFailed, ClassUnknown},
	{ErrInvalidKey, ClassPermanent},
	{ErrInvalidRequest, ClassPermanent},
	{ErrMismatch, ClassPermanent},
	{ErrLate, ClassPermanent},
	{ErrStaleToken, ClassPermanent},
	{ErrNotUnknown, ClassPermanent},
	{ErrResultTooLarge, ClassPermanent},
	{ErrResultNotKept, ClassPermanent},
	{ErrCorrupt, ClassPermanent},
	{ErrInFlight, ClassRetryable},
	{ErrStoreFull, ClassRetryable},
	{ErrStoreUnavailable, ClassRetryable},
	{ErrClosed, ClassPermanent},
	{context.Canceled, ClassUnknown},
	{context.DeadlineExceeded, ClassUnknown},
}
