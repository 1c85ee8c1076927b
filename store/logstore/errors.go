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
