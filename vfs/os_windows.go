package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockOffset lies far beyond the holder's name. Other processes must be able to
// read the name while the lock is held.
const lockOffset = 1 << 30

// noFollow is for Unix. On Windows, only administrators may create symbolic links.
const noFollow = 0

// tryLock reports whether it took the exclusive lock of the open file.
func tryLock(f *os.File) (bool, error) {
	err := windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
		&windows.Overlapped{Offset: lockOffset})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "LockFileEx", Path: f.Name(), Err: err}
	}
	return true, nil
}

// unlock releases the lock of the open file.
func unlock(f *os.File) error {
	if err := windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{Offset: lockOffset}); err != nil {
		return &os.PathError{Op: "UnlockFileEx", Path: f.Name(), Err: err}
	}
	return nil
}

// syncDir does nothing. Windows journals directory entries and has no call to
// sync them.
func syncDir(string) error { return nil }
