//go:build unix

package dedup

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// wakeEvery is how often a wait for input looks whether it was interrupted, in
// milliseconds.
const wakeEvery = 100

// readable reports whether a read of f returns at once.
func readable(f *os.File) bool { return poll(f, 0) }

// waitReadable returns when a read of f would return at once, or with the cause
// of ctx's end. A read itself could not be interrupted.
func waitReadable(ctx context.Context, f *os.File) error {
	for !poll(f, wakeEvery) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// poll answers true also when poll fails: the read then says why.
func poll(f *os.File, milliseconds int) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, milliseconds)
	return n > 0 || err != nil && err != unix.EINTR
}
