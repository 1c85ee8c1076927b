package logstore

import (
	"encoding/binary"
	"iter"

	"github.com/semel-dev/semel"
)

// claims is the table of the keys that are claimed or unknown. It behaves like
// a Go map, but a lookup touches one word of a small table and then the claim.
// A new claim reuses the memory of the last removed one. Most keys are
// completed soon after their claim, so a few memory blocks serve all claims.
// Store.mu guards it.
type claims struct {
	// slots is an open-addressing table with linear probing, indexed by bits of
	// the digest. Each slot holds a tag and the claim's number plus one. The
	// low bits of the tag are the home slot. 0 is an empty slot. The length is
	// a power of two, or 0.
	slots []uint64
	nodes []*[claimNodes]claimNode
	free  []uint32 // numbers of removed claims
	count int
	// origins is set once a claim had an origin.
	origins bool
}

// claimNode is a claim with its digest. It fills two cache lines.
type claimNode struct {
	digest semel.Digest
	claim  claim
}

const (
	claimNodes   = 256 // nodes in one memory block
	claimTagBits = 32
	claimSlots   = 64 // initial number of slots
)

// claimTag returns the digest bits that index the table. The index uses other
// bits, because claims may arrive in index order.
func claimTag(d *semel.Digest) uint64 { return uint64(binary.LittleEndian.Uint32(d[12:])) }

func (c *claims) node(n uint32) *claimNode { return &c.nodes[n/claimNodes][n%claimNodes] }

// find returns the slot and the claim of a digest. If there is no claim, it
// returns the slot where the claim belongs and nil. The table must have slots.
func (c *claims) find(d *semel.Digest) (slot uint64, found *claimNode) {
	tag, mask := claimTag(d), uint64(len(c.slots)-1)
	slot = tag & mask
	for c.slots[slot] != 0 {
		if c.slots[slot]>>claimTagBits == tag {
			if n := c.node(uint32(c.slots[slot]) - 1); n.digest == *d {
				return slot, n
			}
		}
		slot = (slot + 1) & mask
	}
	return slot, nil
}

// get returns the claim of a digest, or nil. The caller may change the claim in
// place. The pointer is valid until the claim is removed.
func (c *claims) get(d *semel.Digest) *claim {
	if c.count == 0 {
		return nil
	}
	if _, n := c.find(d); n != nil {
		return &n.claim
	}
	return nil
}

// put sets the claim of a digest.
func (c *claims) put(d *semel.Digest, of *claim) {
	if 2*(c.count+1) > len(c.slots) {
		c.grow()
	}
	slot, n := c.find(d)
	if n == nil {
		number := c.number()
		n = c.node(number)
		n.digest = *d
		c.slots[slot] = claimTag(d)<<claimTagBits | uint64(number+1)
		c.count++
	}
	c.origins = c.origins || of.shown().origin != ""
	n.claim = *of
	n.claim.used = true
}

// number returns an unused claim number.
func (c *claims) number() uint32 {
	if last := len(c.free) - 1; last >= 0 {
		n := c.free[last]
		c.free = c.free[:last]
		return n
	}
	n := uint32(c.count)
	if int(n) == len(c.nodes)*claimNodes {
		c.nodes = append(c.nodes, new([claimNodes]claimNode))
	}
	return n
}

// remove deletes the claim of a digest, if there is one.
func (c *claims) remove(d *semel.Digest) {
	if c.count == 0 {
		return
	}
	slot, n := c.find(d)
	if n == nil {
		return
	}
	*n = claimNode{}
	c.free = append(c.free, uint32(c.slots[slot])-1)
	c.count--
	// Move the following slots back, unless a slot lies between its home and
	// the gap.
	mask := uint64(len(c.slots) - 1)
	for next := (slot + 1) & mask; c.slots[next] != 0; next = (next + 1) & mask {
		if home := c.slots[next] >> claimTagBits & mask; (next-home)&mask >= (next-slot)&mask {
			c.slots[slot] = c.slots[next]
			slot = next
		}
	}
	c.slots[slot] = 0
}

func (c *claims) grow() {
	old := c.slots
	c.slots = make([]uint64, max(2*len(old), claimSlots))
	mask := uint64(len(c.slots) - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		at := s >> claimTagBits & mask
		for c.slots[at] != 0 {
			at = (at + 1) & mask
		}
		c.slots[at] = s
	}
}

// all returns the claims in no particular order. The caller may remove a claim
// once it was returned.
func (c *claims) all() iter.Seq2[*semel.Digest, *claim] {
	return func(yield func(*semel.Digest, *claim) bool) {
		for _, some := range c.nodes {
			for i := range some {
				if n := &some[i]; n.claim.used && !yield(&n.digest, &n.claim) {
					return
				}
			}
		}
	}
}

// touch loads the slots where the digests belong, like index.touch.
//
//go:noinline
func (c *claims) touch(digests []semel.Digest) (sum uint64) {
	if c.count == 0 {
		return 0
	}
	mask := uint64(len(c.slots) - 1)
	for i := range digests {
		sum += c.slots[claimTag(&digests[i])&mask]
	}
	return sum
}
