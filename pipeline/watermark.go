package pipeline

import (
	"slices"
	"sync"
)

// Watermark tells up to which position everything is settled, for a source that
// forgets up to a position while its items are settled in any order: one for
// each partition or file. The zero value is a watermark that has seen nothing.
// Many goroutines may call its methods; none blocks.
type Watermark struct {
	mu    sync.Mutex
	low   int64
	begun bool
	// under[head:] are the items that were read and from the first of which on
	// not all are settled, by position.
	under []underway
	head  int
	// hint is where the item behind the last one settled stands: most come in
	// order.
	hint int
}

type underway struct {
	at, next int64
	settled  bool
}

// Read notes that an item was read at a position, and that the source would go
// on at next once it may forget it. Positions grow from call to call, and next
// is above at; what lies between two items, such as records without a message,
// needs no settling. An item at or below the last position is not noted: Read
// returns false.
func (w *Watermark) Read(at, next int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.read(at, next)
}

// ReadAll is Read for many items, under one lock: each goes on where the next
// one is, and the last at end.
func (w *Watermark) ReadAll(positions []int64, end int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, at := range positions {
		next := end
		if i+1 < len(positions) {
			next = positions[i+1]
		}
		w.read(at, next)
	}
}

func (w *Watermark) read(at, next int64) bool {
	if n := len(w.under); next <= at || n > w.head && at < w.under[n-1].next || w.begun && at < w.low {
		return false
	}
	if !w.begun {
		w.low, w.begun = at, true
	}
	w.under = append(w.under, underway{at: at, next: next})
	return true
}

// Settle notes that the item at a position is settled. It returns false, and
// changes nothing, if there is none or it was settled before: it belongs to an
// earlier life of the partition.
func (w *Watermark) Settle(at int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settle(at)
}

// SettleAll is Settle for many positions, under one lock.
func (w *Watermark) SettleAll(positions []int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range positions {
		w.settle(at)
	}
}

func (w *Watermark) settle(at int64) bool {
	if at < w.low {
		return false
	}
	i := w.hint
	if i < w.head || i >= len(w.under) || w.under[i].at != at {
		found := false
		i, found = slices.BinarySearchFunc(w.under[w.head:], at, func(u underway, at int64) int {
			switch {
			case u.at < at:
				return -1
			case u.at > at:
				return 1
			}
			return 0
		})
		if !found {
			return false
		}
		i += w.head
	}
	if w.under[i].settled {
		return false
	}
	w.under[i].settled = true
	w.hint = i + 1
	for w.head < len(w.under) && w.under[w.head].settled {
		w.low = w.under[w.head].next
		w.head++
	}
	if w.head > len(w.under)/2 && w.head > 64 {
		w.under = slices.Delete(w.under, 0, w.head)
		w.hint -= w.head
		w.head = 0
	}
	return true
}

// Low returns the position up to which everything is settled: the next of the
// last item before which all are. It returns false if nothing was read yet.
func (w *Watermark) Low() (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low, w.begun
}

// Unsettled returns how many items from Low on were read, settled ones behind
// an unsettled one included.
func (w *Watermark) Unsettled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.under) - w.head
}
