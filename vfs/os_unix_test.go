//go:build unix

package vfs

import (
	"errors"
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

func TestALinkInPlaceOfAFileIsNotFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	theirs, link, dangling := filepath.Join(dir, "theirs"), filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	if err := os.WriteFile(theirs, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink("theirs", link), os.Symlink("new", dangling)); err != nil {
		t.Fatal(err)
	}
	for what, open := range map[string]func(name string) error{
		"Open":     func(name string) error { _, err := OS{}.Open(name); return err },
		"ReadFile": func(name string) error { _, err := OS{}.ReadFile(name); return err },
		"Lock":     func(name string) error { _, err := OS{}.Lock(name, "me"); return err },
	} {
		for _, name := range []string{link, dangling} {
			var refused *LinkError
			if err := open(name); !errors.As(err, &refused) || refused.Name != name {
				t.Errorf("%s of %s: %v, want a LinkError", what, name, err)
			}
		}
	}
	if content, err := os.ReadFile(theirs); err != nil || string(content) != "content" {
		t.Errorf("the file behind the link was changed: %q, %v", content, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file was created behind the dangling link")
	}
	// The directory may be a link.
	if err := os.Symlink(dir, filepath.Join(dir, "dir")); err != nil {
		t.Fatal(err)
	}
	lock, err := OS{}.Lock(filepath.Join(dir, "dir", "LOCK"), "me")
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}
