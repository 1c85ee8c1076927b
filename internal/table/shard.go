package table

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/semel-dev/semel"
)

// Value is a value that a table keeps with a digest. It has no pointers, so
// that the garbage collector never scans a table.
type Value interface {
	struct{} | uint32 | uint64
}

// Shard is one part of a table, or a small table of its own. It keeps digests
// with the same first byte. The zero Shard is empty and ready to use. Its
// methods other than Prefetch are not safe for concurrent use.
//
// The slots are an array sorted by digest, with gaps. The home of a key grows
// with its digest. A key is at its home, or after it if the keys before it need
// the room. A search ends at the first greater key, growth copies in order, and
// deletion leaves no tombstone.
type Shard[V Value] struct {
	slots []slot[V]
	// homes is the number of slots that are homes. The few slots behind them
	// take overflow from the last homes. The very last slot is always empty,
	// which ends every search.
	homes uint64
	used  int
	limit int
	// base is a tick before the expiry of every slot. It makes the 16 bits of
	// an expiry unambiguous for any age of the shard.
	base Tick
	// phase is base modulo ring.
	phase Tick

	// hintAddress and hintHomes repeat slots and homes for Prefetch, which
	// holds no lock. A torn pair only costs a useless prefetch.
	hintAddress atomic.Uintptr
	hintHomes   atomic.Uint64
}

// slot has v first, where a struct{} takes no room. high is bytes 1 to 8 of the
// digest. low is bytes 9 to 14 and 16 bits of expiry. With the first byte,
// which all keys of a shard share, 120 bits tell keys apart.
type slot[V Value] struct {
	v         V
	high, low uint64
}

const (
	metaMask   = 1<<16 - 1
	firstSlots = 16
	maxSlack   = 64
	// A shard grows when more than this percentage of homes is used. Above it
	// the runs that an insertion moves become long: 1/(1-load)²/2 on average.
	loadPercent = 92
	// A reserved shard is sized for a lower load, and may be filled beyond
	// loadPercent before it grows. Some shards get more than their share of the
	// expected keys.
	reservePercent, reservedLoadPercent = 89, 95
)

func split(d *semel.Digest) (high, low uint64) {
	return binary.BigEndian.Uint64(d[1:9]), binary.BigEndian.Uint64(d[8:16]) >> 8 << 16
}

func home(high, homes uint64) uint64 {
	h, _ := bits.Mul64(high, homes)
	return h
}

// Prefetch starts to load the memory that an operation on d will read. It may
// be called at any time, even while another goroutine changes the shard.
func (s *Shard[V]) Prefetch(d *semel.Digest) {
	i := home(binary.BigEndian.Uint64(d[1:9]), s.hintHomes.Load())
	prefetch(s.hintAddress.Load() + uintptr(i)*unsafe.Sizeof(slot[V]{}))
}

// Find returns the value and the expiry of a digest that is present and has not
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
// It leaves a present digest as it is and returns its value. The expiry is at
// most [MaxAhead] ticks after now, or Forever.
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

// Len returns the number of digests. It includes digests that expired after the
// last sweep and whose slots have not been reused.
func (s *Shard[V]) Len() int { return s.used }

// Bytes returns the memory of the slots.
func (s *Shard[V]) Bytes() int64 { return int64(len(s.slots)) * int64(unsafe.Sizeof(slot[V]{})) }

// find returns the slot of a key, or the slot before which the key belongs.
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

// put writes a key to slot i, which find returned.
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

// shift moves the slots from i on by one, up to the first free or expired slot.
// It returns false if it would reach the last slot.
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

// expired reports whether a slot has expired.
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
	// An expiry may be in the past if the caller's now is older than the last
	// sweep. The key is then kept until the next tick.
	return uint64(max(expiry, s.base+1)%ring) + 1
}
