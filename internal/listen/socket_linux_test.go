package listen

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestASocketIsNeverOpenToOthers looks at the mode that a socket is made with, whatever the umask
// of the process is.
func TestASocketIsNeverOpenToOthers(t *testing.T) {
	before := syscall.Umask(0) // not parallel: the process has one umask
	defer syscall.Umask(before)
	path := filepath.Join(t.TempDir(), "s")
	made, err := Unix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	mustHaveMode(t, path, 0o600)
	made.Close()
	served, err := Socket(path)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	mustHaveMode(t, path, 0o660)
}

func mustHaveMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has the mode %o, want %o", path, got, want)
	}
}
