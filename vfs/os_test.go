package vfs

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

func TestAllocateKeepsContentAndAddsZeros(t *testing.T) {
	t.Parallel()
	f, err := OS{}.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("abc"), 0); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{8192, 100} {
		if err := f.Allocate(size); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Size(); err != nil || got != 8192 {
			t.Fatalf("Allocate(%d): size %d, %v, want 8192", size, got, err)
		}
	}
	content := make([]byte, 8192)
	if _, err := f.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if want := append([]byte("abc"), make([]byte, 8189)...); !bytes.Equal(content, want) {
		t.Error("Allocate changed the content or added something other than zeros")
	}
	if err := f.Sync(); err != nil {
		t.Error(err)
	}
}

func TestWriteZerosStandsInForAllocation(t *testing.T) {
	t.Parallel()
	f, err := OS{}.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const from, to = 10, 3<<20 + 7
	if err := f.(osFile).writeZeros(from, to); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Size(); err != nil || got != to {
		t.Errorf("size %d, %v, want %d", got, err, to)
	}
}

func TestLockNamesItsHolderAndEndsWithClose(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "LOCK")
	first, err := OS{}.Lock(name, "pid 1 on here")
	if err != nil {
		t.Fatal(err)
	}
	_, err = OS{}.Lock(name, "pid 2 on here")
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Holder != "pid 1 on here" {
		t.Fatalf("second lock: %v, want a LockedError that names the first holder", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := OS{}.Lock(name, "pid 2 on here")
	if err != nil {
		t.Fatalf("lock after its release: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestNamesAreListedSortedAndErrorsCompare(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	sys := OS{}
	if err := sys.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"2", "1"} {
		f, err := sys.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sys.Create(filepath.Join(dir, "1")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create of an existing file: %v, want fs.ErrExist", err)
	}
	if _, err := sys.Open(filepath.Join(dir, "3")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a missing file: %v, want fs.ErrNotExist", err)
	}
	if err := sys.Rename(filepath.Join(dir, "2"), filepath.Join(dir, "0")); err != nil {
		t.Fatal(err)
	}
	if err := sys.SyncDir(dir); err != nil {
		t.Fatal(err)
	}
	names, err := sys.List(dir)
	if err != nil || len(names) != 2 || names[0] != "0" || names[1] != "1" {
		t.Errorf("List: %q, %v", names, err)
	}
}
