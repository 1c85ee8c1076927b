package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/semel-dev/semel/bench/internal/machine"
	"github.com/semel-dev/semel/store/logstore"
)

// rawSegment is the size of the preallocated file, the same as a segment of the store.
const rawSegment = 32 << 20

// rawSyncs writes and syncs again and again, each time as many bytes as the store writes
// for one claim. It returns the number of durable writes per second.
func (e *Env) rawSyncs(ctx context.Context, span time.Duration) (rate float64, err error) {
	size, err := e.claimBytes(ctx)
	if err != nil {
		return 0, err
	}
	dir, err := e.fresh("raw")
	if err != nil {
		return 0, err
	}
	f, err := os.Create(dir + "/segment")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	fd := int(f.Fd())
	if err := unix.Fallocate(fd, 0, 0, rawSegment); err != nil {
		return 0, fmt.Errorf("preallocate: %w", err)
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	data := bytes.Repeat([]byte{0xa5}, size)
	writes, at := 0, 0
	start := time.Now()
	for ; time.Since(start) < span; writes++ {
		if _, err := unix.Pwrite(fd, data, int64(at)); err != nil {
			return 0, fmt.Errorf("write: %w", err)
		}
		if err := unix.Fdatasync(fd); err != nil {
			return 0, fmt.Errorf("sync: %w", err)
		}
		if at += size; at > rawSegment-size {
			at = 0
		}
	}
	return float64(writes) / time.Since(start).Seconds(), nil
}

// claimBytes measures the bytes that the store writes for one claim.
func (e *Env) claimBytes(ctx context.Context) (size int, err error) {
	dir, err := e.fresh("logstore")
	if err != nil {
		return 0, err
	}
	s, err := logstore.Open(dir, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	const claims = 200
	before, err := written()
	if err != nil {
		return 0, err
	}
	if _, err := claimAll(ctx, s, newIDs(claims, 16), 1); err != nil {
		return 0, err
	}
	after, err := written()
	if err != nil {
		return 0, err
	}
	if size = int(after-before) / claims; size < 16 || size > 4096 {
		return 0, fmt.Errorf("a claim seems to write %d bytes", size)
	}
	return size, nil
}

// written returns the bytes that this process has passed to write calls.
func written() (int64, error) {
	text, err := machine.Field("/proc/self/io", "wchar")
	if err != nil {
		return 0, err
	}
	var n int64
	_, err = fmt.Sscan(text, &n)
	return n, err
}
