package logstore

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/semel-dev/semel"
)

// The index maps digests to positions in the log. It takes 8 bytes per slot: a
// tag of 28 bits and a position of 36 bits. 12 more bits of the digest choose
// the shard, so 40 bits are compared in memory. The rest is compared in the
// log, at the position.
const (
	shardBits = 12
	shards    = 1 << shardBits
	tagBits   = 28
	posBits   = 36

	// A shard that is fuller than maxLoad/16 grows by growth/16. A key
	// therefore costs 8*16/maxLoad to 8*growth/maxLoad bytes: 9.8 to 12.3.
	maxLoad = 13
	growth  = 20
)

// index is a table of slots. It is divided into shards only so that a growth step moves a small
// part. Store.mu guards it.
type index struct {
	shards [shards]shard
	tally
}

// tally counts slots. It is separate from the index so that several goroutines
// can fill shards during recovery, each with its own tally.
type tally struct {
	count int64 // slots in use
	bytes int64 // memory of all slots
	// expected is the number of homes that a shard is expected to need in the end, or
	// 0. It only makes growth faster.
	expected int
}

// shard is an ordered table with linear probing. Slots are sorted by tag. Each
// slot is at or after its home, with no empty slot in between. The home follows
// from the tag, so growing needs no digest. The slots behind the last home take
// the overflow at the end.
type shard struct {
	slots []uint64 // 0 is empty: no entry has position 0
	used  int32
	homes int32
}

// split returns the shard and the tag of a digest.
func split(d *semel.Digest) (sh, tag uint64) {
	h := binary.LittleEndian.Uint64(d[:8])
	return h >> (64 - shardBits), h >> (64 - shardBits - tagBits) & (1<<tagBits - 1)
}

func (s *shard) home(tag uint64) int { return int(tag * uint64(s.homes) >> tagBits) }

// seek returns the first slot of the tag, or the slot where it belongs. It
// counts the smaller tags of a few slots without branches, because the
// processor would mispredict half of them. An empty slot (0) counts as larger
// than every tag. No smaller tag follows an empty slot or a larger tag.
func (s *shard) seek(tag uint64) int {
	const step = 4
	i := s.home(tag)
	for i+step <= len(s.slots) {
		w := s.slots[i : i+step : i+step]
		_, a := bits.Sub64((w[0]-1)>>posBits, tag, 0)
		_, b := bits.Sub64((w[1]-1)>>posBits, tag, 0)
		_, c := bits.Sub64((w[2]-1)>>posBits, tag, 0)
		_, d := bits.Sub64((w[3]-1)>>posBits, tag, 0)
		n := int(a + b + c + d)
		i += n
		if n < step {
			return i
		}
	}
	for i < len(s.slots) && (s.slots[i]-1)>>posBits < tag {
		i++
	}
	return i
}

// has reports whether slot i holds the tag.
func (s *shard) has(i int, tag uint64) bool {
	return i < len(s.slots) && s.slots[i] != 0 && s.slots[i]>>posBits == tag
}

// pos returns the position in slot i.
func (s *shard) pos(i int) uint64 { return s.slots[i] & (1<<posBits - 1) }

// insert adds a slot for a digest that has none. at is the result of seek for
// the tag, or -1 if unknown.
func (t *tally) insert(s *shard, at int, tag, pos uint64) {
	if int(s.used)*16 >= int(s.homes)*maxLoad {
		// Fewer steps copy fewer slots and leave less garbage. A step that is too large,
		// because the new keys stop coming, costs memory.
		const mostGrowth = 8
		t.rebuild(s, max(int(s.homes)*growth/16, min(t.expected, int(s.homes)*mostGrowth), 8))
		at = -1
	}
	i := at
	if i < 0 {
		i = s.seek(tag)
	}
	j := i
	for j < len(s.slots) && s.slots[j] != 0 {
		j++
	}
	if j == len(s.slots) {
		t.resize(s, lengthen(s.slots))
	}
	copy(s.slots[i+1:j+1], s.slots[i:j])
	s.slots[i] = tag<<posBits | pos
	s.used++
	t.count++
}

// remove empties slot i and moves the following slots back towards their homes.
func (t *tally) remove(s *shard, i int) {
	j := i + 1
	for j < len(s.slots) && s.slots[j] != 0 && s.home(s.slots[j]>>posBits) < j {
		j++
	}
	copy(s.slots[i:j-1], s.slots[i+1:j])
	s.slots[j-1] = 0
	s.used--
	t.count--
}

// reserve makes a shard large enough for its part of a number of keys.
func (t *tally) reserve(s *shard, keys int64) {
	if homes := homesOf(keys); homes > int(s.homes) {
		t.rebuild(s, homes)
	}
}

// homesOf returns the number of homes that a shard needs if the index has this many
// keys. The keys of a shard vary at random, by about the square root of their mean.
func homesOf(keys int64) int {
	mean := float64(keys) / shards
	return int(mean+4*math.Sqrt(mean))*16/maxLoad + 1
}

// sweep removes the slots of deleted segments. The others move back towards their homes, in
// the same table, because another one for each sweep would be much garbage.
func (t *tally) sweep(s *shard, log *segmentTable) {
	deleted := func(slot uint64) bool { return slot != 0 && log.at(slot&(1<<posBits-1)) == nil }
	if !slices.ContainsFunc(s.slots, deleted) {
		return
	}
	live, at := 0, 0
	for i, slot := range s.slots {
		s.slots[i] = 0
		if slot == 0 || deleted(slot) {
			continue
		}
		at = max(at, s.home(slot>>posBits))
		s.slots[at] = slot
		at++
		live++
	}
	t.count -= int64(int(s.used) - live)
	s.used = int32(live)
	if live*4 < int(s.homes) {
		t.rebuild(s, max(live*2, 8))
	}
}

// rebuild moves the slots into a table with the given number of homes.
func (t *tally) rebuild(s *shard, homes int) {
	slack := 8 + homes/32
	// The allocator rounds up. The extra slots become homes.
	next := slices.Grow([]uint64(nil), homes+slack)
	next = next[:cap(next)]
	clear(next)
	old := s.slots
	s.homes = int32(len(next) - slack)
	at := 0
	for _, slot := range old {
		if slot == 0 {
			continue
		}
		at = max(at, s.home(slot>>posBits))
		if at == len(next) {
			next = lengthen(next)
		}
		next[at] = slot
		at++
	}
	t.resize(s, next)
}

func (t *tally) resize(s *shard, slots []uint64) {
	t.bytes += 8 * int64(len(slots)-len(s.slots))
	s.slots = slots
}

// lengthen adds a few slots after the last home.
func lengthen(slots []uint64) []uint64 {
	next := make([]uint64, len(slots)+8)
	copy(next, slots)
	return next
}

// slot returns the slot that maps a digest to a position, if there is one.
func (x *index) slot(d *semel.Digest, pos uint64) (s *shard, i int, ok bool) {
	sh, tag := split(d)
	s = &x.shards[sh]
	for i = s.seek(tag); s.has(i, tag); i++ {
		if s.pos(i) == pos {
			return s, i, true
		}
	}
	return s, i, false
}

// points reports whether the index maps a digest to a position.
func (x *index) points(d *semel.Digest, pos uint64) bool {
	_, _, ok := x.slot(d, pos)
	return ok
}

// forget removes the slot that maps a digest to a position.
func (x *index) forget(d *semel.Digest, pos uint64) bool {
	s, i, ok := x.slot(d, pos)
	if ok {
		x.remove(s, i)
	}
	return ok
}

// seekMost is the distance from the home of a tag that a seek seldom exceeds. It is
// less than a cache line.
const seekMost = 6

// touch loads the slots where the digests belong. The loads are independent, so
// the memory latencies overlap, and the later lookups hit the cache. It is not
// inlined, because the compiler would then remove the unused loads.
//
//go:noinline
func (x *index) touch(digests []semel.Digest) uint64 {
	var sum uint64
	for i := range digests {
		sh, tag := split(&digests[i])
		if s := &x.shards[sh]; len(s.slots) > 0 {
			i := s.home(tag)
			sum += s.slots[i] + s.slots[min(i+seekMost, len(s.slots)-1)]
		}
	}
	return sum
}
