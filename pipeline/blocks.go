package pipeline

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Blocks allocates items for a source, many in one block. It reuses a block when the
// runner needs none of its items any longer. A source that reads fast then leaves
// little to the garbage collector. Only the owner of such an item may read it. The
// zero value is ready to use, and safe for concurrent use.
type Blocks struct {
	mu     sync.Mutex
	idle   []*block // all clear
	items  int      // the number of items in idle
	memory [][]byte // idle memory for messages
}

const (
	// maxIdleItems limits the items of all idle blocks, to about as many as are in
	// progress. One larger block may be idle alone.
	maxIdleItems = 1 << 15
	// maxIdleMemory limits the number of idle pieces of memory for messages.
	maxIdleMemory = 32
)

// block is a number of items that were allocated together.
type block struct {
	of     *Blocks
	items  []Item
	left   atomic.Int64 // the number of items that the runner still needs
	memory []byte       // has the bytes of their messages; may be nil
}

// Items returns n zero items. Their block is not reused if the runner does not get all
// of them. Nor is it reused if the runner drops an item of a closed partition for which
// the session holds something.
func (b *Blocks) Items(n int) []Item {
	k := b.take(n)
	if k == nil { // with room for a few more, because n varies
		k = &block{of: b, items: make([]Item, n+n/16)}
		k.clear()
	}
	k.left.Store(int64(n))
	return k.items[:n]
}

// ItemsIn is Items for messages whose bytes are in memory that Memory has returned, or
// nil. The memory is reused together with the items. A source may use it only if its
// session does not read a message after its item is settled.
func (b *Blocks) ItemsIn(memory []byte, n int) []Item {
	items := b.Items(n)
	if n > 0 {
		items[0].block.memory = memory
	}
	return items
}

// Memory returns n bytes with any content.
func (b *Blocks) Memory(n int) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.memory) - 1; i >= 0; i-- {
		if m := b.memory[i]; n <= cap(m) && cap(m) <= 2*n {
			b.memory = slices.Delete(b.memory, i, i+1)
			return m[:n]
		}
	}
	return make([]byte, n)
}

// take returns an idle block for n items, or nil. The block is not more than twice as
// large, because one item that stays in progress keeps its whole block.
func (b *Blocks) take(n int) *block {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.idle) - 1; i >= 0; i-- {
		if k := b.idle[i]; n <= len(k.items) && len(k.items) <= 2*n {
			b.remove(i)
			return k
		}
	}
	return nil
}

// remove removes an idle block.
func (b *Blocks) remove(i int) {
	b.items -= len(b.idle[i].items)
	b.idle = slices.Delete(b.idle, i, i+1)
}

// release notes that the runner no longer needs an item of the block. It reports
// whether that was the last one.
func (k *block) release() bool { return k.left.Add(-1) == 0 }

// reuse makes a block idle after all its items were released.
func (k *block) reuse() {
	k.clear() // an idle block must keep nothing alive
	b := k.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if k.memory != nil {
		if len(b.memory) == maxIdleMemory {
			b.memory = slices.Delete(b.memory, 0, 1)
		}
		b.memory, k.memory = append(b.memory, k.memory), nil
	}
	for len(b.idle) > 0 && b.items+len(k.items) > maxIdleItems { // no source may need the size of the oldest
		b.remove(0)
	}
	b.idle = append(b.idle, k)
	b.items += len(k.items)
}

// clear resets the items, except for their block.
func (k *block) clear() {
	for i := range k.items {
		k.items[i] = Item{block: k}
	}
}
