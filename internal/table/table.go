// Package table keeps 128-bit keyed digests exactly. A digest takes 16 bytes a
// slot without pointers, and has an expiry and, if wanted, a small value.
//
// A table takes digests as internal/digest makes them: uniformly distributed
// and not chosen by an attacker. It compares 120 of their bits. A digest takes
// 17 to 20 bytes of memory, or 26 to 30 with a uint64 value. Expired digests
// count as absent, and insertions reuse their slots. A shard is a 256th of the
// table, and is swept when it would have to grow. Nothing runs in the
// background, and no call waits for more than one shard.
package table

import (
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/semel-dev/semel"
)

// Shards is the number of shards of a Table. The first byte of a digest selects
// the shard.
const Shards = 256

// ErrFull means that the table holds MaxKeys unexpired digests. The table
// forgets nothing to make room.
var ErrFull = errors.New("table is full")

// Options are optional settings of a Table.
type Options struct {
	// Expect is the number of keys for which memory is allocated at the start.
	// The table can grow beyond it. Must not be negative. Defaults to 0.
	Expect int64
	// MaxKeys is the highest number of unexpired keys. Further insertions fail
	// with ErrFull. 0 is no limit. Must not be negative. Defaults to 0.
	MaxKeys int64
	// SingleOwner promises that no two calls overlap, which saves the locks.
	// Defaults to false.
	SingleOwner bool
}

// Table maps digests to small values, or to nothing with V = struct{}. It is
// safe for concurrent use unless it has a single owner. Concurrent calls may
// pass different ticks as now. Each shard uses the latest tick with which it
// was swept.
type Table[V Value] struct {
	locked  bool
	maxKeys int64
	// count is the number of used slots. It is kept only if maxKeys is set.
	count atomic.Int64
	// swept is the tick of the last sweep of all shards to make room.
	swept  atomic.Int64
	shards [Shards]lockedShard[V]
}

// lockedShard fills two cache lines, so that neighbouring shards do not slow
// each other down.
type lockedShard[V Value] struct {
	mu sync.Mutex // guards Shard, except its Prefetch
	Shard[V]
	_ [128 - (unsafe.Sizeof(sync.Mutex{})+unsafe.Sizeof(Shard[struct{}]{}))%128]byte
}

// New returns an empty table. opts may be nil.
func New[V Value](opts *Options) (*Table[V], error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	var errs []error
	if o.Expect < 0 {
		errs = append(errs, fmt.Errorf("table: Options.Expect: %d is below 0", o.Expect))
	}
	if o.MaxKeys < 0 {
		errs = append(errs, fmt.Errorf("table: Options.MaxKeys: %d is below 0", o.MaxKeys))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	t := &Table[V]{locked: !o.SingleOwner, maxKeys: o.MaxKeys}
	t.swept.Store(-1)
	shards := make([]*Shard[V], Shards)
	for i := range shards {
		shards[i] = &t.shards[i].Shard
	}
	Reserve(shards, o.Expect)
	return t, nil
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
// AddBatch returns how many digests it decided: all, or those before the first
// that was refused with ErrFull. It overlaps the cache misses of a batch, which
// pays from about 16 digests on.
func (t *Table[V]) AddBatch(digests []semel.Digest, vals []V, now, expiry Tick, outcomes []Outcome) (int, error) {
	if vals != nil {
		vals = vals[:len(digests)]
	}
	outcomes = outcomes[:len(digests)]
	for start := 0; start < len(digests); start += batchAhead {
		chunk := digests[start:min(start+batchAhead, len(digests))]
		for i := range chunk {
			t.shards[chunk[i][0]].Prefetch(&chunk[i])
		}
		for i := range chunk {
			var v V
			if vals != nil {
				v = vals[start+i]
			}
			v, added, err := t.add(&chunk[i], v, now, expiry)
			if err != nil {
				return start + i, err
			}
			if vals != nil && !added {
				vals[start+i] = v
			}
			outcomes[start+i] = Outcome(added)
		}
	}
	return len(digests), nil
}

// Prefetch starts to load the memory that an operation on d will read. It is
// always safe.
func (t *Table[V]) Prefetch(d *semel.Digest) { t.shards[d[0]].Prefetch(d) }

// Add inserts a digest that is absent or expired, and reports whether it did.
// For a present digest it returns the stored value instead of v. The error is
// ErrFull or nil.
func (t *Table[V]) Add(d *semel.Digest, v V, now, expiry Tick) (stored V, added bool, err error) {
	// An insertion reads several cache lines one after the other. Loaded
	// together they cost one cache miss, which overlaps with the lock.
	t.Prefetch(d)
	return t.add(d, v, now, expiry)
}

func (t *Table[V]) add(d *semel.Digest, v V, now, expiry Tick) (stored V, added bool, err error) {
	s := t.lock(d[0])
	if t.maxKeys == 0 {
		stored, added = s.Add(d, v, now, expiry)
		t.unlock(s)
		return stored, added, nil
	}
	defer func() { t.unlock(s) }()
	if stored, _, ok := s.Find(d, now); ok {
		return stored, false, nil
	}
	if t.count.Add(1) > t.maxKeys {
		t.count.Add(-1)
		// Only one lock is held at a time, because sweeping takes the lock of
		// every shard.
		t.unlock(s)
		t.sweepForRoom(now)
		s = t.lock(d[0])
		if t.count.Add(1) > t.maxKeys {
			t.count.Add(-1)
			if stored, _, ok := s.Find(d, now); ok {
				return stored, false, nil
			}
			return v, false, ErrFull
		}
	}
	used := s.used
	stored, added = s.Add(d, v, now, expiry)
	t.count.Add(int64(s.used-used) - 1)
	return stored, added, nil
}

// Set inserts a digest or replaces its value and expiry. It ignores MaxKeys,
// because its callers have found the digest present.
func (t *Table[V]) Set(d *semel.Digest, v V, now, expiry Tick) {
	s := t.lock(d[0])
	used := s.used
	s.Set(d, v, now, expiry)
	t.recount(s.used - used)
	t.unlock(s)
}

// Find returns the value and the expiry of a digest that is present.
func (t *Table[V]) Find(d *semel.Digest, now Tick) (v V, expiry Tick, ok bool) {
	s := t.lock(d[0])
	v, expiry, ok = s.Find(d, now)
	t.unlock(s)
	return v, expiry, ok
}

// Delete removes a digest, expired or not, and reports whether it was there.
func (t *Table[V]) Delete(d *semel.Digest) bool {
	s := t.lock(d[0])
	found := s.Delete(d)
	if found {
		t.recount(-1)
	}
	t.unlock(s)
	return found
}

// Sweep removes expired digests, shard by shard, frees unused memory, and
// returns how many digests it removed.
func (t *Table[V]) Sweep(now Tick) int64 {
	var removed int64
	for i := range Shards {
		s := t.lock(byte(i))
		n := s.Sweep(now)
		s.Shrink()
		t.recount(-n)
		t.unlock(s)
		removed += int64(n)
	}
	return removed
}

// Len returns the number of digests. It includes expired digests whose slots
// have not been reused.
func (t *Table[V]) Len() int64 {
	return t.sum(func(s *Shard[V]) int64 { return int64(s.Len()) })
}

// Bytes returns the memory of the slots.
func (t *Table[V]) Bytes() int64 { return t.sum((*Shard[V]).Bytes) + int64(unsafe.Sizeof(*t)) }

// All yields the unexpired entries in the order of their digests. A table does
// not keep the last byte of a digest, so that byte is 0. No lock is held while
// the loop body runs. An entry that is inserted or deleted during the loop may
// or may not be yielded.
func (t *Table[V]) All(now Tick) iter.Seq[Entry[V]] {
	return func(yield func(Entry[V]) bool) {
		var entries []Entry[V]
		for i := range Shards {
			for from, more := uint64(0), true; more; {
				s := t.lock(byte(i))
				entries, from, more = s.Page(entries[:0], byte(i), from, now)
				t.unlock(s)
				for _, e := range entries {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}

func (t *Table[V]) lock(i byte) *lockedShard[V] {
	s := &t.shards[i]
	if t.locked {
		s.mu.Lock()
	}
	return s
}

func (t *Table[V]) unlock(s *lockedShard[V]) {
	if t.locked {
		s.mu.Unlock()
	}
}

func (t *Table[V]) recount(change int) {
	if t.maxKeys > 0 && change != 0 {
		t.count.Add(int64(change))
	}
}

// sweepForRoom sweeps all shards, at most once a tick, because no further
// digest expires within a tick.
func (t *Table[V]) sweepForRoom(now Tick) {
	last := t.swept.Load()
	if int64(now) > last && t.swept.CompareAndSwap(last, int64(now)) {
		t.Sweep(now)
	}
}

func (t *Table[V]) sum(of func(*Shard[V]) int64) int64 {
	var total int64
	for i := range Shards {
		s := t.lock(byte(i))
		total += of(&s.Shard)
		t.unlock(s)
	}
	return total
}
