package table

import (
	"encoding/binary"
	"iter"
	"unsafe"

	"github.com/semel-dev/semel"
)

// Compact maps digests to small values, like [Table], but its keys do not expire and
// are never removed. So a digest takes 14 bytes, and nearly all slots are used. The
// zero Compact is empty. It has one owner: no two calls may overlap.
//
// The keys of a shard are sorted as in [Shard]. Their slots are in chunks of one
// size. A shard grows by more chunks, and its keys then move within them. So there
// is never a copy of a shard, nor memory that waits for the garbage collector.
type Compact[V CompactValue] struct {
	shards [Shards]compactShard[V]
	spare  []chunk[V] // chunks that no shard has
}

// CompactValue is a value that a Compact keeps with a digest. Bytes need no alignment,
// which would enlarge a slot.
type CompactValue interface {
	struct{} | [8]byte | [16]byte
}

type compactShard[V CompactValue] struct {
	chunks []*chunk[V]
	// slots is the number of slots in use. The memory behind them, in the last chunk,
	// was never touched.
	slots uint64
	// homes is the number of slots that are homes. The slots behind them take
	// overflow from the last homes. The very last slot is always empty, which ends
	// every search.
	homes uint64
	used  int
	limit int
	// expected is the number of slots that the shard is expected to need in the
	// end, or 0. It only changes the steps of growth.
	expected uint64
}

type chunk[V CompactValue] [chunkSlots]compactSlot[V]

// compactSlot has bytes 1 to 14 of a digest. The first eight are 0 in an empty slot.
type compactSlot[V CompactValue] struct {
	v   V
	key [14]byte
}

const (
	chunkSlots = 2048
	// spareChunks is the number of chunks that are allocated together.
	spareChunks = 8
	// A shard grows when more than this percentage of its slots is used. The expected
	// keys use a higher percentage. Some shards get more than their share of them.
	compactPercent               = 92
	expectedPercent, mostPercent = 95, 97
	// compactSlack is the number of slots behind the homes, if that is enough.
	compactSlack = 64
)

// Expect says how many keys the table will have in the end. It then grows by larger
// steps up to that number, and by smaller ones beyond it. The number may change at any
// time.
func (c *Compact[V]) Expect(n int64) {
	for i := range c.shards {
		c.shards[i].expected = uint64(n)/Shards*100/expectedPercent + compactSlack
	}
}

// AddBatch inserts digests that are absent, in order. A digest that occurs twice is
// Added once and Present afterwards. vals are the values, or nil for zero values.
// AddBatch replaces the value of a Present digest by that of the table, and sets
// outcomes. vals and outcomes are as long as digests.
func (c *Compact[V]) AddBatch(digests []semel.Digest, vals []V, outcomes []Outcome) {
	if vals != nil {
		vals = vals[:len(digests)]
	}
	outcomes = outcomes[:len(digests)]
	for start := 0; start < len(digests); start += batchAhead {
		chunk := digests[start:min(start+batchAhead, len(digests))]
		for i := range chunk {
			c.Prefetch(&chunk[i])
		}
		for i := range chunk {
			var v V
			if vals != nil {
				v = vals[start+i]
			}
			stored, added := c.Add(&chunk[i], v)
			if vals != nil && !added {
				vals[start+i] = *stored
			}
			outcomes[start+i] = Outcome(added)
		}
	}
}

// Prefetch starts to load the memory that an operation on d will read.
func (c *Compact[V]) Prefetch(d *semel.Digest) {
	if s := &c.shards[d[0]]; s.used > 0 {
		i := home(binary.LittleEndian.Uint64(d[1:9]), s.homes)
		prefetch(uintptr(unsafe.Pointer(s.at(i))))
	}
}

// Add inserts a digest that is absent, and reports whether it did. It returns where
// the value is until the next call of Add.
func (c *Compact[V]) Add(d *semel.Digest, v V) (stored *V, added bool) {
	s := &c.shards[d[0]]
	high, low := splitCompact(d)
	i, found := s.find(high, low)
	if !found {
		for s.used >= s.limit || !s.shift(i) {
			c.makeRoom(s, d[14])
			i, _ = s.find(high, low)
		}
		s.used++
		x := s.at(i)
		x.v = v
		binary.LittleEndian.PutUint64(x.key[:8], high)
		binary.LittleEndian.PutUint64(x.key[6:], low)
		return &x.v, true
	}
	return &s.at(i).v, false
}

// Find returns the value of a digest that is present.
func (c *Compact[V]) Find(d *semel.Digest) (v V, ok bool) {
	s := &c.shards[d[0]]
	i, found := s.find(splitCompact(d))
	if !found {
		return v, false
	}
	return s.at(i).v, true
}

// Len returns the number of digests.
func (c *Compact[V]) Len() (n int64) {
	for i := range c.shards {
		n += int64(c.shards[i].used)
	}
	return n
}

// Bytes returns the memory of the slots.
func (c *Compact[V]) Bytes() int64 {
	n := len(c.spare)
	for i := range c.shards {
		n += len(c.shards[i].chunks)
	}
	return int64(n) * int64(unsafe.Sizeof(chunk[V]{}))
}

// All yields the digests with their values. Their order is that of byte 0, and then that
// of bytes 1 to 8 as a number in little-endian order. A table does not keep the last byte
// of a digest, so that byte is 0. No other call is permitted during the loop.
func (c *Compact[V]) All() iter.Seq2[semel.Digest, V] {
	return func(yield func(semel.Digest, V) bool) {
		for i := range c.shards {
			s := &c.shards[i]
			for at := range s.slots {
				x := s.at(at)
				if x.high() == 0 {
					continue
				}
				d := semel.Digest{byte(i)}
				copy(d[1:], x.key[:])
				if !yield(d, x.v) {
					return
				}
			}
		}
	}
}

// Clear removes all digests. The table keeps its memory.
func (c *Compact[V]) Clear() {
	for i := range c.shards {
		s := &c.shards[i]
		s.clear(0, s.slots)
		s.used = 0
	}
}

// splitCompact returns bytes 1 to 8 and 7 to 14 of a digest. High is not 0, which
// would be an empty slot.
func splitCompact(d *semel.Digest) (high, low uint64) {
	high, low = binary.LittleEndian.Uint64(d[1:9]), binary.LittleEndian.Uint64(d[7:15])
	return max(high, 1), low
}

func (x *compactSlot[V]) high() uint64 { return binary.LittleEndian.Uint64(x.key[:8]) }
func (x *compactSlot[V]) low() uint64  { return binary.LittleEndian.Uint64(x.key[6:]) }

func (s *compactShard[V]) at(i uint64) *compactSlot[V] {
	return &s.chunks[i/chunkSlots][i%chunkSlots]
}

// find returns the slot of a key, or the slot before which the key belongs.
func (s *compactShard[V]) find(high, low uint64) (i uint64, found bool) {
	if s.slots == 0 {
		return 0, false
	}
	i = home(high, s.homes)
	for {
		c := s.chunks[i/chunkSlots]
		for j := i % chunkSlots; j < chunkSlots; j++ {
			h := c[j].high()
			if h-1 < high-1 { // not empty, and before the key
				continue
			}
			if h != high || c[j].low() == low {
				return i/chunkSlots*chunkSlots + j, h == high
			}
		}
		i = i/chunkSlots*chunkSlots + chunkSlots
	}
}

// shift moves the slots from i on by one, up to the first empty slot. It returns false
// if it would reach the last slot.
func (s *compactShard[V]) shift(i uint64) bool {
	free := s.nextEmpty(i)
	if free == s.slots-1 {
		return false
	}
	for ; free/chunkSlots > i/chunkSlots; free = free/chunkSlots*chunkSlots - 1 {
		c := s.chunks[free/chunkSlots]
		copy(c[1:free%chunkSlots+1], c[:])
		c[0] = *s.at(free/chunkSlots*chunkSlots - 1)
	}
	c := s.chunks[i/chunkSlots]
	copy(c[i%chunkSlots+1:free%chunkSlots+1], c[i%chunkSlots:])
	return true
}

// nextEmpty returns the first empty slot from i on.
func (s *compactShard[V]) nextEmpty(i uint64) uint64 {
	for {
		c := s.chunks[i/chunkSlots]
		for j := i % chunkSlots; j < chunkSlots; j++ {
			if c[j].high() == 0 {
				return i/chunkSlots*chunkSlots + j
			}
		}
		i = i/chunkSlots*chunkSlots + chunkSlots
	}
}

// makeRoom is called when a key finds no slot. The share of growth varies with salt,
// which is some bits of the new key. So shards that fill alike grow at different
// times, and the memory of a table follows the number of its keys smoothly.
func (c *Compact[V]) makeRoom(s *compactShard[V], salt byte) {
	crowded := s.used < s.limit // in the last homes, which does not happen with uniform digests
	behind := 2 * (s.slots - s.homes)
	if !crowded {
		c.grow(s, salt)
		behind = min(compactSlack, s.slots/4)
	}
	for {
		s.homes = s.slots - min(behind, s.slots)
		if s.spread(s.pack()) {
			return
		}
		behind *= 2
	}
}

// grow gives a shard more slots.
func (c *Compact[V]) grow(s *compactShard[V], salt byte) {
	const mostGrowth = 8
	percent := uint64(compactPercent)
	switch {
	case s.expected == 0:
		s.slots += max(16, s.slots/8+s.slots/8*uint64(salt)>>8)
	case s.expected > mostGrowth*s.slots:
		s.slots = max(16, mostGrowth*s.slots)
	default:
		s.slots = max(s.expected, s.slots+s.slots/32+16)
		percent = mostPercent
	}
	s.limit = int(s.slots * percent / 100)
	for uint64(len(s.chunks))*chunkSlots < s.slots {
		if len(c.spare) == 0 {
			c.spare = make([]chunk[V], spareChunks)
		}
		s.chunks = append(s.chunks, &c.spare[0])
		c.spare = c.spare[1:]
	}
}

// pack moves all keys to the end, before the last slot, and returns where they start.
// The slots before that have any content.
func (s *compactShard[V]) pack() (start uint64) {
	start = s.slots - 1
	for i := start; i > 0; {
		i--
		if x := s.at(i); x.high() != 0 {
			start--
			*s.at(start) = *x
		}
	}
	return start
}

// spread moves the packed keys to their homes, or after them, and empties all other
// slots. It returns false if the slots behind the homes are too few.
func (s *compactShard[V]) spread(start uint64) bool {
	next, end := uint64(0), s.slots-1
	for i := start; i < end; i++ {
		x := *s.at(i)
		at := max(next, home(x.high(), s.homes))
		if at > i {
			s.clear(next, i)
			return false
		}
		s.clear(next, at)
		*s.at(at) = x
		next = at + 1
	}
	s.clear(next, end)
	return true
}

// clear empties the slots from start to end.
func (s *compactShard[V]) clear(start, end uint64) {
	for ; start < end; start++ {
		*s.at(start) = compactSlot[V]{}
	}
}
