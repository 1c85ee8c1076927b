package pipeline

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Blocks makes items for a source, many in one piece of memory. It uses the memory
// again once the runner is done with all of them, so that a source that reads much
// leaves little to the garbage collector. Only the owner of such an item may look at
// it. The zero value is ready, and safe for concurrent use.
type Blocks struct {
	mu     sync.Mutex
	idle   []*block // all clear
	items  int      // in them
	memory [][]byte // of messages, to be used again
}

// idleItems is how many items wait to be used again, or one piece that has more:
// about what is under way.
const idleItems = 1 << 15

// idleMemory is how many pieces of memory of messages wait to be used again.
const idleMemory = 32

// block is one piece of memory.
type block struct {
	of     *Blocks
	items  []Item
	left   atomic.Int64 // items that the runner is not done with
	memory []byte       // that their messages lie in, or nil
}

// Items returns n zero items. Their memory is not used again if the runner never gets
// one of them, or forgets one because its partition is closed while the session holds
// something for it.
func (b *Blocks) Items(n int) []Item {
	k := b.take(n)
	if k == nil { // with room for a few more, because n varies
		k = &block{of: b, items: make([]Item, n+n/16)}
		k.clear()
	}
	k.left.Store(int64(n))
	return k.items[:n]
}

// ItemsIn is Items for messages that lie in memory that Memory has returned. That
// memory is used again like the items. It is for a source that knows its session: the
// session must not look at a message when its item is settled.
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

// take returns an idle block for n items, or nil. It is not more than twice as
// large: an item that stays under way keeps its whole block.
func (b *Blocks) take(n int) *block {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.idle) - 1; i >= 0; i-- {
		if k := b.idle[i]; n <= len(k.items) && len(k.items) <= 2*n {
			b.out(i)
			return k
		}
	}
	return nil
}

// out takes a block out of those that are idle.
func (b *Blocks) out(i int) {
	b.items -= len(b.idle[i].items)
	b.idle = slices.Delete(b.idle, i, i+1)
}

// spent notes that an item of the block is not used any more, and reports whether it
// was the last one.
func (k *block) spent() bool { return k.left.Add(-1) == 0 }

// reuse makes a block idle whose items are all spent.
func (k *block) reuse() {
	k.clear() // what waits must hold nothing
	b := k.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if k.memory != nil {
		if len(b.memory) == idleMemory {
			b.memory = slices.Delete(b.memory, 0, 1)
		}
		b.memory, k.memory = append(b.memory, k.memory), nil
	}
	for len(b.idle) > 0 && b.items+len(k.items) > idleItems { // the oldest may be of a size that no source asks for
		b.out(0)
	}
	b.idle = append(b.idle, k)
	b.items += len(k.items)
}

// clear leaves nothing in the items but their block.
func (k *block) clear() {
	for i := range k.items {
		k.items[i] = Item{block: k}
	}
}
