package pipeline

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Blocks makes items for a source, many in one piece of memory, which it uses
// again once the runner is done with all of them: a source that reads much leaves
// the collector little to do. Who has been given such an item must not look at it
// when it is not its turn any more. The zero value is ready, and safe for
// concurrent use.
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

// Items returns n zero items. Those that the runner never gets, that it turns away
// because their partition was closed, or that a session had something for when it was,
// only keep the piece from being used again.
func (b *Blocks) Items(n int) []Item {
	k := b.take(n)
	if k == nil { // with room for a few more, because n varies
		k = &block{of: b, items: make([]Item, n+n/16)}
		k.clear()
	}
	k.left.Store(int64(n))
	return k.items[:n]
}

// ItemsIn is Items for messages that lie in what Memory has returned, which is used
// again like the items. It is for a source that knows its session: one that looks
// at no message any more when its item is settled.
func (b *Blocks) ItemsIn(memory []byte, n int) []Item {
	items := b.Items(n)
	if n > 0 {
		items[0].block.memory = memory
	}
	return items
}

// Memory returns n bytes that hold anything.
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

// spent notes that nobody will look at an item of the block again, and reports
// whether that was the last.
func (k *block) spent() bool { return k.left.Add(-1) == 0 }

// reuse has a block used again of which all items are spent.
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
	for len(b.idle) > 0 && b.items+len(k.items) > idleItems { // the oldest may be of a size that nobody asks for
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
