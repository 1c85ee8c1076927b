package pipeline_test

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/semel-dev/semel/pipeline"
)

// TestWatermarkNeverPassesAnUnsettledItem settles items in random order and compares
// the watermark with a naive model.
func TestWatermarkNeverPassesAnUnsettledItem(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		var w pipeline.Watermark
		if _, begun := w.Low(); begun {
			t.Fatal("a watermark that has read nothing has a position")
		}
		type item struct {
			at, next int64
			settled  bool
		}
		var items []item
		var open []int
		at := random.Int64N(1000)
		first, done := at, 0 // the items before done are settled
		for step := 0; step < 2000; step++ {
			if len(open) == 0 || random.IntN(2) == 0 {
				next := at + 1 + random.Int64N(3)
				if w.Read([]int64{at}, next) != 1 {
					t.Fatalf("an item at %d was refused", at)
				}
				items = append(items, item{at: at, next: next})
				open = append(open, len(items)-1)
				at = next + random.Int64N(3)/2 // gaps now and then
			} else {
				// Mostly near the front, as pipelines settle.
				i := min(random.IntN(8), len(open)-1)
				chosen := open[i]
				open = append(open[:i], open[i+1:]...)
				if w.Settle(items[chosen].at) != 1 {
					t.Fatalf("the item at %d was not found", items[chosen].at)
				}
				items[chosen].settled = true
				if w.Settle(items[chosen].at) != 0 {
					t.Fatalf("the item at %d was settled twice", items[chosen].at)
				}
			}
			for done < len(items) && items[done].settled {
				done++
			}
			want, under := first, len(items)-done
			if done > 0 {
				want = items[done-1].next
			}
			ahead := int64(0)
			for _, it := range items[len(items)-under:] {
				if it.settled {
					ahead += it.next - it.at
				}
			}
			low, settled, _ := w.Ahead()
			if low != want || settled != ahead || w.Unsettled() != under {
				t.Fatalf("low %d with %d settled and %d unsettled behind it, want %d with %d and %d", low, settled, w.Unsettled(), want, ahead, under)
			}
			if again, _ := w.Low(); again != low {
				t.Fatalf("two lows: %d and %d", low, again)
			}
		}
	}
}

func TestWatermarkRefusesUnknownItems(t *testing.T) {
	t.Parallel()
	var w pipeline.Watermark
	w.Read([]int64{10}, 20)
	w.Read([]int64{30}, 40)
	for _, at := range []int64{0, 9, 11, 20, 31, 40} {
		if w.Settle(at) != 0 {
			t.Errorf("an item at %d was settled that was never read", at)
		}
	}
	for _, read := range [][2]int64{{5, 6}, {30, 40}, {39, 50}, {40, 40}, {41, 40}} {
		if w.Read(read[:1], read[1]) != 0 {
			t.Errorf("an item from %d to %d was noted", read[0], read[1])
		}
	}
	if n := w.Settle(30, 7, 10); n != 2 {
		t.Errorf("%d items are settled, want 2", n)
	}
	if low, _ := w.Low(); low != 40 {
		t.Errorf("low %d, want 40", low)
	}
	if w.Read([]int64{10}, 20) != 0 {
		t.Error("an item before the watermark was noted")
	}
	if w.Read([]int64{40}, 41) != 1 || w.Unsettled() != 1 {
		t.Error("the watermark notes no further item")
	}
}

func TestWatermarkIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var w pipeline.Watermark
	const items = 10_000
	var positions []int64
	for i := range int64(items) {
		positions = append(positions, i)
	}
	w.Read(positions, items)
	var working sync.WaitGroup
	for worker := range 4 {
		working.Go(func() {
			for i := worker; i < items; i += 4 {
				w.Settle(int64(i))
				w.Low()
			}
		})
	}
	working.Wait()
	if low, _ := w.Low(); low != items || w.Unsettled() != 0 {
		t.Errorf("low %d with %d unsettled, want %d and none", low, w.Unsettled(), items)
	}
}
