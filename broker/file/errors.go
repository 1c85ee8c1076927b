package file

import (
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// LockedError says that a file is in use by a sink or session, or by a source with its positions.
// Nothing was changed: its class is semel.ClassRetryable.
type LockedError struct {
	// Path is the path of the file.
	Path string
	// Holder describes the process that has it.
	Holder string

	lock *vfs.LockedError
}

// Unwrap returns the *vfs.LockedError of the lock.
func (e *LockedError) Unwrap() error { return e.lock }

// UnknownOutputError says that an output has content that the store of its session
// does not know. It wraps semel.ErrInvalidRequest. Nothing was changed.
type UnknownOutputError struct {
	// Path is the path of the file.
	Path string
	// Size is its length in bytes.
	Size int64
}

// Error implements error.
func (e *UnknownOutputError) Error() string {
	return fmt.Sprintf("%s has %d bytes that this store does not know: another store or program wrote them, and their lines may be written again", e.Path, e.Size)
}

// Unwrap returns semel.ErrInvalidRequest.
func (e *UnknownOutputError) Unwrap() error { return semel.ErrInvalidRequest }

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("file: %s is held by %s: end that process, or use another path", e.Path, e.Holder)
}

// Is reports that the error is a semel.ErrStoreUnavailable.
func (e *LockedError) Is(target error) bool { return target == semel.ErrStoreUnavailable }
