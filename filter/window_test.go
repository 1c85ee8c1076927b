package filter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// windows makes filters that hold n ids of one window with hardly an error.
func windows(t testing.TB, n int, window time.Duration) map[string]*Rotating {
	seed := testSeed(t)
	fs := map[string]*Rotating{}
	for _, generations := range []int{2, 4, 8, 16} {
		fs[fmt.Sprint("Rotating", generations)] = must(NewRotating(&RotatingOptions{
			Capacity: n * generations, Window: window, Generations: generations, ErrorRate: minRotating, seed: seed,
		}))(t)
	}
	return fs
}

// overshoot returns how much longer than its window a filter may remember an
// id.
func overshoot(f *Rotating) time.Duration {
	return time.Duration(f.time.slice)*time.Duration(f.generations) - f.window
}

// The test compares random adds and pauses with a map.
func TestIDsAreSeenForTheWindowAndForgottenAfterIt(t *testing.T) {
	t.Parallel()
	const universe, window = 400, time.Hour
	for name, f := range windows(t, universe, window) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(*seedFlag, 1))
			now := time.Unix(1_700_000_000, 0)
			added := map[int]time.Time{}
			wrong, checks := 0, 0
			f.Advance(now)
			for range 3000 {
				// Most steps are small. Some skip a part of the window, and a
				// few skip many windows.
				switch n := random.IntN(1000); {
				case n < 3:
					now = now.Add(time.Duration(random.Int64N(int64(1000 * window))))
				case n < 30:
					now = now.Add(time.Duration(random.Int64N(int64(window))))
				default:
					now = now.Add(time.Duration(random.Int64N(int64(window / 100))))
				}
				f.Advance(now)
				for range 3 {
					i := random.IntN(universe)
					if _, err := f.Add(id(i)); err != nil {
						t.Fatal(err)
					}
					added[i] = now
				}
				i := random.IntN(universe)
				at, ok := added[i]
				age := now.Sub(at)
				seen := f.Has(id(i))
				if ok && age <= window && !seen {
					t.Fatalf("an id is not seen after %v", age)
				}
				if !ok || age >= window+overshoot(f) {
					checks++
					if seen {
						wrong++
					}
				}
			}
			t.Logf("%d of %d forgotten ids are called seen", wrong, checks)
			if wrong > 3 || checks < 100 {
				t.Errorf("%d of %d forgotten ids are called seen", wrong, checks)
			}
		})
	}
}

func TestIDIsForgottenAtTheStatedTime(t *testing.T) {
	t.Parallel()
	const window = time.Minute + 7 // no multiple of anything
	start := time.Unix(1_700_000_000, 0)
	for name, f := range windows(t, 100, window) {
		for _, offset := range []time.Duration{0, time.Second, 29 * time.Second} {
			f.Advance(start)
			start = start.Add(offset)
			f.Advance(start)
			must(f.Add(id(1)))(t)
			f.Advance(start.Add(window))
			if !f.Has(id(1)) || f.Len() != 1 {
				t.Errorf("%s: the id is not seen when the window is over to the nanosecond", name)
			}
			f.Advance(start.Add(window + overshoot(f)))
			if f.Has(id(1)) || f.Len() != 0 {
				t.Errorf("%s: the id is seen one part after the window", name)
			}
			start = start.Add(10 * window)
		}
	}
}

func TestAddOfASeenIDRestartsItsWindow(t *testing.T) {
	t.Parallel()
	for name, f := range windows(t, 100, time.Minute) {
		now := time.Unix(1_700_000_000, 0)
		f.Advance(now)
		must(f.Add(id(1)))(t)
		for range 10 {
			now = now.Add(time.Minute)
			f.Advance(now)
			if seen, err := f.Add(id(1)); !seen || err != nil {
				t.Fatalf("%s: Add of a seen id = %v, %v", name, seen, err)
			}
		}
	}
}

func TestAdvanceIgnoresBackwardTime(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_700_000_000, 0)
	for name, f := range windows(t, 100, time.Minute) {
		f.Advance(start)
		f.Advance(start.Add(50 * time.Second))
		must(f.Add(id(1)))(t)
		f.Advance(start.Add(-time.Hour))
		f.Advance(time.Time{})
		f.Advance(start.Add(110 * time.Second))
		if !f.Has(id(1)) {
			t.Errorf("%s: an id is not seen at the end of its window", name)
		}
	}
}

func TestIDsAddedBeforeTheFirstAdvanceAreSeenForAWindow(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_700_000_000, 0)
	for name, f := range windows(t, 100, time.Minute) {
		must(f.Add(id(1)))(t)
		f.Advance(start)
		f.Advance(start.Add(time.Minute))
		if !f.Has(id(1)) {
			t.Errorf("%s: an id is not seen a window after the first Advance", name)
		}
	}
}

// At an even rate neither the number of ids nor the error rate grows.
func TestSteadyTrafficNeitherFillsNorDegrades(t *testing.T) {
	t.Parallel()
	const seconds, perSecond = 47, 200
	// Sometimes the ids of seven seconds fall into one generation of 47/7 s.
	f := must(NewRotating(&RotatingOptions{Capacity: 7 * 7 * perSecond, Window: seconds * time.Second, seed: testSeed(t)}))(t)
	now, next := time.Unix(1_700_000_000, 0), 0
	for second := range 20 * seconds {
		now = now.Add(time.Second)
		f.Advance(now)
		for range perSecond {
			must(f.Add(id(next)))(t)
			next++
		}
		if p := f.ErrorRate(); p > 0.001 || f.Over() {
			t.Fatalf("error rate %g with %d ids after %d s", p, f.Len(), second)
		}
	}
	if f.Len() < seconds*perSecond {
		t.Errorf("%d ids live", f.Len())
	}
}

func TestFullGenerationRefusesUntilTheNext(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_700_000_000, 0)
	r := must(NewRotating(&RotatingOptions{Capacity: 700, Window: 7 * time.Second, seed: testSeed(t)}))(t)
	r.Advance(start)
	next := fillTo(t, r, 100)
	r.Advance(start.Add(time.Second))
	for ; r.lengths[1] < 100; next++ {
		must(r.Add(id(next)))(t)
	}
	if seen, err := r.Add(id(0)); !seen || !errors.Is(err, ErrFull) {
		t.Errorf("Add of an id of an earlier generation = %v, %v; want true and ErrFull", seen, err)
	}
	if seen, err := r.Add(id(next - 1)); !seen || err != nil {
		t.Errorf("Add of an id of this generation = %v, %v; want true", seen, err)
	}
	if seen, err := r.Add(id(next + 1000)); seen || !errors.Is(err, ErrFull) {
		t.Errorf("Add of a new id = %v, %v; want ErrFull", seen, err)
	}
	r.Advance(start.Add(2 * time.Second))
	if _, err := r.Add(id(next + 1000)); err != nil {
		t.Errorf("Add in the next generation: %v", err)
	}
}

func TestHasDoesNotChangeTheFilter(t *testing.T) {
	t.Parallel()
	for name, f := range windows(t, 1000, time.Minute) {
		now := time.Unix(1_700_000_000, 0)
		f.Advance(now)
		for i := range 500 {
			must(f.Add(id(i)))(t)
			f.Advance(now.Add(time.Duration(i) * 100 * time.Millisecond))
		}
		before := snapshot(f)
		for i := range 2000 {
			f.Has(id(i))
		}
		if snapshot(f) != before {
			t.Errorf("%s: Has changed it", name)
		}
	}
}
