package wiring

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/semel-dev/semel/internal/vfs"
)

// EmbeddedExists reports whether a directory holds an embedded store, by the
// file that docs/format.md names.
func EmbeddedExists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, "STORE"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Holder returns who has an embedded store open, if that is why it could not be
// opened.
func Holder(err error) (string, bool) {
	var locked *vfs.LockedError
	if !errors.As(err, &locked) {
		return "", false
	}
	return locked.Holder, true
}
