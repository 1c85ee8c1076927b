package pipeline

import (
	"sync"
	"sync/atomic"
)

// Blocks makes items for a source, many in one piece of memory, which it uses
// again once the runner is done with all of them: a source that reads much leaves
// the collector little to do. Who has been given such an item must not look at it
// when it is not its turn any more. The zero value is ready, and safe for
// concurrent use.
type Blocks struct {
	mu   sync.Mutex
	idle []*block // all clear
}

// idleBlocks is how many pieces wait to be used again: about what is under way.
const idleBlocks = 8

// block is one piece of memory.
type block struct {
	of    *Blocks
	items []Item
	left  atomic.Int64 // items that the runner is not done with
}

// Items returns n zero items. Those that the runner never gets, that it turns away
// because their lane was closed, or that a session had something for when it was,
// only keep the piece from being used again.
func (b *Blocks) Items(n int) []Item {
	k := b.take(n)
	if k == nil {
		k = &block{of: b, items: make([]Item, n)}
	}
	k.left.Store(int64(n))
	items := k.items[:n]
	for i := range items {
		items[i].block = k
	}
	return items
}

// take returns an idle block for n items, or nil. It is not more than twice as
// large: an item that stays under way keeps its whole block.
func (b *Blocks) take(n int) *block {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.idle) - 1; i >= 0; i-- {
		if k := b.idle[i]; n <= len(k.items) && len(k.items) <= 2*n {
			b.idle = append(b.idle[:i], b.idle[i+1:]...)
			return k
		}
	}
	return nil
}

// spent notes that nobody will look at an item of the block again, and reports
// whether that was the last.
func (k *block) spent() bool { return k.left.Add(-1) == 0 }

// reuse has a block used again of which all items are spent.
func (k *block) reuse() {
	clear(k.items) // what waits must hold nothing
	b := k.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.idle) == idleBlocks { // the oldest may be of a size that nobody asks for
		b.idle = append(b.idle[:0], b.idle[1:]...)
	}
	b.idle = append(b.idle, k)
}
