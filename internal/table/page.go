package table

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/semel-dev/semel"
)

// Entry is one digest of a table with what is kept beside it.
type Entry[V Value] struct {
	// Digest is the digest with 0 for its last byte.
	Digest semel.Digest
	Value  V
	Expiry Tick
}

// pageLines is how many homes Page reads under its caller's lock.
const pageLines = 256

// Page appends to entries what the shard with the given first byte holds from
// a position on, in the order of digests and without what is expired, and
// returns the position for the next call and whether one is needed. The first
// position is 0. Positions stay good when the shard changes or moves between
// calls: they are digests.
func (s *Shard[V]) Page(entries []Entry[V], first byte, from uint64, now Tick) (page []Entry[V], next uint64, more bool) {
	start := home(from, s.homes)
	last := uint64(math.MaxUint64) // the last key of the page
	if start+pageLines < s.homes {
		// The first key whose home is pageLines further, by division of two
		// words: its home times 2^64 over the number of homes, rounded up.
		quotient, rest := bits.Div64(start+pageLines, 0, s.homes)
		if rest > 0 {
			quotient++
		}
		next, more, last = quotient, true, quotient-1
	}
	before := len(entries)
	for l := start; l < uint64(len(s.lines)); l++ {
		for i := range lineSlots {
			x := &s.lines[l][i]
			if x.low != 0 && x.high >= from && x.high <= last && !s.expired(x.low, now) {
				entries = append(entries, Entry[V]{s.digest(first, x), x.v, s.expiry(x.low)})
			}
		}
		// A key of this page may stand behind its home as far as lines are full.
		if more && l >= start+pageLines && s.lines[l][lineSlots-1].low == 0 {
			break
		}
	}
	slices.SortFunc(entries[before:], func(a, b Entry[V]) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
	return entries, next, more
}

func (s *Shard[V]) digest(first byte, x *slot[V]) semel.Digest {
	var d semel.Digest
	d[0] = first
	binary.BigEndian.PutUint64(d[1:], x.high)
	binary.BigEndian.PutUint64(d[8:], x.low>>16<<8|x.high&0xff<<56)
	return d
}

// EachExpiry calls tell with the expiry of each digest, expired ones that were
// not swept included, but for those that do not expire.
func (s *Shard[V]) EachExpiry(tell func(Tick)) {
	for l := range s.lines {
		for i := range lineSlots {
			if low := s.lines[l][i].low; low != 0 && low&metaMask != metaForever {
				tell(s.expiry(low))
			}
		}
	}
}
