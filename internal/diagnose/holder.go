package diagnose

import (
	"errors"

	"github.com/semel-dev/semel/vfs"
)

// Holder returns the process that has a store, a file or a name open, if err gives this reason.
func Holder(err error) (string, bool) {
	locked, ok := errors.AsType[*vfs.LockedError](err)
	if !ok {
		return "", false
	}
	return locked.Holder, true
}
