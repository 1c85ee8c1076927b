// Package digestmap is a map from digests to values that are soon removed.
package digestmap

import (
	"encoding/binary"
	"iter"

	"github.com/semel-dev/semel"
)

// Map behaves like a Go map, but a lookup touches one word of a small table and
// then the value. A new value reuses the memory of the last removed one. Most
// keys are completed soon after their claim, so a few memory blocks serve all
// claims. The zero Map is empty. It is not safe for concurrent use.
type Map[V any] struct {
	// slots is an open-addressing table with linear probing, indexed by bits of
	// the digest. Each slot holds a tag and the node's number plus one. The low
	// bits of the tag are the home slot. 0 is an empty slot. The length is a
	// power of two, or 0.
	slots []uint64
	nodes []*[blockNodes]node[V]
	free  []uint32 // numbers of removed nodes
	count int
}

// node is a value with its digest.
type node[V any] struct {
	digest semel.Digest
	value  V
	used   bool
}

const (
	blockNodes = 256 // nodes in one memory block
	tagBits    = 32
	leastSlots = 64 // initial number of slots
)

// tagOf returns the digest bits that index the table. The store's index uses
// other bits, because digests may arrive in index order.
func tagOf(d *semel.Digest) uint64 { return uint64(binary.LittleEndian.Uint32(d[12:])) }

func (m *Map[V]) node(n uint32) *node[V] { return &m.nodes[n/blockNodes][n%blockNodes] }

// find returns the slot and the node of a digest. If there is no node, it
// returns the slot where the node belongs and nil. The table must have slots.
func (m *Map[V]) find(d *semel.Digest) (slot uint64, found *node[V]) {
	tag, mask := tagOf(d), uint64(len(m.slots)-1)
	slot = tag & mask
	for m.slots[slot] != 0 {
		if m.slots[slot]>>tagBits == tag {
			if n := m.node(uint32(m.slots[slot]) - 1); n.digest == *d {
				return slot, n
			}
		}
		slot = (slot + 1) & mask
	}
	return slot, nil
}

// Len returns the number of values.
func (m *Map[V]) Len() int { return m.count }

// Get returns the value of a digest, or nil. The caller may change the value in
// place. The pointer is valid until the value is removed.
func (m *Map[V]) Get(d *semel.Digest) *V {
	if m.count == 0 {
		return nil
	}
	if _, n := m.find(d); n != nil {
		return &n.value
	}
	return nil
}

// Put sets the value of a digest.
func (m *Map[V]) Put(d *semel.Digest, value *V) {
	if 2*(m.count+1) > len(m.slots) {
		m.grow()
	}
	slot, n := m.find(d)
	if n == nil {
		number := m.number()
		n = m.node(number)
		n.digest = *d
		m.slots[slot] = tagOf(d)<<tagBits | uint64(number+1)
		m.count++
	}
	n.value = *value
	n.used = true
}

// number returns an unused node number.
func (m *Map[V]) number() uint32 {
	if last := len(m.free) - 1; last >= 0 {
		n := m.free[last]
		m.free = m.free[:last]
		return n
	}
	n := uint32(m.count)
	if int(n) == len(m.nodes)*blockNodes {
		m.nodes = append(m.nodes, new([blockNodes]node[V]))
	}
	return n
}

// Remove deletes the value of a digest, if there is one.
func (m *Map[V]) Remove(d *semel.Digest) {
	if m.count == 0 {
		return
	}
	slot, n := m.find(d)
	if n == nil {
		return
	}
	*n = node[V]{}
	m.free = append(m.free, uint32(m.slots[slot])-1)
	m.count--
	// Move the following slots back, unless a slot lies between its home and
	// the gap.
	mask := uint64(len(m.slots) - 1)
	for next := (slot + 1) & mask; m.slots[next] != 0; next = (next + 1) & mask {
		if home := m.slots[next] >> tagBits & mask; (next-home)&mask >= (next-slot)&mask {
			m.slots[slot] = m.slots[next]
			slot = next
		}
	}
	m.slots[slot] = 0
}

func (m *Map[V]) grow() {
	old := m.slots
	m.slots = make([]uint64, max(2*len(old), leastSlots))
	mask := uint64(len(m.slots) - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		at := s >> tagBits & mask
		for m.slots[at] != 0 {
			at = (at + 1) & mask
		}
		m.slots[at] = s
	}
}

// All returns the values in no particular order. The caller may remove a value
// once it was returned.
func (m *Map[V]) All() iter.Seq2[*semel.Digest, *V] {
	return func(yield func(*semel.Digest, *V) bool) {
		for _, some := range m.nodes {
			for i := range some {
				if n := &some[i]; n.used && !yield(&n.digest, &n.value) {
					return
				}
			}
		}
	}
}

// Touch loads the slots where the digests belong. The loads are independent, so
// the memory latencies overlap, and the later lookups hit the cache. It is not
// inlined, because the compiler would then remove the unused loads.
//
//go:noinline
func (m *Map[V]) Touch(digests []semel.Digest) (sum uint64) {
	if m.count == 0 {
		return 0
	}
	mask := uint64(len(m.slots) - 1)
	for i := range digests {
		sum += m.slots[tagOf(&digests[i])&mask]
	}
	return sum
}
