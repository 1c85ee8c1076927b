package table

import (
	"iter"
	"unsafe"

	"github.com/semel-dev/semel"
)

// The tests examine a whole table with the methods of this file. Programs work on
// its shards.

// Add inserts a digest that is absent or expired, and reports whether it did.
// For a present digest it returns the stored value instead of v.
func (t *Table[V]) Add(d *semel.Digest, v V, now, expiry Tick) (stored V, added bool) {
	// An insertion reads several cache lines one after the other. Loaded
	// together they cost one cache miss.
	t.Prefetch(d)
	return t.of(d).Add(d, v, now, expiry)
}

// Delete removes a digest, expired or not, and reports whether it was there.
func (t *Table[V]) Delete(d *semel.Digest) bool { return t.of(d).Delete(d) }

// Sweep removes expired digests, frees unused memory, and returns how many
// digests it removed.
func (t *Table[V]) Sweep(now Tick) (removed int64) {
	for i := range t.shards {
		removed += int64(t.shards[i].Sweep(now))
		t.shards[i].Shrink()
	}
	return removed
}

// Len returns the number of digests. It includes expired digests whose slots
// have not been reused.
func (t *Table[V]) Len() (n int64) {
	for i := range t.shards {
		n += int64(t.shards[i].Len())
	}
	return n
}

// Bytes returns the memory of the slots.
func (t *Table[V]) Bytes() int64 {
	n := int64(unsafe.Sizeof(*t))
	for i := range t.shards {
		n += t.shards[i].Bytes()
	}
	return n
}

// All yields the unexpired entries in the order of their digests. A table does
// not keep the last byte of a digest, so that byte is 0. An entry that is
// inserted or deleted during the loop may or may not be yielded.
func (t *Table[V]) All(now Tick) iter.Seq[Entry[V]] {
	return func(yield func(Entry[V]) bool) {
		var entries []Entry[V]
		for i := range t.shards {
			for from, more := uint64(0), true; more; {
				entries, from, more = t.shards[i].Page(entries[:0], byte(i), from, now)
				for _, e := range entries {
					if !yield(e) {
						return
					}
				}
			}
		}
	}
}

// Slots returns the number of slots.
func (c *Compact[V]) Slots() (n uint64) {
	for i := range c.shards {
		n += c.shards[i].slots
	}
	return n
}
