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
// The slots are an array sorted by digest with gaps: a key stands at its home,
// which grows with the digest, or as few slots after it as those before it
// leave. A search ends at the first greater key, growth is a copy in order,
// and deletion leaves no tombstone.
type Shard[V Value] struct {
	slots []slot[V]
	// homes is how many slots are somebody's home. The few behind them take
	// what the last ones push out, and the very last slot is always empty: it
	// ends every search.
	homes uint64
	used  int
	limit int
	// base is a tick that no slot's expiry is at or before, which makes the
	// 16 bits of an expiry unambiguous however long a shard is left alone.
	base Tick
	// phase is base modulo ring.
	phase Tick

	// hintAddress and hintHomes repeat slots and homes for Prefetch, which
	// holds no lock. A torn pair costs a useless prefetch and nothing else.
	hintAddress atomic.Uintptr
	hintHomes   atomic.Uint64
}

// slot has v first, where a struct{} takes no room. High is bytes 1 to 8 of
// the digest and low is bytes 9 to 14 and 16 bits of expiry: with the byte that
// a shard's keys have in common 120 bits tell keys apart.
type slot[V Value] struct {
	v         V
	high, low uint64
}

const (
	metaMask   = 1<<16 - 1
	firstSlots = 16
	maxSlack   = 64
	// At most this percentage of homes is used before a shard grows. Above it
	// the runs that an insertion moves become long: 1/(1-load)²/2 on average.
	loadPercent = 92
	// A reserved shard is sized for a lower load, but may be filled beyond
	// loadPercent before it grows: with the keys that were expected some
	// shards get more than their share.
	reservePercent, reservedLoadPercent = 89, 95
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
	prefetch(s.hintAddress.Load() + uintptr(i)*unsafe.Sizeof(slot[V]{}))
}

// Find returns the value and the expiry of a digest that is present and not
// expired.
func (s *Shard[V]) Find(d *semel.Digest, now Tick) (v V, expiry Tick, ok bool) {
	high, low := split(d)
	i, found := s.find(high, low)
	if !found || s.expired(s.slots[i].low, now) {
		return v, 0, false
	}
	return s.slots[i].v, s.expiry(s.slots[i].low), true
}

// Add inserts a digest that is absent or expired, and reports whether it did.
// If the digest is present it stays as it is, and its value is returned.
// The expiry is at most [MaxAhead] ticks after now, or Forever.
func (s *Shard[V]) Add(d *semel.Digest, v V, now, expiry Tick) (stored V, added bool) {
	high, low := split(d)
	i, found := s.find(high, low)
	if found {
		if x := &s.slots[i]; !s.expired(x.low, now) {
			return x.v, false
		}
	}
	s.put(i, found, high, low, v, now, expiry)
	return v, true
}

// Set inserts a digest or replaces its value and expiry.
func (s *Shard[V]) Set(d *semel.Digest, v V, now, expiry Tick) {
	high, low := split(d)
	i, found := s.find(high, low)
	s.put(i, found, high, low, v, now, expiry)
}

// Delete removes a digest, expired or not, and reports whether it was there.
func (s *Shard[V]) Delete(d *semel.Digest) bool {
	high, low := split(d)
	i, found := s.find(high, low)
	if found {
		s.deleteAt(i)
	}
	return found
}

// Len returns the number of digests, among them those that expired after the
// last sweep and whose slot has not been used again.
func (s *Shard[V]) Len() int { return s.used }

// Bytes returns the memory that the slots take.
func (s *Shard[V]) Bytes() int64 { return int64(len(s.slots)) * int64(unsafe.Sizeof(slot[V]{})) }

// find returns the slot of a key, or the slot before which it belongs.
func (s *Shard[V]) find(high, low uint64) (i uint64, found bool) {
	slots := s.slots
	if len(slots) == 0 {
		return 0, false
	}
	for i = home(high, s.homes); i < uint64(len(slots)); i++ {
		x := &slots[i]
		if x.low == 0 || x.high > high {
			break
		}
		if x.high == high && x.low&^metaMask == low {
			return i, true
		}
	}
	return i, false
}

// put writes a key to slot i, where find has found it or its place.
func (s *Shard[V]) put(i uint64, found bool, high, low uint64, v V, now, expiry Tick) {
	if s.used == 0 {
		s.rebase(now)
	}
	now = max(now, s.base)
	if expiry != Forever && expiry-s.base > ring {
		s.Sweep(now)
		i, found = s.find(high, low)
	}
	x := slot[V]{v, high, low | s.meta(expiry)}
	if found {
		s.slots[i] = x
		return
	}
	for s.used >= s.limit || !s.shift(i, now) {
		s.makeRoom(now, low)
		i, _ = s.find(high, low)
	}
	s.slots[i] = x
}

// shift moves the slots from i on by one, up to the first that is free or
// expired. It reports false if they would run into the last one.
func (s *Shard[V]) shift(i uint64, now Tick) bool {
	slots := s.slots
	free := i
	if now > s.base {
		for slots[free].low != 0 && !s.expired(slots[free].low, now) {
			free++
		}
	} else {
		for slots[free].low != 0 {
			free++
		}
	}
	if slots[free].low == 0 {
		if free == uint64(len(slots))-1 {
			return false
		}
		s.used++
	}
	copy(slots[i+1:free+1], slots[i:free])
	return true
}

func (s *Shard[V]) deleteAt(i uint64) {
	slots := s.slots
	end := i + 1
	for slots[end].low != 0 && home(slots[end].high, s.homes) < end {
		end++
	}
	copy(slots[i:end-1], slots[i+1:end])
	slots[end-1] = slot[V]{}
	s.used--
}

// expired reports whether a slot's expiry has come.
func (s *Shard[V]) expired(low uint64, now Tick) bool {
	if now <= s.base {
		return false
	}
	return s.expiry(low) <= now
}

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
