package health

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// job is work that a test controls.
type job struct {
	settled         uint64
	busy            bool
	stalled, moving []time.Duration
}

func (j *job) work() Work {
	return Work{
		Look:    func() (uint64, bool) { return j.settled, j.busy },
		Stalled: func(_ context.Context, still time.Duration) { j.stalled = append(j.stalled, still) },
		Moves:   func(still time.Duration) { j.moving = append(j.moving, still) },
	}
}

func TestStallIsReportedAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s Stall
		j := &job{busy: true}
		defer s.Start(t.Context(), j.work())()
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		pass(9 * time.Second)
		if len(j.stalled) > 0 || s.For() != 0 {
			t.Fatalf("after 9 s: %v, %v", j.stalled, s.For())
		}
		pass(11 * time.Second)
		if s.For() != 20*time.Second {
			t.Errorf("stalled for %v after 20 s", s.For())
		}
		pass(45*time.Minute - 20*time.Second)
		want := []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, 45 * time.Minute}
		if !slices.Equal(j.stalled, want) {
			t.Errorf("reports after %v, want %v", j.stalled, want)
		}
		j.settled++
		pass(time.Second)
		if s.For() != 0 || !slices.Equal(j.moving, []time.Duration{45*time.Minute + time.Second}) {
			t.Errorf("it moves: %v, %v", s.For(), j.moving)
		}
		pass(10 * time.Second)
		if n := len(j.stalled); n != len(want)+1 || j.stalled[n-1] != 10*time.Second {
			t.Errorf("the next stall: %v", j.stalled)
		}
	})
}

func TestWorkThatMovesOrEndsIsNotStalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var idle, moving Stall
		none, some := &job{settled: 7}, &job{busy: true}
		defer idle.Start(t.Context(), none.work())()
		defer moving.Start(t.Context(), some.work())()
		for range 100 {
			time.Sleep(9 * time.Second)
			synctest.Wait()
			some.settled++
		}
		if idle.For() != 0 || moving.For() != 0 || len(none.stalled)+len(some.stalled)+len(none.moving)+len(some.moving) != 0 {
			t.Errorf("%v %v %+v %+v", idle.For(), moving.For(), none, some)
		}
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if some.busy = false; len(some.stalled) != 1 {
			t.Fatalf("%+v", some)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if moving.For() != 0 || len(some.moving) != 1 {
			t.Errorf("no work is left: %v, %+v", moving.For(), some)
		}
	})
}

func TestSlowWorkGetsMoreTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := Stall{Slow: 30 * time.Second}
		j := &job{busy: true}
		stop := s.Start(t.Context(), j.work())
		time.Sleep(39 * time.Second)
		synctest.Wait()
		if len(j.stalled) > 0 {
			t.Errorf("reports after %v", j.stalled)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(j.stalled) != 1 {
			t.Errorf("reports after %v", j.stalled)
		}
		stop()
		time.Sleep(time.Hour)
		if len(j.stalled) != 1 {
			t.Error("it reports after its end")
		}
	})
}
