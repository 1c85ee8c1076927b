package table

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/semel-dev/semel"
)

// Value is what a table may keep beside a digest. It has no pointers, so that
// the garbage collector never looks into a table.
type Value interface {
	struct{} | uint32 | uint64
}

// Shard is one part of a table, or a small table of its own: it keeps digests
// that agree in their first byte. The zero Shard is empty and ready to use.
// Its methods other than Prefetch are not safe for concurrent use.
//
// Keys stand in lines of a few slots. A key's home is a line that grows with
// its digest; it stands there, or in the first line after it that had room. A
// line is filled from its start, so that a search ends at the first empty
// slot, and at nine tenths of the slots in use it reads two lines. Deletion
// moves later keys up and leaves no tombstone.
type Shard[V Value] struct {
	lines []line[V]
	// homes is how many lines are somebody's home. The few behind them take
	// what the last ones push out.
	homes uint64
	used  int
	limit int
	// base is a tick that no slot's expiry is at or before, which makes the
	// 16 bits of an expiry unambiguous however long a shard is left alone.
	base Tick
	// phase is base modulo ring.
	phase Tick

	// hintAddress and hintHomes repeat lines and homes for Prefetch, which
	// holds no lock. A torn pair costs a useless prefetch and nothing else.
	hintAddress atomic.Uintptr
	hintHomes   atomic.Uint64
}

// line is what fits into one cache line if V is struct{}.
type line[V Value] [lineSlots]slot[V]

// slot has v first, where a struct{} takes no room. High is bytes 1 to 8 of
// the digest and low is bytes 9 to 14 and 16 bits of expiry: with the byte that
// a shard's keys have in common 120 bits tell keys apart. An empty slot is
// zero; a used one has a low above 0.
type slot[V Value] struct {
	v         V
	high, low uint64
}

const (
	lineSlots = 4
	metaMask  = 1<<16 - 1
)

func split(d *semel.Digest) (high, low uint64) {
	return binary.BigEndian.Uint64(d[1:9]), binary.BigEndian.Uint64(d[8:16]) >> 8 << 16
}

func home(high, homes uint64) uint64 {
	h, _ := bits.Mul64(high, homes)
	return h
}

// Prefetch starts to load what an operation on d is about to read. It is safe
// to call at any time, also while another goroutine changes the shard.
func (s *Shard[V]) Prefetch(d *semel.Digest) {
	i := home(binary.BigEndian.Uint64(d[1:9]), s.hintHomes.Load())
	prefetch(s.hintAddress.Load() + uintptr(i)*unsafe.Sizeof(line[V]{}))
}

// Find returns the value and the expiry of a digest that is present and not
// expired.
func (s *Shard[V]) Find(d *semel.Digest, now Tick) (v V, expiry Tick, ok bool) {
	high, low := split(d)
	x, _ := s.find(high, low)
	if x == nil {
		return v, 0, false
	}
	if expiry = s.expiry(x.low); expiry <= now {
		return v, 0, false
	}
	return x.v, expiry, true
}

// Add inserts a digest that is absent or expired, and reports whether it did.
// If the digest is present it stays as it is, and its value is returned.
// The expiry is at most [MaxAhead] ticks after now, or Forever.
func (s *Shard[V]) Add(d *semel.Digest, v V, now, expiry Tick) (stored V, added bool) {
	high, low := split(d)
	x, free := s.find(high, low)
	if x != nil && s.expiry(x.low) > now {
		return x.v, false
	}
	s.put(x, free, slot[V]{v, high, low}, now, expiry)
	return v, true
}

// Set inserts a digest or replaces its value and expiry.
func (s *Shard[V]) Set(d *semel.Digest, v V, now, expiry Tick) {
	high, low := split(d)
	x, free := s.find(high, low)
	s.put(x, free, slot[V]{v, high, low}, now, expiry)
}

// Delete removes a digest, expired or not, and reports whether it was there.
func (s *Shard[V]) Delete(d *semel.Digest) bool {
	high, low := split(d)
	for l := home(high, s.homes); l < uint64(len(s.lines)); l++ {
		for i := range lineSlots {
			switch x := &s.lines[l][i]; {
			case x.low == 0:
				return false
			case x.high == high && x.low&^metaMask == low:
				s.deleteAt(l, i)
				return true
			}
		}
	}
	return false
}

// Len returns the number of digests, among them those that expired after the
// last sweep.
func (s *Shard[V]) Len() int { return s.used }

// Bytes returns the memory that the slots take.
func (s *Shard[V]) Bytes() int64 { return int64(len(s.lines)) * int64(unsafe.Sizeof(line[V]{})) }

// find returns the slot of a key or, if it has none, the free slot to put it
// in. Both are nil if there is none to the end.
func (s *Shard[V]) find(high, low uint64) (found, free *slot[V]) {
	for l := home(high, s.homes); l < uint64(len(s.lines)); l++ {
		b := &s.lines[l]
		// One branch that hardly ever goes the other way for a new key, rather
		// than four.
		if differ(b[0].high, high)&differ(b[1].high, high)&differ(b[2].high, high)&differ(b[3].high, high) == 0 {
			for i := range b {
				if x := &b[i]; x.high == high && x.low&^metaMask == low && x.low != 0 {
					return x, nil
				}
			}
		}
		if b[lineSlots-1].low == 0 {
			return nil, &b[b.used()%lineSlots]
		}
	}
	return nil, nil
}

// differ returns 1 if a and b differ and else 0, without a branch.
func differ(a, b uint64) uint64 {
	d := a ^ b
	return (d | -d) >> 63
}

// used returns how many slots of a line are in use, without a branch: how full
// a line is cannot be predicted.
func (b *line[V]) used() int {
	return int(differ(b[0].low, 0) + differ(b[1].low, 0) + differ(b[2].low, 0) + differ(b[3].low, 0))
}

// put writes a key to the slot that find has found, or to the free one.
func (s *Shard[V]) put(found, free *slot[V], x slot[V], now, expiry Tick) {
	if s.used == 0 {
		s.rebase(now)
	}
	now = max(now, s.base)
	if expiry != Forever && expiry-s.base > ring {
		s.Sweep(now)
		found, free = s.find(x.high, x.low)
	}
	key := x.low
	x.low |= s.meta(expiry)
	if found != nil {
		*found = x
		return
	}
	for s.used >= s.limit || free == nil {
		s.makeRoom(now, key)
		_, free = s.find(x.high, key)
		x.low = key | s.meta(expiry)
	}
	*free = x
	s.used++
}

// deleteAt empties a slot. If its line was full, a key of a later line that
// would rather be here is moved up, and so on from where that was.
func (s *Shard[V]) deleteAt(l uint64, i int) {
	s.used--
	if !s.lines[l].remove(i) {
		return
	}
	for next := l + 1; next < uint64(len(s.lines)); next++ {
		b := &s.lines[next]
		full := b[lineSlots-1].low != 0
		for i := range b {
			if b[i].low != 0 && home(b[i].high, s.homes) <= l {
				s.lines[l][lineSlots-1] = b[i]
				b.remove(i)
				l = next
				break
			}
		}
		if !full {
			return
		}
	}
}

// remove empties a slot, keeps the rest of the line together, and reports
// whether the line was full.
func (b *line[V]) remove(i int) (full bool) {
	last := lineSlots - 1
	for b[last].low == 0 {
		last--
	}
	b[i] = b[last]
	b[last] = slot[V]{}
	return last == lineSlots-1
}

// expired reports whether a slot's expiry has come.
func (s *Shard[V]) expired(low uint64, now Tick) bool { return s.expiry(low) <= now }

func (s *Shard[V]) expiry(low uint64) Tick {
	meta := Tick(low & metaMask)
	if meta == metaForever {
		return Forever
	}
	ahead := meta - 1 - s.phase
	if ahead <= 0 {
		ahead += ring
	}
	return s.base + ahead
}

func (s *Shard[V]) meta(expiry Tick) uint64 {
	if expiry == Forever {
		return metaForever
	}
	// An expiry in the past, as a caller has it whose now is older than the
	// last sweep, is remembered to the next tick rather than not at all.
	return uint64(max(expiry, s.base+1)%ring) + 1
}
