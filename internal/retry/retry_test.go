package retry

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

var errEnded = errors.New("the caller has left")

// ending returns a context that ends after d with errEnded as its cause.
func ending(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errEnded)
	t.Cleanup(cancel)
	return ctx
}

func TestSleepEndsAfterItsTimeOrWithTheContext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		sleep, life time.Duration
		took        time.Duration
		err         error
	}{
		{"its time", time.Minute, time.Hour, time.Minute, nil},
		{"the context", time.Hour, time.Minute, time.Minute, errEnded},
		{"no time", 0, time.Hour, 0, nil},
		{"a time that is over", -time.Second, time.Hour, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				err := Sleep(ending(t, c.life), c.sleep)
				if took := time.Since(began); !errors.Is(err, c.err) || took != c.took {
					t.Errorf("got %v after %v, want %v after %v", err, took, c.err, c.took)
				}
			})
		})
	}
}

func TestSleepOrWakeEndsWithAWakeUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{}, 1)
		began := time.Now()
		time.AfterFunc(time.Second, func() { wake <- struct{}{} })
		if err := SleepOrWake(t.Context(), time.Hour, wake); err != nil || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want nil after a second", err, time.Since(began))
		}
		if err := SleepOrWake(t.Context(), time.Minute, wake); err != nil || time.Since(began) != time.Minute+time.Second {
			t.Errorf("one value woke two sleepers: got %v after %v", err, time.Since(began))
		}
		close(wake)
		if err := SleepOrWake(t.Context(), time.Hour, wake); err != nil || time.Since(began) != time.Minute+time.Second {
			t.Errorf("a closed channel does not wake: got %v after %v", err, time.Since(began))
		}
	})
}

func TestPollAsksWithGrowingPausesUntilItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const wait = 3 * time.Second
		began := time.Now()
		var times []time.Duration
		err := Poll(t.Context(), began.Add(wait), func() bool {
			times = append(times, time.Since(began))
			return false
		})
		if err != nil || time.Since(began) != wait || times[0] != 0 || times[len(times)-1] != wait {
			t.Fatalf("got %v after %v with calls at %v, want the first immediately and the last after %v", err, time.Since(began), times, wait)
		}
		for i, middle := 1, time.Millisecond; i < len(times)-1; i, middle = i+1, min(2*middle, 250*time.Millisecond) {
			if pause := times[i] - times[i-1]; pause < middle/2 || pause > middle*3/2 {
				t.Errorf("pause %d is %v, want one around %v", i, pause, middle)
			}
		}
	})
}

func TestPollEndsWithTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := Poll(t.Context(), time.Now().Add(time.Hour), func() bool { calls++; return calls == 3 })
		if err != nil || calls != 3 {
			t.Errorf("got %v after %d calls, want nil after 3", err, calls)
		}
	})
}

func TestPollTriesOnceAfterItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := Poll(t.Context(), time.Time{}, func() bool { calls++; return false })
		if err != nil || calls != 1 {
			t.Errorf("got %v after %d calls, want nil after 1", err, calls)
		}
	})
}

func TestPollEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Poll(ending(t, time.Second), began.Add(time.Hour), func() bool { return false })
		if !errors.Is(err, errEnded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want %v after a second", err, time.Since(began), errEnded)
		}
	})
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n                 int
		first, most, want time.Duration
	}{
		{0, time.Second, time.Minute, time.Second},
		{-1, time.Second, time.Minute, time.Second},
		{1, time.Second, time.Minute, 2 * time.Second},
		{5, time.Second, time.Minute, 32 * time.Second},
		{6, time.Second, time.Minute, time.Minute},
		{math.MaxInt, time.Second, time.Minute, time.Minute},
		{math.MaxInt, time.Second, math.MaxInt64, math.MaxInt64},
		{3, time.Minute, time.Second, time.Second},
	} {
		if got := Backoff(c.n, c.first, c.most); got != c.want {
			t.Errorf("Backoff(%d, %v, %v) is %v, want %v", c.n, c.first, c.most, got, c.want)
		}
	}
}

func TestJitterStaysWithinItsShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		jitter      func(time.Duration, float64) time.Duration
		share       float64
		least, most time.Duration
	}{
		{"Around", Around, 0.5, 50, 150},
		{"Around", Around, 0.1, 90, 110},
		{"UpTo", UpTo, 0.5, 50, 100},
		{"UpTo", UpTo, 0.1, 90, 100},
	} {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 10_000 {
			got := c.jitter(100, c.share)
			least, most = min(least, got), max(most, got)
		}
		if least != c.least || most != c.most {
			t.Errorf("%s(100, %v) is between %d and %d, want %d and %d", c.name, c.share, least, most, c.least, c.most)
		}
		if got := c.jitter(0, c.share); got != 0 {
			t.Errorf("%s(0, %v) is %v, want 0", c.name, c.share, got)
		}
	}
}
