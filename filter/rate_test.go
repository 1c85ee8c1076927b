package filter

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// fillTo adds distinct ids until Len is n, and returns the first id that was
// not added.
func fillTo(t testing.TB, f anyFilter, n int) (next int) {
	t.Helper()
	for ; f.Len() < n; next++ {
		must(f.Add(id(next)))(t)
	}
	return next
}

// wrongly returns how many of many absent ids the filter reports as seen.
func wrongly(f anyFilter, first, trials int) int {
	wrong := 0
	for i := first; i < first+trials; i++ {
		if f.Has(id(i)) {
			wrong++
		}
	}
	return wrong
}

// The test checks the rates of the package documentation, and others. A
// measured rate has a statistical error. So the test compares the rate that
// follows from the fill with close bounds, and the measured rate with the rate
// from the fill.
func TestRateAtCapacityAndAtTwiceTheCapacity(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  string
		p     float64
		twice float64
	}{
		{"Blocked", 0.05, 0.236},
		{"Blocked", 0.001, 0.0373},
		{"Rotating", 0.05, 0.574},
		{"Rotating", 0.001, 0.0915},
	} {
		t.Run(fmt.Sprint(c.kind, c.p), func(t *testing.T) {
			t.Parallel()
			f, load := rated(t, c.kind, c.p)
			is := measured(t, f, load(1))
			if is > c.p || is < 0.8*c.p {
				t.Errorf("at capacity the fill gives a rate of %g, asked for %g", is, c.p)
			}
			is = measured(t, f, load(2))
			if math.Abs(is/c.twice-1) > 0.05 {
				t.Errorf("at twice the capacity the fill gives a rate of %g, not %g", is, c.twice)
			}
		})
	}
}

// measured returns the rate that follows from the fill, after comparing it with
// the share of absent ids that the filter reports as seen.
func measured(t *testing.T, f anyFilter, next int) float64 {
	t.Helper()
	const trials = 200_000
	is, wrong := f.ErrorRate(), wrongly(f, next, trials)
	t.Logf("rate %.4g from the fill, %.4g measured", is, float64(wrong)/trials)
	mean := is * trials
	if math.Abs(float64(wrong)-mean) > 6*math.Sqrt(mean) {
		t.Errorf("%d of %d absent ids are called seen; the fill says %.0f", wrong, trials, mean)
	}
	return is
}

// rated returns a filter and a function that loads the filter with distinct
// ids, up to a multiple of its capacity. The function returns the first absent
// id.
func rated(t testing.TB, kind string, p float64) (anyFilter, func(times int) int) {
	const n = 100_000
	o := Options{Capacity: n, ErrorRate: p, seed: testSeed(t), WhenFull: Report}
	var f anyFilter
	switch kind {
	case "Blocked":
		f = must(NewBlocked(&o))(t)
	case "Rotating":
		return ratedRotating(t, o)
	}
	return f, func(times int) int {
		for i := range times * n {
			must(f.Add(id(i)))(t)
		}
		return times * n
	}
}

// ratedRotating loads every generation.
func ratedRotating(t testing.TB, o Options) (anyFilter, func(times int) int) {
	r := must(NewRotating(&RotatingOptions{
		Capacity: o.Capacity, Window: 7 * time.Second, ErrorRate: o.ErrorRate, seed: o.seed, WhenFull: Report,
	}))(t)
	next, now := 0, time.Unix(1_700_000_000, 0)
	return r, func(times int) int {
		for range r.generations {
			now = now.Add(time.Second)
			r.Advance(now)
			for range times * r.share {
				must(r.Add(id(next)))(t)
				next++
			}
		}
		return next
	}
}

// A filter does not count its false positives, so it accepts more ids than its
// capacity before it refuses.
func TestRateIsKeptUntilTheFirstRefusal(t *testing.T) {
	t.Parallel()
	for _, p := range []float64{0.5, 0.2, 0.05, 0.001} {
		o := Options{Capacity: 50_000, ErrorRate: p, seed: testSeed(t)}
		f := must(NewBlocked(&o))(t)
		next := fillTo(t, f, o.Capacity)
		if is := f.ErrorRate(); is > p {
			t.Errorf("after %d ids a filter has a rate of %g, above %g", next, is, p)
		}
	}
}

// The sizes go down to one id, where formulas for large filters promise too
// much.
func TestSmallFiltersKeepTheirRate(t *testing.T) {
	t.Parallel()
	const filters, trials = 100, 1000
	seed := testSeed(t)
	for _, n := range []int{1, 10, 33, 100, 1000} {
		for _, p := range []float64{0.1, 0.001} {
			wrong := 0
			for i := range filters {
				seed[14] = byte(i)
				f := must(NewBlocked(&Options{Capacity: n, ErrorRate: p, seed: seed}))(t)
				wrong += wrongly(f, fillTo(t, f, n), trials)
			}
			if wrong > bound(filters*trials, p) {
				t.Errorf("%d ids at %g: %d of %d absent ids are called seen", n, p, wrong, filters*trials)
			}
		}
	}
}

// The closed search for the number of probes finds the same as trying all
// numbers.
func TestBlockedSizeIsTheSmallest(t *testing.T) {
	t.Parallel()
	const n = 1_000_000
	for _, p := range []float64{0.5, 0.1, 0.01, 0.001, 1e-4, 1e-6, 1e-9} {
		blocks, k := blockedSize(n, p)
		for try := 1; try <= maxProbes; try++ {
			if load := blockLoad(try, margin*p); offered(n, p)/load < float64(blocks-1) {
				t.Errorf("at %g, %d probes take %.0f blocks, and %d probes take %d", p, try, n/load, k, blocks)
			}
		}
	}
}

func TestBlockRatesAreNearTheExactOnes(t *testing.T) {
	t.Parallel()
	// These are the exact rates, from the distribution of the number of set
	// bits.
	for _, k := range []int{1, 3, 9, maxProbes} {
		rates := blockRates(k, 150)
		chance := make([]float64, blockBits+1) // of each number of set bits
		chance[0] = 1
		for i := range 151 {
			var exact float64
			for set, c := range chance {
				exact += c * math.Pow(float64(set)/blockBits, float64(k))
			}
			if math.Abs(rates[i]-exact) > 0.03*exact || i > 10 && math.Abs(rates[i]-exact) > 0.005*exact {
				t.Errorf("%d ids of %d probes: rate %g, exactly %g", i, k, rates[i], exact)
			}
			for range k {
				for set := blockBits; set > 0; set-- {
					chance[set] = (chance[set]*float64(set) + chance[set-1]*float64(blockBits-set+1)) / blockBits
				}
				chance[0] = 0
			}
		}
	}
}

func TestBitsPerIDAreThoseStated(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		f    anyFilter
		bits float64
	}{
		{must(NewBlocked(nil))(t), 15.6},
		{must(NewBlocked(&Options{ErrorRate: 1e-6}))(t), 39.4},
		{must(NewBlocked(&Options{ErrorRate: 1e-9}))(t), 91.8},
		{must(NewRotating(nil))(t), 24.9},
	} {
		if got := float64(c.f.Bytes()) * 8 / float64(capacity(c.f)); math.Abs(got-c.bits) > 0.06 {
			t.Errorf("%T takes %.2f bits for each id, not %g", c.f, got, c.bits)
		}
	}
}
