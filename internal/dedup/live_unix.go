//go:build unix

package dedup

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// wakeEvery is the interval in milliseconds at which a wait for input checks
// ctx.
const wakeEvery = 100

// readable reports whether a read of f returns without waiting.
func readable(f *os.File) bool { return poll(f, 0) }

// waitReadable returns when a read of f would not wait, or with the cause of
// ctx. A read itself cannot be interrupted.
func waitReadable(ctx context.Context, f *os.File) error {
	for !poll(f, wakeEvery) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// poll also returns true if the system call fails. The read then returns the
// error.
func poll(f *os.File, milliseconds int) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, milliseconds)
	return n > 0 || err != nil && err != unix.EINTR
}
