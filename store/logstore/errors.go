package logstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// CorruptError reports stored data that differs from the written data. It wraps
// semel.ErrCorrupt.
type CorruptError struct {
	// File is the path of the file.
	File string
	// Offset is the position in the file where the damage, or the record that
	// contains it, begins.
	Offset int64
	Err    error
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("logstore: %s is corrupt at offset %d: %v", e.File, e.Offset, e.Err)
}

// Unwrap returns semel.ErrCorrupt and the cause.
func (e *CorruptError) Unwrap() []error { return []error{semel.ErrCorrupt, e.Err} }

// lockedError says that a process has a store open. It wraps a *vfs.LockedError,
// which names that process, and semel.ErrStoreUnavailable: nothing was changed.
type lockedError struct {
	dir  string
	lock *vfs.LockedError
}

func (e *lockedError) Error() string {
	return fmt.Sprintf("logstore: the store %s is held by %s: end that process, or retry when it has ended", e.dir, e.lock.Holder)
}

func (e *lockedError) Unwrap() []error { return []error{e.lock, semel.ErrStoreUnavailable} }

var (
	errClosed = fmt.Errorf("logstore: %w", semel.ErrClosed)
	// errLengths: a call has different numbers of requests and answers.
	errLengths = fmt.Errorf("logstore: the numbers of requests and answers differ: %w", semel.ErrInvalidRequest)
	errSealed  = errors.New("a record follows the seal of the segment")
)

// syncError wraps a sync error. Such an error stops the store.
type syncError struct{ err error }

func (e *syncError) Error() string { return e.err.Error() }
func (e *syncError) Unwrap() error { return e.err }

// syncFailed wraps the error of a sync.
func syncFailed(err error) error {
	if err == nil {
		return nil
	}
	return &syncError{err}
}

// interrupted returns the error of a call whose context ended before it changed
// anything.
func interrupted(ctx context.Context) error {
	return fmt.Errorf("logstore: nothing was changed: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
}

// invalid returns the error of one invalid request.
func invalid(format string, args ...any) error {
	return fmt.Errorf("logstore: "+format+": %w", append(args, semel.ErrInvalidRequest)...)
}
