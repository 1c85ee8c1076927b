package pipeline

import "iter"

// groups holds the chain of each group that has items under way. It does what a
// map does, with one look at memory for each of the two that every item costs: to
// join its chain and to leave it.
type groups struct {
	// slots is open addressing with linear probing, at most three quarters full.
	// A slot without a head is empty. Their number is a power of two, or 0.
	slots []chain
	count int
}

// chain is the items of a group in their order.
type chain struct {
	group      uint64
	head, tail *entry
}

const leastGroups = 64

// home returns where a group belongs: its lowest bit is always set.
func (g *groups) home(group uint64) int { return int(group >> 1 & uint64(len(g.slots)-1)) }

// at returns the chain of a group, or an empty slot for it, of which the caller
// sets head and tail. It is good until the next call of at or remove.
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

// find returns the chain of a group, or the empty slot where it would be. There
// must be slots.
func (g *groups) find(group uint64) *chain {
	for i := g.home(group); ; i = (i + 1) & (len(g.slots) - 1) {
		if c := &g.slots[i]; c.head == nil || c.group == group {
			return c
		}
	}
}

// touchAhead is the number of entries whose slots are loaded together.
const touchAhead = 64

// touch loads the slots of entries' groups together. Another processor has written
// to most of them, so that each would otherwise cost a wait of its own.
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

// remove empties a slot that find returned; one that is empty stays so.
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
	// What follows moves back, unless it stands between its home and the gap.
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

// all returns the chains, in no order. None may be added or removed during the loop.
func (g *groups) all() iter.Seq[*chain] {
	return func(yield func(*chain) bool) {
		for i := range g.slots {
			if g.slots[i].head != nil && !yield(&g.slots[i]) {
				return
			}
		}
	}
}
