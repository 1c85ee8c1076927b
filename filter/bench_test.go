package filter

import (
	"fmt"
	"testing"
	"time"
)

// benchIDs is how many ids a benchmark's filter holds. The first pass adds
// them, the others ask for what is there and what is not.
const benchIDs = 1_000_000

// shuffled visits all ids below n, a power of two or not, in an order that has
// nothing to do with that in which they were added.
func shuffled(i, n int) int { return int(uint64(i) * 7_368_787 % uint64(n)) }

func benchFilters(b *testing.B) map[string]func() anyFilter {
	seed := testSeed(b)
	o := Options{Capacity: benchIDs, Seed: seed}
	return map[string]func() anyFilter{
		"Bloom":   func() anyFilter { return must(NewBloom(&o))(b) },
		"Blocked": func() anyFilter { return must(NewBlocked(&o))(b) },
		"Rotating": func() anyFilter {
			return must(NewRotating(&RotatingOptions{Capacity: benchIDs, Seed: seed}))(b)
		},
	}
}

// perID reports a benchmark whose operation is a pass over n ids.
func perID(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/id")
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds()/1e6, "Mid/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAdd is test-and-add of a million unseen ids to an empty filter.
func BenchmarkAdd(b *testing.B) {
	for name, newFilter := range benchFilters(b) {
		b.Run(name, func(b *testing.B) {
			var f anyFilter
			for b.Loop() {
				b.StopTimer()
				f = newFilter()
				b.StartTimer()
				for i := range benchIDs {
					f.Add(id(i))
				}
			}
			perID(b, benchIDs)
			b.ReportMetric(float64(f.Bytes())*8/benchIDs, "bits/id")
		})
	}
}

// BenchmarkHas asks a full filter for ids that it has, and that it has not.
func BenchmarkHas(b *testing.B) {
	for name, newFilter := range benchFilters(b) {
		f := newFilter()
		for i := range benchIDs {
			f.Add(id(i))
		}
		for what, first := range map[string]int{"present": 0, "absent": benchIDs} {
			b.Run(fmt.Sprintf("%s/%s", name, what), func(b *testing.B) {
				seen := 0
				for b.Loop() {
					for i := range benchIDs {
						if f.Has(id(first + shuffled(i, benchIDs))) {
							seen++
						}
					}
				}
				perID(b, benchIDs)
				b.ReportMetric(float64(seen)/float64(b.N*benchIDs), "seen")
			})
		}
	}
}

// BenchmarkChurn is a full window of which each new id lets an old one expire.
func BenchmarkChurn(b *testing.B) {
	const window = 47 * time.Second
	f := must(NewRotating(&RotatingOptions{Capacity: benchIDs, Window: window, WhenFull: Report}))(b)
	now, next := time.Unix(1_700_000_000, 0), 0
	step := window / benchIDs
	pass := func() {
		for range benchIDs {
			if next%64 == 0 { // a batch
				f.Advance(now.Add(time.Duration(next) * step))
			}
			f.Add(id(next))
			next++
		}
	}
	pass()
	b.ResetTimer()
	for b.Loop() {
		pass()
	}
	perID(b, benchIDs)
}
