package semel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// Sentinels to branch on with errors.Is.
var (
	// ErrInvalidKey: the key is empty or too long. See [Key.Validate].
	ErrInvalidKey = errors.New("invalid key")
	// ErrInvalidRequest: a request or option is out of its bounds.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrInFlight: another holder's lease runs. Returned by a Guard whose Wait
	// is over, as an [*InFlightError].
	ErrInFlight = errors.New("in flight elsewhere")
	// ErrMismatch: the key was used with another payload.
	ErrMismatch = errors.New("key used with another payload")
	// ErrOutcomeUnknown: whether the change, or the effect, happened is not
	// known. Never to be read as success or as failure.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrLate: the message is older than the window can answer for.
	ErrLate = errors.New("older than the window")
	// ErrStaleToken: the token does not hold the key. See [*StaleTokenError].
	ErrStaleToken = errors.New("stale token")
	// ErrLeaseLost is the cause with which the context of an effect is
	// cancelled, and the error of a Guard whose completion came too late. The
	// effect may have happened in part, whole, or twice.
	ErrLeaseLost = errors.New("lease lost")
	// ErrNotUnknown: Resolve was asked for a record that is not unknown.
	ErrNotUnknown = errors.New("record is not unknown")
	// ErrResultTooLarge: the result exceeds what the store keeps.
	ErrResultTooLarge = errors.New("result too large for the store")
	// ErrResultNotKept: a duplicate's effect is complete, but its result was
	// too large to be stored, so it cannot be replayed.
	ErrResultNotKept = errors.New("result was not kept")
	// ErrStoreFull: the store is at its limit; nothing was forgotten for it.
	ErrStoreFull = errors.New("store is full")
	// ErrStoreUnavailable: the store could not be reached, and nothing was
	// changed.
	ErrStoreUnavailable = errors.New("store unavailable")
	// ErrStoreFailed: the store stopped after a failed write or sync. It must
	// be opened again.
	ErrStoreFailed = errors.New("store failed")
	// ErrCorrupt: stored data fails its checksum or its format.
	ErrCorrupt = errors.New("corrupt store")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("closed")
)

// StaleTokenError refuses a change whose token does not hold the key: the
// lease ended and another claim was granted, or the key was released,
// completed under another token, resolved or forgotten.
type StaleTokenError struct {
	Key   Key
	Token Token
	// State and Current are what the store holds instead.
	State   State
	Current Token
}

// Error implements error.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("semel: token %d does not hold key %s: it is %s under token %d", e.Token, e.Key, e.State, e.Current)
}

// Is reports that the error is an ErrStaleToken.
func (e *StaleTokenError) Is(target error) bool { return target == ErrStaleToken }

// InFlightError says who holds a key and until when.
type InFlightError struct {
	Key Key
	// Holder is the name of the holder, or says what it is where it has no name:
	// a transaction that has not committed, for instance. It is empty if the
	// holder claimed without a name.
	Holder string
	// LeaseEnd is zero where the key is held without a lease: by a transaction.
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

// Is reports that the error is an ErrInFlight.
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// named returns the name of a holder, or words for one without a name.
func named(holder string) string { return cmp.Or(holder, "a holder without a name") }

// PermanentError marks an effect's error as one that no retry will mend. A
// Guard records it as the key's result: the effect does not run again, and a
// duplicate gets a PermanentError with the same text.
type PermanentError struct {
	// Err is the cause. For a replayed error it has only the text.
	Err error
	// Replayed says that the effect failed in an earlier delivery.
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

// Class says what may follow an error.
type Class uint8

const (
	// ClassNone: no error.
	ClassNone Class = iota
	// ClassRetryable: nothing was changed, and the same call may succeed later.
	ClassRetryable
	// ClassPermanent: nothing was changed, and the same call will fail again.
	ClassPermanent
	// ClassUnknown: the change may have been made. Ask again: every verb of a
	// Store recognises its own repetition.
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

// Classify says what may follow an error of a Store or a Guard. No other place
// decides that. An error that it does not know is an unknown outcome. An error
// that wraps several others is an unknown outcome if one of them leaves the
// outcome open: a lost lease does, although it wraps the [*StaleTokenError] of
// the refused completion. Only a [*PermanentError] counts before that, because
// the effect itself has said how it ended.
func Classify(err error) Class {
	var permanent *PermanentError
	switch {
	case err == nil:
		return ClassNone
	case errors.As(err, &permanent):
		return ClassPermanent
	}
	for _, known := range classes {
		if errors.Is(err, known.err) {
			return known.class
		}
	}
	return ClassUnknown
}

// classes are tried from the top. What leaves the outcome open stands first, so
// that the reason behind it is not read as "nothing was changed". Only the ends
// of contexts stand last: an error that says what happened often wraps one.
var classes = [...]struct {
	err   error
	class Class
}{
	{ErrOutcomeUnknown, ClassUnknown},
	// The effect has begun, and may have happened in part or twice.
	{ErrLeaseLost, ClassUnknown},
	// A failed store may have written what it could not sync.
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
