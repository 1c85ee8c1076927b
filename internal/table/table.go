// Package table keeps 128-bit keyed digests exactly, in 16 bytes a slot and
// without pointers, each with a time of expiry and, if wanted, a small value.
//
// A table takes digests as they come from internal/digest: uniformly
// distributed and out of an adversary's control. It compares 120 of their
// bits, and takes 17 to 20 bytes of memory for a digest, 26 to 30 with a
// uint64 beside it. Expired digests are treated as absent, their slots are
// used again as others are inserted, and a shard, which is a 256th of the
// table, is swept when it would have to grow: nothing runs in the background,
// and no call waits for more than one shard.
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

// Shards is the number of shards of a Table. A digest's first byte chooses.
const Shards = 256

// ErrFull refuses an insertion: the table holds MaxKeys digests that have not
// expired. Nothing is forgotten to make room.
var ErrFull = errors.New("table is full")

// Options are optional settings of a Table.
type Options struct {
	// Expect is the number of keys for which memory is taken at the start.
	// The table grows beyond it. Must not be negative. Defaults to 0.
	Expect int64
	// MaxKeys is the number of keys beyond which insertions are refused with
	// ErrFull; expired ones do not count. 0 is no limit. Must not be negative.
	// Defaults to 0.
	MaxKeys int64
	// SingleOwner promises that no two calls overlap, which saves the locks.
	// Defaults to false.
	SingleOwner bool
}

// Table maps digests to small values, or to nothing with V = struct{}. It is
// safe for concurrent use unless it has a single owner. Several calls that
// take a present tick may pass different ones: each shard goes by the latest
// it was swept with.
type Table[V Value] struct {
	locked  bool
	maxKeys int64
	// count is the number of used slots. It is kept with maxKeys only.
	count atomic.Int64
	// swept is the tick of the last sweep of all shards for want of room.
	swept  atomic.Int64
	shards [Shards]lockedShard[V]
}

// lockedShard fills two cache lines, so that owners of neighbours do not
// disturb each other.
type lockedShard[V Value] struct {
	mu sync.Mutex // guards Shard, its Prefetch apart
	Shard[V]
	_ [128 - (unsafe.Sizeof(sync.Mutex{})+unsafe.Sizeof(Shard[struct{}]{}))%128]byte
}

// New returns an empty table. Opts may be nil.
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
	// Present: the digest was there, and its value was handed out.
	Present Outcome = false
	// Added: the digest was inserted.
	Added Outcome = true
)

// batchAhead is how many digests AddBatch asks the memory for before it
// decides the first of them: more than a core's outstanding cache misses, few
// enough to be in the cache still when their turn comes.
const batchAhead = 32

// AddBatch inserts those digests that are absent or expired, in order, so that
// a digest that occurs twice is Added once and Present afterwards. Vals is
// their values, or nil for zero ones; the value of one that is Present is
// replaced by the value that the table has. Outcomes is filled with what was
// done. Both are as long as digests. The expiry is Forever or at most MaxAhead
// ticks after now.
//
// It returns how many digests were decided: all, or those before the first
// that was refused with ErrFull. It overlaps the cache misses of a batch,
// which is worth most from about 16 digests on.
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

// Prefetch starts to load what an operation on d will read. It is always safe.
func (t *Table[V]) Prefetch(d *semel.Digest) { t.shards[d[0]].Prefetch(d) }

// Add inserts a digest that is absent or expired, and reports whether it did.
// The value of a digest that is present is returned instead of v. The error is
// ErrFull or nil.
func (t *Table[V]) Add(d *semel.Digest, v V, now, expiry Tick) (stored V, added bool, err error) {
	// An insertion reads several lines one after the other; asked for at once
	// they cost one cache miss, which the lock overlaps.
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
		// One lock at a time: sweeping takes that of every shard.
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

// Set inserts a digest or replaces its value and expiry. It does not look at
// MaxKeys: who sets has found the digest present.
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

// Sweep removes what is expired, shard after shard, gives back memory that is
// no longer needed, and returns how many digests it removed.
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

// Len returns the number of digests, among them expired ones whose slots have
// not been used again.
func (t *Table[V]) Len() int64 {
	return t.sum(func(s *Shard[V]) int64 { return int64(s.Len()) })
}

// Bytes returns the memory that the slots take.
func (t *Table[V]) Bytes() int64 { return t.sum((*Shard[V]).Bytes) + int64(unsafe.Sizeof(*t)) }

// All yields the entries that are not expired in the order of their digests,
// whose last byte, which a table does not keep, is 0. No lock is held while the
// loop's body runs: an entry that is inserted or deleted meanwhile is yielded
// or not.
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

// sweepForRoom sweeps all shards, at most once a tick: within one tick nothing
// more expires.
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
