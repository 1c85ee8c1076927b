package logstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/test/faultfs"
)

// mergePairs lets the store merge two runs, not only many.
func mergePairs(s *Store) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.merger.fanIn = 2
}

// mergeNow merges runs until none are worth it.
func mergeNow(s *Store) error {
	for {
		if more, err := s.merger.merge(context.Background()); !more || err != nil {
			return err
		}
	}
}

// TestMergedRunsHaveTheNewestEntries merges runs while keys are claimed, removed and
// claimed again.
func TestMergedRunsHaveTheNewestEntries(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	mergePairs(s)
	const n = 10_000
	for round := range 9 {
		wantAll(t, claimDone(t, s, round*n, (round+1)*n, semel.Forever), semel.Fresh)
		wantAll(t, claimDone(t, s, -1000, 0, time.Hour), semel.Fresh) // the last ones have expired
		if round > 0 {
			for _, k := range []int{round - 1, round*n - 1} {
				if found, err := s.Remove(t.Context(), key(k)); !found || err != nil {
					t.Fatal(found, err)
				}
			}
		}
		mustSpill(t, s)
		if err := mergeNow(s); err != nil {
			t.Fatal(err)
		}
		c.advance(2 * time.Hour)
		if round%3 == 1 {
			s = reopen(t, s)
			mergePairs(s)
		}
	}
	if got := runCount(s); got > 10 {
		t.Errorf("%d runs are left", got)
	}
	removed := map[int]bool{}
	for round := 1; round < 9; round++ {
		removed[round-1], removed[round*n-1] = true, true
	}
	for from := 0; from < 9*n; from += n {
		for i, got := range claimDone(t, s, from, from+n, semel.Forever) {
			if want := removed[from+i]; (got == semel.Fresh) != want {
				t.Fatalf("key %d is %s", from+i, got)
			}
		}
	}
	if got := count(t, s).Done; got > 9*n+3000 {
		t.Errorf("%d keys", got)
	}
}

// TestRunsOfExpiredKeysDoNotPileUp lets keys expire in runs behind a run whose keys do not.
func TestRunsOfExpiredKeysDoNotPileUp(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	spill := func() {
		t.Helper()
		if err := errors.Join(Spill(t.Context(), s), mergeNow(s)); err != nil {
			t.Fatal(err)
		}
	}
	wantAll(t, claimDone(t, s, 0, 1000, semel.Forever), semel.Fresh)
	spill()
	for round := range 40 {
		wantAll(t, claimDone(t, s, 1000, 3000, time.Hour), semel.Fresh)
		if round%2 == 0 {
			spill() // some leave memory before they expire, some are deleted when they have
		}
		c.advance(2 * time.Hour)
		if _, err := s.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		spill()
		if got := runCount(s); got > 8 {
			t.Fatalf("%d runs after round %d", got, round)
		}
	}
	if got := count(t, s); got.Done > 1500 || got.DiskBytes > 2<<20 {
		t.Errorf("%d keys in %d bytes", got.Done, got.DiskBytes)
	}
	wantAll(t, claimDone(t, s, 0, 1000, semel.Forever), semel.Duplicate)
}

// TestARemovalDoesNotOutliveItsRuns removes a key that is in a run, or in one that is being
// written and fails. Then that run is gone, and the removal must not hide the key in a later one.
func TestARemovalDoesNotOutliveItsRuns(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		t.Run(map[bool]string{false: "expired", true: "failed"}[fails], func(t *testing.T) {
			t.Parallel()
			fs, c := faultfs.New(), newHandClock()
			s, err := Open("/d/store", &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes, Clock: c.now})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			wantAll(t, claimDone(t, s, 0, 100, time.Hour), semel.Fresh)
			var removals atomic.Int64
			remove := func() {
				removals.Add(1)
				if found, err := s.Remove(t.Context(), key(1)); !found || err != nil {
					t.Error(found, err)
				}
			}
			if fails {
				fs.SetHook(func(op faultfs.Op) error {
					if op.Kind == faultfs.Write && strings.HasSuffix(op.Name, run.Suffix+".tmp") {
						remove()
						return errors.New("the write fails")
					}
					return nil
				})
			}
			if err := Spill(t.Context(), s); (err != nil) != fails {
				t.Fatal(err)
			}
			fs.SetHook(nil)
			if !fails {
				remove()
			}
			if n := removals.Load(); n != 1 {
				t.Fatalf("%d removals", n)
			}
			nextSegment(t, s)
			wantAll(t, claimDone(t, s, 1, 2, semel.Forever), semel.Fresh)
			c.advance(2 * time.Hour)
			if _, err := s.Purge(t.Context()); err != nil || runCount(s) != 0 {
				t.Fatalf("%d runs are left, %v", runCount(s), err)
			}
			if err := Spill(t.Context(), s); err != nil || runCount(s) == 0 {
				t.Fatalf("%d runs, %v", runCount(s), err)
			}
			wantAll(t, claimDone(t, s, 1, 2, semel.Forever), semel.Duplicate)
		})
	}
}

// TestCountIsExactAfterRemovals removes keys that are in a run, and lets the removals leave
// memory.
func TestCountIsExactAfterRemovals(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	want := func(n int64) {
		t.Helper()
		if got := count(t, s).Done; got != n {
			t.Fatalf("%d keys, want %d", got, n)
		}
	}
	wantAll(t, claimDone(t, s, 0, 1000, semel.Forever), semel.Fresh)
	for n := range 3 {
		if err := Spill(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		want(1000 - int64(n))
		if found, err := s.Remove(t.Context(), key(n)); !found || err != nil {
			t.Fatal(found, err)
		}
		want(999 - int64(n))
	}
	s = reopen(t, s)
	want(997)
}

// TestRunsWithoutKeysDoNotPileUp spills segments that have values and claims alone, behind
// keys that live longer, and with others in between.
func TestRunsWithoutKeysDoNotPileUp(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	spill := func() {
		t.Helper()
		if err := errors.Join(Spill(t.Context(), s), mergeNow(s)); err != nil {
			t.Fatal(err)
		}
	}
	wantAll(t, claimDone(t, s, 0, 1000, 1000*time.Hour), semel.Fresh)
	spill()
	for round := range 100 {
		tx := begin(t, s)
		tx.Set("position", []byte{byte(round)})
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		spill()
		c.advance(time.Hour)
		if got := runCount(s); got > 8 {
			t.Fatalf("%d runs after round %d", got, round)
		}
	}
	c.advance(1000 * time.Hour)
	// All runs are needless now, with and without keys. One call deletes them.
	if _, err := s.Purge(t.Context()); err != nil || runCount(s) != 0 {
		t.Errorf("%d runs, %v", runCount(s), err)
	}
}

// TestARunWithLiveKeysIsNotDropped: a merge may put one in the place of the run that was
// found expired.
func TestARunWithLiveKeysIsNotDropped(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	wantAll(t, claimDone(t, s, 0, 30_000, semel.Forever), semel.Fresh)
	mustSpill(t, s)
	s.maintenance.maintaining.Lock()
	_, _, err := s.maintenance.dropRun(t.Context())
	s.maintenance.maintaining.Unlock()
	if err != nil || runCount(s) != 1 {
		t.Errorf("%d runs, %v", runCount(s), err)
	}
	wantAll(t, claimDone(t, s, 0, 30_000, semel.Forever), semel.Duplicate)
}
