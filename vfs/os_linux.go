package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData does not force the modification time to disk, which saves one
// metadata write. It does sync changes of the length.
func syncData(f *os.File) error {
	return retryInterrupted("fdatasync", f.Name(), func() error { return unix.Fdatasync(int(f.Fd())) })
}

func reserve(f *os.File, offset, length int64) error {
	err := retryInterrupted("fallocate", f.Name(), func() error {
		return unix.Fallocate(int(f.Fd()), 0, offset, length)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return errors.ErrUnsupported
	}
	return err
}

func retryInterrupted(op, name string, call func() error) error {
	for {
		err := call()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: op, Path: name, Err: err}
		}
		return nil
	}
}
