package diagnose

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// job is work that a test controls. The test and the watch take turns: one of them
// sleeps, but the race detector does not know that.
type job struct {
	mu              sync.Mutex
	settled         uint64
	busy            bool
	stalled, moving []time.Duration
}

func (j *job) work() Work {
	return Work{
		Look: func() (settled uint64, busy bool) {
			j.with(func() { settled, busy = j.settled, j.busy })
			return settled, busy
		},
		Stalled: func(_ context.Context, still time.Duration) { j.with(func() { j.stalled = append(j.stalled, still) }) },
		Moves:   func(still time.Duration) { j.with(func() { j.moving = append(j.moving, still) }) },
	}
}

func (j *job) with(do func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	do()
}

// reports returns all reports so far.
func (j *job) reports() (stalled, moving []time.Duration) {
	j.with(func() { stalled, moving = slices.Clone(j.stalled), slices.Clone(j.moving) })
	return stalled, moving
}

func TestStallIsReportedRepeatedly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s Stall
		j := &job{busy: true}
		defer s.Start(t.Context(), j.work())()
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		pass(9 * time.Second)
		if stalled, _ := j.reports(); len(stalled) > 0 || s.For() != 0 {
			t.Fatalf("after 9 s: %v, %v", stalled, s.For())
		}
		pass(11 * time.Second)
		if s.For() != 20*time.Second {
			t.Errorf("stalled for %v after 20 s", s.For())
		}
		pass(45*time.Minute - 20*time.Second)
		want := []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, 45 * time.Minute}
		if stalled, _ := j.reports(); !slices.Equal(stalled, want) {
			t.Errorf("reports after %v, want %v", stalled, want)
		}
		j.with(func() { j.settled++ })
		pass(time.Second)
		if _, moving := j.reports(); s.For() != 0 || !slices.Equal(moving, []time.Duration{45*time.Minute + time.Second}) {
			t.Errorf("it moves: %v, %v", s.For(), moving)
		}
		pass(10 * time.Second)
		if stalled, _ := j.reports(); !slices.Equal(stalled, append(want, 10*time.Second)) {
			t.Errorf("the next stall: %v", stalled)
		}
	})
}

func TestProgressingOrFinishedWorkIsNotStalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var idle, moving Stall
		none, some := &job{settled: 7}, &job{busy: true}
		defer idle.Start(t.Context(), none.work())()
		defer moving.Start(t.Context(), some.work())()
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		check := func(stalls, moves int) {
			t.Helper()
			stalled, moved := some.reports()
			if len(stalled) != stalls || len(moved) != moves {
				t.Errorf("stalled %v, moved %v, want %d and %d", stalled, moved, stalls, moves)
			}
			if stalled, moved = none.reports(); idle.For() != 0 || len(stalled)+len(moved) > 0 {
				t.Errorf("without work: stalled %v, moved %v", stalled, moved)
			}
		}
		for range 100 {
			pass(9 * time.Second)
			some.with(func() { some.settled++ })
		}
		check(0, 0)
		pass(12 * time.Second)
		check(1, 0)
		some.with(func() { some.busy = false })
		pass(time.Second)
		check(1, 1)
		if moving.For() != 0 {
			t.Errorf("no work is left, and it is stalled for %v", moving.For())
		}
	})
}

func TestSlowWorkIsReportedAsStalledLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := Stall{Slow: 30 * time.Second}
		j := &job{busy: true}
		stop := s.Start(t.Context(), j.work())
		check := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if stalled, _ := j.reports(); len(stalled) != want {
				t.Errorf("reports after %v, want %d", stalled, want)
			}
		}
		check(39*time.Second, 0)
		check(time.Second, 1)
		stop()
		check(time.Hour, 1)
	})
}
