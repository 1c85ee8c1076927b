//go:build unix

package vfs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A child process shares all files of its parent from the fork until it
// executes its own program.
func TestLockEndsWhenItIsGivenUpThoughAChildHasTheFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "LOCK")
	first, err := OS{}.Lock(name, "the first")
	if err != nil {
		t.Fatal(err)
	}
	child, err := syscall.Dup(int(first.(interface{ Fd() uintptr }).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer os.NewFile(uintptr(child), name).Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := OS{}.Lock(name, "the second")
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}
