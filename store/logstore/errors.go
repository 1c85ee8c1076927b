package logstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// CorruptError says where stored data is not what was written. It wraps
// semel.ErrCorrupt.
type CorruptError struct {
	// File is the path of the file.
	File string
	// Offset is where in the file the damage begins, or the record around it.
	Offset int64
	Err    error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("logstore: %s is corrupt at offset %d: %v", e.File, e.Offset, e.Err)
}

// Unwrap returns semel.ErrCorrupt and the cause.
func (e *CorruptError) Unwrap() []error { return []error{semel.ErrCorrupt, e.Err} }

// ErrLocked says that a process has the store open. Errors that wrap it are a
// [*LockedError].
var ErrLocked = errors.New("store is in use")

// LockedError says which process has a store open. Nothing was changed: its
// class is semel.ClassRetryable.
type LockedError struct {
	// Dir is the directory of the store.
	Dir string
	// PID is the id of the process on its host, or 0 if it is not known.
	PID int
	// Holder describes the process in words: its id and host, since when it
	// has the store open, and its command line.
	Holder string
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("logstore: the store %s is held by %s: end that process, or try again when it has ended", e.Dir, e.Holder)
}

// Is reports that the error is an ErrLocked and a semel.ErrStoreUnavailable.
func (e *LockedError) Is(target error) bool {
	return target == ErrLocked || target == semel.ErrStoreUnavailable
}

var (
	errClosed = fmt.Errorf("logstore: %w", semel.ErrClosed)
	// errLengths: requests and answers of a call do not match.
	errLengths = fmt.Errorf("logstore: as many answers as requests are needed: %w", semel.ErrInvalidRequest)
	errSealed  = errors.New("a record follows the one that seals the segment")
)

// syncError marks the error of a sync, after which the store stops.
type syncError struct{ err error }

func (e *syncError) Error() string { return e.err.Error() }
func (e *syncError) Unwrap() error { return e.err }

// syncFailed marks the error of a sync.
func syncFailed(err error) error {
	if err == nil {
		return nil
	}
	return &syncError{err}
}

// interrupted says that a call ended with its context before it changed
// anything.
func interrupted(ctx context.Context) error {
	return fmt.Errorf("logstore: nothing was changed: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
}

// invalid refuses one request.
func invalid(format string, args ...any) error {
	return fmt.Errorf("logstore: "+format+": %w", append(args, semel.ErrInvalidRequest)...)
}
