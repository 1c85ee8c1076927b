package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The load during the faults.
const (
	loadWorkers = 2
	loadLanes   = 4
	loadLease   = time.Second
	// quietLease is for work without faults, of which no key may be taken over: not even
	// when the machine stands still for some seconds.
	quietLease = time.Minute
	waveKeys   = 30
	// grace is how long after the faults, beyond a lease, the last key may be
	// in progress: time-outs, pauses between tries, and a loaded machine.
	grace = 5 * time.Minute
)

// load is workers that process wave after wave of inputs, each of which every
// worker gets. A wave ends when all of its inputs are settled or parked.
type load struct {
	t       *testing.T
	setting setting // as the workers see it
	modes   []mode
	file    string
	workers []*worker
	next    int // the first input of the next wave
	waves   atomic.Int64
	seed    uint64
}

// newLoad starts a journal and opens the store for each worker.
func newLoad(t *testing.T, s setting, modes []mode, lease time.Duration) *load {
	t.Helper()
	addr, file := newJournal(t)
	touch(t, file)
	l := &load{t: t, setting: s, modes: modes, file: file, seed: random(t).Uint64()}
	for n := range loadWorkers {
		store, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.close)
		journal := &recorder{addr: addr}
		t.Cleanup(journal.close)
		w, err := newWorker(store, fmt.Sprint("worker", n), journal, modes, lease)
		if err != nil {
			t.Fatal(err)
		}
		l.workers = append(l.workers, w)
	}
	return l
}

// wave processes the next n inputs of each mode and returns their names.
func (l *load) wave(ctx context.Context, n int) ([]string, error) {
	var todo []string
	for _, m := range l.modes {
		todo = append(todo, inputs(m, l.next, l.next+n)...)
	}
	l.next += n
	return todo, l.process(ctx, todo)
}

// process has each worker process inputs.
func (l *load) process(ctx context.Context, todo []string) error {
	failed := make([]error, len(l.workers))
	var wg sync.WaitGroup
	for i, w := range l.workers {
		w.seed = l.seed + uint64(l.next*len(l.workers)+i)
		wg.Go(func() { failed[i] = w.processAll(ctx, append([]string(nil), todo...), loadLanes) })
	}
	wg.Wait()
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// mustWave is wave for quiet times.
func (l *load) mustWave(n int) []string {
	l.t.Helper()
	todo, err := l.wave(l.t.Context(), n)
	if err != nil {
		l.t.Fatal(err)
	}
	return todo
}

// start processes waves until the function it returns is called, and then ends
// with the wave that it is at.
func (l *load) start() (stop func()) {
	l.t.Helper()
	var ending atomic.Bool
	var failed error
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(l.t.Context())
	wg.Go(func() {
		for !ending.Load() && failed == nil {
			_, failed = l.wave(ctx, waveKeys)
			l.waves.Add(1)
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			ending.Store(true)
			wg.Wait()
			cancel()
			if failed != nil {
				l.t.Errorf("the work failed: %v", failed)
			}
		})
	}
	l.t.Cleanup(func() {
		cancel() // workers still run here only if the test has failed
		wg.Wait()
	})
	return stop
}

// waitForIdle waits until the work in progress, and one whole wave after it, has ended. No
// earlier work is then left.
func (l *load) waitForIdle() {
	l.t.Helper()
	began, enough := time.Now(), l.waves.Load()+2
	within(l.t, loadLease+grace, "work continues after the faults", func() bool { return l.waves.Load() >= enough })
	l.t.Logf("quiet after %v", time.Since(began).Round(time.Millisecond))
}

// noticed says what a fault did to the work, since the last time that it was
// asked: how many answers of the store were errors, and how long the slowest
// delivery took.
func (l *load) noticed() (failed int64, slowest time.Duration) {
	for _, w := range l.workers {
		failed += w.failures.Swap(0)
		slowest = max(slowest, time.Duration(w.slowest.Swap(0)))
	}
	return failed, slowest
}

// reports reads the journal, and the effects that are rows of a server.
func (l *load) reports(direct setting, grow order) ([]entry, map[mode]*report) {
	l.t.Helper()
	journal := readAll(l.t, direct, l.file, l.modes)
	return journal, reportAll(l.t, l.modes, l.next, journal, grow)
}

// wantSound fails the test unless every promise was kept.
func (l *load) wantSound(direct setting) {
	l.t.Helper()
	journal, reports := l.reports(direct, byAttempt)
	for m, r := range reports {
		r.wantSafe(l.t)
		switch {
		case m == hold:
			wantHeld(l.t, direct, journal, r)
		case len(r.Parked) > 0:
			l.t.Errorf("%s: %d keys are unknown", m, len(r.Parked))
		case m == sameTx && len(r.Repeated) > 0:
			l.t.Errorf("effects in a transaction happened twice: %v", r.Repeated)
		}
		if r.Duplicates == 0 {
			l.t.Errorf("%s: no duplicate was seen", m)
		}
	}
	l.wantNoneInProgress(direct)
}

// wantNoneInProgress looks at all keys when the work has ended.
func (l *load) wantNoneInProgress(direct setting) {
	l.t.Helper()
	store, err := direct.open(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer store.close()
	for _, m := range l.modes {
		names := inputs(m, 0, l.next)
		records, err := store.states(l.t.Context(), keysOf(names))
		if err != nil {
			l.t.Fatal(err)
		}
		for i, r := range records {
			if state := r.State.String(); !strings.Contains("done unknown", state) {
				l.t.Errorf("%s is %s after the work", names[i], state)
			}
		}
	}
}
