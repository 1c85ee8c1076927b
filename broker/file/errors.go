package file

import (
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

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

// lockedError says that a file is in use by a sink or session, or by a source with its
// positions. It wraps a *vfs.LockedError, which names the process, and
// semel.ErrStoreUnavailable: nothing was changed.
type lockedError struct {
	path string
	lock *vfs.LockedError
}

func (e *lockedError) Error() string {
	return fmt.Sprintf("file: %s is held by %s: end that process, or use another path", e.path, e.lock.Holder)
}

func (e *lockedError) Unwrap() []error { return []error{e.lock, semel.ErrStoreUnavailable} }
