package filter

import (
	"fmt"
	"testing"
	"time"
)

// benchIDs is the number of ids in the filter of a benchmark. The first pass
// adds them. The other passes ask for present and absent ids.
const benchIDs = 1_000_000

// shuffled visits all ids below n in an order that is unrelated to the order in
// which they were added.
func shuffled(i, n int) int { return int(uint64(i) * 7_368_787 % uint64(n)) }

func benchFilters(b *testing.B) map[string]func() anyFilter {
	seed := testSeed(b)
	o := Options{Capacity: benchIDs, seed: seed}
	return map[string]func() anyFilter{
		"Blocked": func() anyFilter { return must(NewBlocked(&o))(b) },
		"Rotating": func() anyFilter {
			return must(NewRotating(&RotatingOptions{Capacity: benchIDs, seed: seed, WhenFull: Report}))(b)
		},
	}
}

// perID reports the result of a benchmark whose operation is a pass over n ids.
func perID(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/id")
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds()/1e6, "Mid/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkAdd adds a million unseen ids to an empty filter.
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

// BenchmarkHas asks a full filter for present and for absent ids.
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

// BenchmarkChurn measures a full window in which each new id makes an old one
// expire.
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
