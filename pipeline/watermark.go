package pipeline

import (
	"cmp"
	"slices"
	"sync"
)

// Watermark finds the position before which all items are settled, although items are
// settled in any order. A source that remembers a position has one for each partition
// or file. The zero value is ready to use. Many goroutines may call its methods; none
// blocks.
type Watermark struct {
	mu    sync.Mutex
	low   int64
	begun bool // something was read
	ahead int64
	// pending[head:] are the items from low on, by position. The first one is not
	// settled.
	pending []pendingItem
	head    int
	// hint is the index behind the item settled last, because most items are settled
	// in order.
	hint int
}

type pendingItem struct {
	at, next int64
	settled  bool
}

// Read notes that items were read at these positions, which grow from item to item and
// from call to call. An item ends where the next one is, and the last one at end. There
// may be gaps between calls, such as records without a message; they need no settling.
// Read ignores positions that are not behind all items read before. It returns how
// many items it noted.
func (w *Watermark) Read(positions []int64, end int64) (noted int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, at := range positions {
		next := end
		if i+1 < len(positions) {
			next = positions[i+1]
		}
		if n := len(w.pending); next <= at || n > w.head && at < w.pending[n-1].next || w.begun && at < w.low {
			continue
		}
		if !w.begun {
			w.low, w.begun = at, true
		}
		w.pending = append(w.pending, pendingItem{at: at, next: next})
		noted++
	}
	return noted
}

// Settle notes that the items at these positions are settled. It ignores positions
// where no unsettled item is: they belong to an earlier life of the partition. It
// returns how many items it settled.
func (w *Watermark) Settle(positions ...int64) (settled int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range positions {
		if w.settle(at) {
			settled++
		}
	}
	return settled
}

func (w *Watermark) settle(at int64) bool {
	if at < w.low {
		return false
	}
	i := w.hint
	if i < w.head || i >= len(w.pending) || w.pending[i].at != at {
		found := false
		i, found = slices.BinarySearchFunc(w.pending[w.head:], at, func(p pendingItem, at int64) int { return cmp.Compare(p.at, at) })
		if !found {
			return false
		}
		i += w.head
	}
	if w.pending[i].settled {
		return false
	}
	w.pending[i].settled = true
	w.hint = i + 1
	w.ahead += w.pending[i].next - at
	for w.head < len(w.pending) && w.pending[w.head].settled {
		first := &w.pending[w.head]
		w.low = first.next
		w.ahead -= first.next - first.at
		w.head++
	}
	if w.head > len(w.pending)/2 && w.head > 64 {
		w.pending = slices.Delete(w.pending, 0, w.head)
		w.hint -= w.head
		w.head = 0
	}
	return true
}

// Low returns the position before which all items are settled. It returns false if
// nothing was read yet.
func (w *Watermark) Low() (int64, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low, w.begun
}

// Ahead returns Low, and the sum of the extents of settled items behind it. What a source has
// from Low on, less that sum, is not settled. It returns false if nothing was read yet.
func (w *Watermark) Ahead() (low, settled int64, begun bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.low, w.ahead, w.begun
}

// Unsettled returns how many items were read from Low on. Settled items behind an
// unsettled one count too.
func (w *Watermark) Unsettled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pending) - w.head
}
