package dedup

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData makes the content and length of a file durable, but not its times.
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
