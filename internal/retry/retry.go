// Package retry paces attempts: it has the pauses between them, which grow and have
// jitter, and waits.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep waits for d, or until ctx ends. It then returns the cause of ctx.
func Sleep(ctx context.Context, d time.Duration) error { return SleepOrWake(ctx, d, nil) }

// SleepOrWake is Sleep that also ends when wake has a value, which it takes, or is
// closed. It then returns nil.
func SleepOrWake(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Poll calls ask until it returns true, or until the time end. Its pauses grow from a
// millisecond to a quarter of a second, with jitter, which spreads those that wait for one
// thing. It calls ask at least once. If ctx ends during a pause, Poll returns the cause of
// ctx.
func Poll(ctx context.Context, end time.Time, ask func() bool) error {
	return PollPaced(ctx, end, time.Millisecond, 250*time.Millisecond, ask)
}

// PollPaced is Poll with pauses that grow from first to most.
func PollPaced(ctx context.Context, end time.Time, first, most time.Duration, ask func() bool) error {
	for n := 0; !ask(); n++ {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		if err := Sleep(ctx, min(left, Around(Backoff(n, first, most), 0.5))); err != nil {
			return err
		}
	}
	return nil
}

// Backoff returns first, doubled n times, but at most most. Both are above 0.
func Backoff(n int, first, most time.Duration) time.Duration {
	for ; n > 0; n-- {
		if first > most/2 {
			return most
		}
		first *= 2
	}
	return min(first, most)
}

// Around returns a random time that is longer or shorter than d by at most a share of d.
// Use it to keep those apart that began together.
func Around(d time.Duration, share float64) time.Duration {
	part := time.Duration(share * float64(d))
	return d - part + rand.N(2*part+1)
}

// UpTo is Around for a d that must not be exceeded: the time is shorter by at most a
// share of d.
func UpTo(d time.Duration, share float64) time.Duration {
	part := time.Duration(share * float64(d))
	return d - part + rand.N(part+1)
}
