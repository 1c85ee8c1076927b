package run

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// planned is a run of which only the size is known, and how often its entries were written.
type planned struct{ entries, each, written int64 }

func (p planned) Entries() int64   { return p.entries }
func (p planned) DiskBytes() int64 { return p.entries * p.each }

// TestManyRunsBecomeFewLargeOnes adds runs as spills do, until there are far more entries
// than the largest run has. Each merge that Pick wants is made, sometimes only after many
// spills, as when a disk was full.
func TestManyRunsBecomeFewLargeOnes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const fanIn = 8
	always := func([]planned) bool { return true }
	for _, each := range []int64{21, 4096} {
		largest := min(mostMerged, mostMergedBytes/each)
		for range 40 {
			most := largest >> random.IntN(12) // entries of a spill
			least := most - random.Int64N(most/2)
			if random.IntN(4) == 0 {
				least = most - random.Int64N(64) // often just below a class
			}
			var runs []planned
			total, classes := int64(0), int64(1)
			for size := least; size < largest/2; size *= fanIn {
				classes++
			}
			late := random.IntN(2) == 0
			for total < 20*largest {
				spilled := planned{entries: least + random.Int64N(most-least+1), each: each, written: 1}
				runs, total = append(runs, spilled), total+spilled.entries
				if late && random.IntN(100) > 0 && total < 20*largest {
					continue
				}
				for {
					from, to := Pick(runs, fanIn, always)
					if from == to {
						break
					}
					merged := planned{each: each}
					for _, r := range runs[from:to] {
						merged.entries += r.entries
						merged.written = max(merged.written, r.written+1)
					}
					if to-from < 2 || merged.entries > largest {
						t.Fatalf("spills of %d to %d entries of %d bytes: %d runs become one of %d entries", least, most, each, to-from, merged.entries)
					}
					runs = slices.Replace(runs, from, to, merged)
				}
				if n, bound := int64(len(runs)), total/(largest/2)+1+classes*(fanIn-1); n > bound {
					t.Fatalf("spills of %d to %d entries of %d bytes: %d entries are in %d runs, want at most %d", least, most, each, total, n, bound)
				}
			}
			for _, r := range runs {
				if r.written > classes+2 {
					t.Errorf("spills of %d to %d entries of %d bytes: an entry was written %d times", least, most, each, r.written)
				}
			}
		}
	}
}
