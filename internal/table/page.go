package table

import (
	"encoding/binary"

	"github.com/semel-dev/semel"
)

// Entry is one digest of a table with its value.
type Entry[V Value] struct {
	// Digest is the digest. Its last byte is 0.
	Digest semel.Digest
	Value  V
	Expiry Tick
}

// pageSlots is about the number of slots that Page reads under its caller's
// lock.
const pageSlots = 1024

// Page appends the unexpired entries of a shard from a position on. first is
// the first byte of the shard's digests, and the first position is 0. Page
// returns the next position and whether there is more to read. Positions are
// digests, so they stay valid when the shard changes between calls.
func (s *Shard[V]) Page(entries []Entry[V], first byte, from uint64, now Tick) (page []Entry[V], next uint64, more bool) {
	if len(s.slots) == 0 {
		return entries, 0, false
	}
	for i := home(from, s.homes); i < uint64(len(s.slots)); i++ {
		x := &s.slots[i]
		if x.low == 0 || x.high < from {
			continue
		}
		// Keys with equal high bits, if there are any, stay on one page.
		if len(entries) >= pageSlots && x.high != next {
			return entries, x.high, true
		}
		if !s.expired(x.low, now) {
			entries = append(entries, Entry[V]{s.digest(first, x), x.v, s.expiry(x.low)})
			next = x.high
		}
	}
	return entries, 0, false
}

func (s *Shard[V]) digest(first byte, x *slot[V]) semel.Digest {
	var d semel.Digest
	d[0] = first
	binary.BigEndian.PutUint64(d[1:], x.high)
	binary.BigEndian.PutUint64(d[8:], x.low>>16<<8|x.high&0xff<<56)
	return d
}

// EachExpiry calls tell with the expiry of each digest that has one, even of
// expired digests that were not yet swept.
func (s *Shard[V]) EachExpiry(tell func(Tick)) {
	for i := range s.slots {
		if low := s.slots[i].low; low != 0 && low&metaMask != metaForever {
			tell(s.expiry(low))
		}
	}
}
