package pipeline

import "iter"

// groups maps each group to the chain of its items in progress. It is a hash table with
// linear probing, because every item costs two look-ups, and each is one access to
// memory here.
type groups struct {
	// slots is at most three quarters full. A slot without a head is empty. The number
	// of slots is a power of two, or 0.
	slots []chain
	count int
}

// chain is a list of the items of a group in their order.
type chain struct {
	group      uint64
	head, tail *entry
}

const leastGroups = 64

// home returns the first slot for a group. It leaves out the lowest bit, which is
// always set.
func (g *groups) home(group uint64) int { return int(group >> 1 & uint64(len(g.slots)-1)) }

// at returns the chain of a group. For a new group, the caller sets head and tail. The
// chain is valid until the next call of at or remove.
func (g *groups) at(group uint64) *chain {
	if 4*(g.count+1) > 3*len(g.slots) {
		g.grow()
	}
	c := g.find(group)
	if c.head == nil {
		c.group = group
		g.count++
	}
	return c
}

// find returns the chain of a group, or the empty slot for it. There must be slots.
func (g *groups) find(group uint64) *chain {
	for i := g.home(group); ; i = (i + 1) & (len(g.slots) - 1) {
		if c := &g.slots[i]; c.head == nil || c.group == group {
			return c
		}
	}
}

// touchAhead is the number of entries whose slots are loaded together.
const touchAhead = 64

// touch loads the slots of several entries. Another processor has written to most of
// the slots. Loaded together, they cost one wait instead of one each.
//
//go:noinline
func (g *groups) touch(entries []*entry) (sum uint64) {
	if len(g.slots) == 0 {
		return 0
	}
	for _, e := range entries {
		sum += g.slots[g.home(e.Group)].group
	}
	return sum
}

// remove empties a slot that find returned. An empty slot stays empty.
func (g *groups) remove(c *chain) {
	if c.head == nil {
		return
	}
	mask := len(g.slots) - 1
	gap := g.home(c.group)
	for &g.slots[gap] != c {
		gap = (gap + 1) & mask
	}
	g.count--
	// The slots behind it move back, unless their home is behind the gap.
	for next := (gap + 1) & mask; g.slots[next].head != nil; next = (next + 1) & mask {
		if home := g.home(g.slots[next].group); (next-home)&mask >= (next-gap)&mask {
			g.slots[gap] = g.slots[next]
			gap = next
		}
	}
	g.slots[gap] = chain{}
}

func (g *groups) grow() {
	old := g.slots
	g.slots = make([]chain, max(2*len(old), leastGroups))
	for i := range old {
		if old[i].head != nil {
			*g.find(old[i].group) = old[i]
		}
	}
}

// all returns the chains in any order. The loop must not add or remove a chain.
func (g *groups) all() iter.Seq[*chain] {
	return func(yield func(*chain) bool) {
		for i := range g.slots {
			if g.slots[i].head != nil && !yield(&g.slots[i]) {
				return
			}
		}
	}
}
