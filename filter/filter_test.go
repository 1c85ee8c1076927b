package filter

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

var seedFlag = flag.Uint64("filter.seed", 1, "seed of the filters and ids in tests")

// testSeed prints the seed with which a test can be repeated. The seed is fixed
// unless the flag changes it, so that no run exceeds a bound of six standard
// deviations by chance.
func testSeed(t testing.TB) seed {
	t.Helper()
	t.Logf("-filter.seed=%d", *seedFlag)
	var s seed
	binary.LittleEndian.PutUint64(s[:], *seedFlag)
	s[15] = 1 // never the zero seed
	return s
}

// id returns the i-th of a sequence of distinct ids.
func id(i int) []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	return b[:]
}

// anyFilter has the methods that all kinds of filter share.
type anyFilter interface {
	Add(id []byte) (maybeSeen bool, err error)
	Has(id []byte) bool
	Len() int
	Over() bool
	Bytes() int
	Fill() float64
	ErrorRate() float64
}

// kinds makes one filter of each kind. The current generation of a Rotating
// filter has the given capacity.
var kinds = []struct {
	name string
	make func(t testing.TB, capacity int, seed seed, full WhenFull) anyFilter
}{
	{"Blocked", func(t testing.TB, n int, seed seed, full WhenFull) anyFilter {
		return must(NewBlocked(&Options{Capacity: n, seed: seed, WhenFull: full}))(t)
	}},
	{"Rotating", func(t testing.TB, n int, seed seed, full WhenFull) anyFilter {
		o := RotatingOptions{Capacity: 7 * n, Window: time.Hour, seed: seed, WhenFull: full}
		return must(NewRotating(&o))(t)
	}},
}

// snapshot returns the whole state of a filter as text, for comparison.
func snapshot(f anyFilter) string { return fmt.Sprintf("%+v", f) }

// words returns the bits of a filter.
func words(f anyFilter) []uint64 {
	switch f := f.(type) {
	case *Blocked:
		var all []uint64
		for _, block := range f.blocks {
			all = append(all, block[:]...)
		}
		return all
	case *Rotating:
		return f.words
	}
	panic("unknown filter")
}

// capacity returns how many ids a filter was made for.
func capacity(f anyFilter) int {
	switch f := f.(type) {
	case *Blocked:
		return f.capacity
	case *Rotating:
		return f.capacity
	}
	panic("unknown filter")
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestEveryAddedIDIsSeen(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{1, 2, 7, 100, 3001} {
				f := kind.make(t, n, testSeed(t), Refuse)
				for i := range n {
					if _, err := f.Add(id(i)); err != nil {
						t.Fatalf("Add %d of %d: %v", i, n, err)
					}
					if seen, err := f.Add(id(i)); !seen || err != nil {
						t.Fatalf("second Add %d of %d = %v, %v; want true", i, n, seen, err)
					}
				}
				for i := range n {
					if !f.Has(id(i)) {
						t.Fatalf("id %d of %d is not seen", i, n)
					}
				}
			}
		})
	}
}

func TestIDsOfAnyLengthAreDistinct(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			f := kind.make(t, 2000, testSeed(t), Refuse)
			zeros := make([]byte, 200)
			fresh := 0
			for n := range zeros {
				seen, err := f.Add(zeros[:n])
				if err != nil {
					t.Fatal(err)
				}
				if !seen {
					fresh++
				}
			}
			if fresh < 199 {
				t.Fatalf("%d of 200 lengths are distinct", fresh)
			}
			if !f.Has(nil) {
				t.Fatal("the empty id is not seen")
			}
		})
	}
}

func TestFullFilterRefusesAndStaysAsItWas(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			const n = 500
			f := kind.make(t, n, testSeed(t), Refuse)
			next := 0
			for ; f.Len() < n; next++ {
				if _, err := f.Add(id(next)); err != nil {
					t.Fatalf("Add at %d of %d: %v", f.Len(), n, err)
				}
			}
			before := snapshot(f)
			refused := 0
			for i := next; i < next+1000; i++ {
				seen, err := f.Add(id(i))
				if seen != (err == nil) || seen != f.Has(id(i)) {
					t.Fatalf("Add at capacity = %v, %v", seen, err)
				}
				if errors.Is(err, ErrFull) {
					refused++
				}
			}
			if refused < 900 {
				t.Errorf("%d of 1000 new ids were refused", refused)
			}
			if seen, err := f.Add(id(0)); !seen || err != nil {
				t.Errorf("Add of a seen id at capacity = %v, %v; want true", seen, err)
			}
			if f.Over() {
				t.Error("a filter that refuses is over its capacity")
			}
			if snapshot(f) != before {
				t.Error("a refused Add changed the filter")
			}
		})
	}
}

func TestAReportingFilterContinuesAndReports(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			const n = 2000
			f := kind.make(t, n, testSeed(t), Report)
			next := 0
			for ; f.Len() < n; next++ {
				must(f.Add(id(next)))(t)
			}
			if f.Over() {
				t.Error("over capacity at capacity")
			}
			atCapacity := f.ErrorRate()
			for ; f.Len() < n*11/10; next++ {
				must(f.Add(id(next)))(t)
			}
			if !f.Over() {
				t.Error("not over capacity at 1.1 times the capacity")
			}
			if f.ErrorRate() < 1.05*atCapacity {
				t.Errorf("error rate %g at 1.1 times the capacity, %g at capacity", f.ErrorRate(), atCapacity)
			}
			for i := range next {
				if !f.Has(id(i)) {
					t.Fatalf("id %d is not seen", i)
				}
			}
		})
	}
}

// bound is six standard deviations above the mean of a binomial count.
func bound(trials int, p float64) int {
	mean := float64(trials) * p
	return int(mean + 6*math.Sqrt(mean) + 1)
}

func TestSeedDecidesWhichIDsCollide(t *testing.T) {
	t.Parallel()
	seed := testSeed(t)
	other := seed
	other[8] ^= 1
	for _, kind := range kinds {
		a, b, c := kind.make(t, 300, seed, Report), kind.make(t, 300, seed, Report), kind.make(t, 300, other, Report)
		for i := range 300 {
			must(a.Add(id(i)))(t)
			must(b.Add(id(i)))(t)
			must(c.Add(id(i)))(t)
		}
		if snapshot(a) != snapshot(b) {
			t.Errorf("%s: one seed gave two filters", kind.name)
		}
		differ := 0
		x, y := words(a), words(c)
		for i := range x {
			differ += bits.OnesCount64(x[i] ^ y[i])
		}
		if differ < 1000 {
			t.Errorf("%s: two seeds gave filters that differ in %d bits", kind.name, differ)
		}
	}
}

func TestRandomSeedsDiffer(t *testing.T) {
	t.Parallel()
	a, b := must(NewBlocked(nil))(t), must(NewBlocked(nil))(t)
	if a.hasher == b.hasher || a.hasher == newHasher(seed{}) {
		t.Errorf("hashers %x and %x", a.hasher, b.hasher)
	}
}

func TestNilOptionsGiveTheStatedDefaults(t *testing.T) {
	t.Parallel()
	blocked, rotating := must(NewBlocked(nil))(t), must(NewRotating(nil))(t)
	for _, f := range []anyFilter{blocked, rotating} {
		if capacity(f) != 1_000_000 {
			t.Errorf("%T: capacity %d", f, capacity(f))
		}
		if f.Len() != 0 || f.Fill() != 0 || f.ErrorRate() != 0 || f.Over() || f.Has(id(1)) {
			t.Errorf("%T: a new filter is not empty", f)
		}
	}
	fixed, windowed := must((*Options)(nil).withDefaults())(t), must((*RotatingOptions)(nil).withDefaults())(t)
	if fixed.ErrorRate != 0.001 || windowed.ErrorRate != 0.001 {
		t.Errorf("error rates %g, %g", fixed.ErrorRate, windowed.ErrorRate)
	}
	if rotating.window != 24*time.Hour || rotating.generations != 8 {
		t.Errorf("a window of %v in %d generations", rotating.window, rotating.generations)
	}
	if blocked.full != Refuse || rotating.full != Refuse {
		t.Error("the default is not Refuse")
	}
}

func TestAllBadOptionsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, small := NewBlocked(&Options{Capacity: -1, ErrorRate: 1e-10, WhenFull: 2})
	_, large := NewBlocked(&Options{Capacity: 1<<36 + 1, ErrorRate: 0.6, WhenFull: 3})
	_, rotating := NewRotating(&RotatingOptions{Capacity: -5, Window: 1, Generations: 3, ErrorRate: math.NaN(), WhenFull: 9})
	for _, c := range []struct {
		err   error
		names []string
	}{
		{small, []string{"Options.Capacity: -1", "Options.ErrorRate: 1e-10", "Options.WhenFull: 2"}},
		{large, []string{"Options.Capacity: 68719476737", "Options.ErrorRate: 0.6", "Options.WhenFull: 3"}},
		{rotating, []string{
			"RotatingOptions.Capacity: -5", "RotatingOptions.Window: 1ns", "RotatingOptions.Generations: 3",
			"RotatingOptions.ErrorRate: NaN", "RotatingOptions.WhenFull: 9",
		}},
	} {
		if !errors.Is(c.err, semel.ErrInvalidRequest) {
			t.Errorf("%v is not ErrInvalidRequest", c.err)
			continue
		}
		for _, name := range c.names {
			if !strings.Contains(c.err.Error(), "filter: "+name) {
				t.Errorf("%q does not name %q", c.err, name)
			}
		}
	}
}

func TestNewBlockedDoesNotChangeItsOptions(t *testing.T) {
	t.Parallel()
	var o Options
	must(NewBlocked(&o))(t)
	if o != (Options{}) {
		t.Errorf("options became %+v", o)
	}
}

func TestAddAndHasDoNotAllocate(t *testing.T) {
	// Not parallel: testing.AllocsPerRun counts for the whole process.
	for _, kind := range kinds {
		f := kind.make(t, 10_000, testSeed(t), Report)
		key := id(1)
		got := testing.AllocsPerRun(100, func() {
			key[0]++
			f.Add(key)
			f.Has(key)
		})
		if got != 0 {
			t.Errorf("%s: %v allocations", kind.name, got)
		}
	}
}
