// Package table keeps 128-bit keyed digests exactly. A digest takes 16 bytes a
// slot without pointers, and has an expiry and, if wanted, a small value.
//
// A table takes digests as internal/digest makes them: uniformly distributed
// and not chosen by an attacker. It compares 120 of their bits. A digest takes
// 17 to 20 bytes of memory, or 26 to 30 with a uint64 value. Expired digests
// count as absent, and insertions reuse their slots. A shard is a 256th of the
// table, and is swept when it would have to grow. Nothing runs in the
// background, and no call waits for more than one shard. A [Compact] takes less
// memory, for keys that do not expire.
package table

import (
	"encoding/binary"
	"unsafe"

	"github.com/semel-dev/semel"
)

// Shards is the number of shards of a Table. The first byte of a digest selects
// the shard.
const Shards = 256

// Table maps digests to small values, or to nothing with V = struct{}. It has one
// owner: no two calls may overlap. Each shard uses the latest tick with which it
// was swept.
type Table[V Value] struct {
	shards [Shards]paddedShard[V]
}

// paddedShard fills a whole number of pairs of cache lines.
type paddedShard[V Value] struct {
	Shard[V]
	_ [128 - unsafe.Sizeof(Shard[struct{}]{})%128]byte
}

// New returns an empty table with memory for the expected number of keys. The
// table can grow beyond it.
func New[V Value](expect int64) *Table[V] {
	t := &Table[V]{}
	shards := make([]*Shard[V], Shards)
	for i := range shards {
		shards[i] = &t.shards[i].Shard
	}
	Reserve(shards, expect)
	return t
}

// Outcome is what AddBatch did with a digest.
type Outcome bool

const (
	// Present means that the digest was there, and its value was returned.
	Present Outcome = false
	// Added means that the digest was inserted.
	Added Outcome = true
)

// batchAhead is the number of digests that AddBatch prefetches before it
// decides the first of them. It is more than a core's outstanding cache misses,
// and few enough to be still in the cache when they are decided.
const batchAhead = 32

// AddBatch inserts digests that are absent or expired, in order. A digest that
// occurs twice is Added once and Present afterwards. vals are the values, or
// nil for zero values. AddBatch replaces the value of a Present digest by that
// of the table, and sets outcomes. vals and outcomes are as long as digests.
// The expiry is Forever or at most MaxAhead ticks after now.
//
// AddBatch overlaps the cache misses of a batch, which pays from about 16 digests
// on.
func (t *Table[V]) AddBatch(digests []semel.Digest, vals []V, now, expiry Tick, outcomes []Outcome) {
	if vals != nil {
		vals = vals[:len(digests)]
	}
	outcomes = outcomes[:len(digests)]
	for start := 0; start < len(digests); start += batchAhead {
		chunk := digests[start:min(start+batchAhead, len(digests))]
		for i := range chunk {
			t.Prefetch(&chunk[i])
		}
		for i := range chunk {
			var v V
			if vals != nil {
				v = vals[start+i]
			}
			v, added := t.of(&chunk[i]).Add(&chunk[i], v, now, expiry)
			if vals != nil && !added {
				vals[start+i] = v
			}
			outcomes[start+i] = Outcome(added)
		}
	}
}

// of returns the shard of a digest.
func (t *Table[V]) of(d *semel.Digest) *Shard[V] { return &t.shards[d[0]].Shard }

// Prefetch starts to load the memory that an operation on d will read. It is
// always safe.
func (t *Table[V]) Prefetch(d *semel.Digest) { t.of(d).Prefetch(d) }

// Set inserts a digest or replaces its value and expiry.
func (t *Table[V]) Set(d *semel.Digest, v V, now, expiry Tick) { t.of(d).Set(d, v, now, expiry) }

// Find returns the value and the expiry of a digest that is present.
func (t *Table[V]) Find(d *semel.Digest, now Tick) (v V, expiry Tick, ok bool) {
	return t.of(d).Find(d, now)
}

// Each yields the digests that have not expired at a tick, with their values and expiries, in
// the order of their bytes, until yield returns false. A table does not keep the last byte of a
// digest, so that byte is 0. Other calls of Each, Find and Prefetch may overlap with it.
func (t *Table[V]) Each(now Tick, yield func(d *semel.Digest, v V, expiry Tick) bool) {
	for i := range t.shards {
		s := &t.shards[i].Shard
		for j := range s.slots {
			x := &s.slots[j]
			if x.low == 0 || s.expired(x.low, now) {
				continue
			}
			d := semel.Digest{byte(i)}
			binary.BigEndian.PutUint64(d[1:9], x.high)
			binary.BigEndian.PutUint64(d[7:15], x.high<<48|x.low>>16)
			if !yield(&d, x.v, s.expiry(x.low)) {
				return
			}
		}
	}
}
