package file

import (
	"fmt"

	"github.com/semel-dev/semel"
)

// LockedError says that a file is in use: by a sink or session that writes it,
// or by a source that keeps its positions there. Nothing was changed: its class
// is semel.ClassRetryable.
type LockedError struct {
	// Path is the path of the file.
	Path string
	// Holder describes the process that has it.
	Holder string
}

// Error implements error.
func (e *LockedError) Error() string {
	return fmt.Sprintf("file: %s is held by %s: end that process, or use another path", e.Path, e.Holder)
}

// Is reports that the error is a semel.ErrStoreUnavailable.
func (e *LockedError) Is(target error) bool { return target == semel.ErrStoreUnavailable }
