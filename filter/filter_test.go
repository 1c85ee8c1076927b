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
func testSeed(t testing.TB) Seed {
	t.Helper()
	t.Logf("-filter.seed=%d", *seedFlag)
	var s Seed
	binary.LittleEndian.PutUint64(s[:], *seedFlag)
	s[15] = 1 // never the zero Seed
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
	AddDigest(d semel.Digest) (maybeSeen bool, err error)
	Has(id []byte) bool
	HasDigest(d semel.Digest) bool
	Len() int
	Capacity() int
	Over() bool
	Bytes() int
	Fill() float64
	ErrorRate() float64
}

// kinds makes one filter of each kind. A Rotating filter gets a window by time,
// and its current generation has the given capacity.
var kinds = []struct {
	name string
	make func(t testing.TB, capacity int, seed Seed, full WhenFull) anyFilter
}{
	{"Bloom", func(t testing.TB, n int, seed Seed, full WhenFull) anyFilter {
		return must(NewBloom(&Options{Capacity: n, Seed: seed, WhenFull: full}))(t)
	}},
	{"Blocked", func(t testing.TB, n int, seed Seed, full WhenFull) anyFilter {
		return must(NewBlocked(&Options{Capacity: n, Seed: seed, WhenFull: full}))(t)
	}},
	{"Rotating", func(t testing.TB, n int, seed Seed, full WhenFull) anyFilter {
		o := RotatingOptions{Capacity: 7 * n, Window: time.Hour, Seed: seed, WhenFull: full}
		return must(NewRotating(&o))(t)
	}},
}

// snapshot returns the whole state of a filter as text, for comparison.
func snapshot(f anyFilter) string { return fmt.Sprintf("%+v", f) }

// words returns the bits of a filter.
func words(f anyFilter) []uint64 {
	switch f := f.(type) {
	case *Bloom:
		return f.words
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

func TestReportingFilterGoesOnAndTells(t *testing.T) {
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

// A store may choose a shard by some bits of a digest and give each shard a
// filter.
func TestDigestsThatShareBitsFillAFilterEvenly(t *testing.T) {
	t.Parallel()
	masks := map[string]func(d *semel.Digest){
		"first byte": func(d *semel.Digest) { d[0] = 7 },
		"byte 7":     func(d *semel.Digest) { d[7] = 7 },
		"byte 8":     func(d *semel.Digest) { d[8] = 7 },
		"last byte":  func(d *semel.Digest) { d[15] = 7 },
		"first half": func(d *semel.Digest) { clear(d[:8]) },
		"last half":  func(d *semel.Digest) { clear(d[8:]) },
	}
	for _, kind := range kinds {
		for name, mask := range masks {
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				const n = 20_000
				h := newHasher(Seed{9}) // stands for the store's hash
				digest := func(i int) (d semel.Digest) {
					x, y := h.id(id(i))
					binary.LittleEndian.PutUint64(d[:], x)
					binary.LittleEndian.PutUint64(d[8:], y)
					mask(&d)
					return d
				}
				f := kind.make(t, n, testSeed(t), Report)
				for i := range n {
					must(f.AddDigest(digest(i)))(t)
				}
				wrong := 0
				for i := range 2 * n {
					if seen := f.HasDigest(digest(i)); i < n && !seen {
						t.Fatalf("digest %d is not seen", i)
					} else if i >= n && seen {
						wrong++
					}
				}
				if p := f.ErrorRate(); p > 0.0012 {
					t.Errorf("error rate %g at capacity", p)
				}
				if wrong > bound(n, 0.001) {
					t.Errorf("%d of %d absent digests are called seen", wrong, n)
				}
			})
		}
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
	a, b := must(NewBloom(nil))(t), must(NewBloom(nil))(t)
	if a.hasher == b.hasher || a.hasher == newHasher(Seed{}) {
		t.Errorf("hashers %x and %x", a.hasher, b.hasher)
	}
}

func TestNilOptionsGiveTheStatedDefaults(t *testing.T) {
	t.Parallel()
	bloom, blocked := must(NewBloom(nil))(t), must(NewBlocked(nil))(t)
	rotating := must(NewRotating(nil))(t)
	for _, f := range []anyFilter{bloom, blocked, rotating} {
		if f.Capacity() != 1_000_000 {
			t.Errorf("%T: capacity %d", f, f.Capacity())
		}
		if f.Len() != 0 || f.Fill() != 0 || f.ErrorRate() != 0 || f.Over() || f.Has(id(1)) {
			t.Errorf("%T: a new filter is not empty", f)
		}
	}
	fixed, windowed := must((*Options)(nil).withDefaults(minError))(t), must((*RotatingOptions)(nil).withDefaults())(t)
	if fixed.ErrorRate != 0.001 || windowed.ErrorRate != 0.001 {
		t.Errorf("error rates %g, %g", fixed.ErrorRate, windowed.ErrorRate)
	}
	if rotating.window != 0 || rotating.generations != 8 {
		t.Errorf("a window of %v in %d generations", rotating.window, rotating.generations)
	}
	if bloom.full != Refuse || blocked.full != Refuse || rotating.full != Refuse {
		t.Error("the default is not Refuse")
	}
}

func TestAllBadOptionsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, bloom := NewBloom(&Options{Capacity: -1, ErrorRate: 1e-10, WhenFull: 2})
	_, blocked := NewBlocked(&Options{Capacity: 1<<36 + 1, ErrorRate: 1e-7, WhenFull: 3})
	_, rotating := NewRotating(&RotatingOptions{Capacity: -5, Window: 1, Generations: 3, ErrorRate: math.NaN(), WhenFull: 9})
	for _, c := range []struct {
		err   error
		names []string
	}{
		{bloom, []string{"Options.Capacity: -1", "Options.ErrorRate: 1e-10", "Options.WhenFull: 2"}},
		{blocked, []string{"Options.Capacity: 68719476737", "Options.ErrorRate: 1e-07", "Options.WhenFull: 3"}},
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

func TestOptionsAreNotChanged(t *testing.T) {
	t.Parallel()
	var o Options
	must(NewBloom(&o))(t)
	if o != (Options{}) {
		t.Errorf("options became %+v", o)
	}
}

func TestAddAndHasDoNotAllocate(t *testing.T) {
	// Not parallel: testing.AllocsPerRun counts for the whole process.
	for _, kind := range kinds {
		f := kind.make(t, 10_000, testSeed(t), Report)
		key, digest := id(1), semel.Digest{1}
		got := testing.AllocsPerRun(100, func() {
			key[0]++
			digest[0]++
			f.Add(key)
			f.Has(key)
			f.AddDigest(digest)
			f.HasDigest(digest)
		})
		if got != 0 {
			t.Errorf("%s: %v allocations", kind.name, got)
		}
	}
}
