package dedup

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes a file's content and length durable, and leaves out its times.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}
