// Package coarse finds keys that are too coarse: duplicates that differ in content from another
// message of their key.
package coarse

import (
	"container/heap"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// Watch remembers the contents of messages by their keys. With few keys it knows all of them.
// With more it knows a sample of them, for as long as it lives: those whose hashes are the
// smallest. So its memory is bounded, and for other keys it does nothing. It is safe for
// concurrent use.
type Watch struct {
	seed  maphash.Seed
	limit atomic.Uint64 // hashes from it on are not watched

	mu     sync.Mutex // guards the fields below
	known  map[uint64]content
	hashes largest
	most   int
}

// mostKeys is how many keys a Watch knows.
const mostKeys = 8192

// content identifies the body of a message.
type content struct {
	raw, canonical uint64
	differed       int // how many messages had another one
}

// New returns a Watch that knows no messages.
func New() *Watch {
	w := &Watch{seed: maphash.MakeSeed(), known: map[uint64]content{}, most: mostKeys}
	w.limit.Store(math.MaxUint64)
	return w
}

// Hash returns the hash of a key.
func (w *Watch) Hash(k semel.Key) uint64 {
	var h maphash.Hash
	h.SetSeed(w.seed)
	h.WriteString(k.Scope)
	h.WriteByte(0)
	h.WriteString(k.ID)
	return h.Sum64()
}

// Fresh notes the body of a message that took effect. The hash of its key is uniform.
func (w *Watch) Fresh(hash uint64, body []byte) {
	if hash < w.limit.Load() {
		c := w.contentOf(body)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.set(hash, c)
	}
}

// Differs reports whether a duplicate is known to have another content than the message of its
// key that took effect, or than the first duplicate if that one is not known. It compares JSON
// values, so white space and the order of members make no difference.
func (w *Watch) Differs(hash uint64, body []byte) bool {
	if hash >= w.limit.Load() {
		return false
	}
	raw := maphash.Bytes(w.seed, body)
	w.mu.Lock()
	first, known := w.known[hash]
	w.mu.Unlock()
	// To compare values takes time, and once many messages of a key differ, all that matters
	// is that they do.
	const enough = 1000
	differs := known && first.raw != raw
	if differs && first.differed < enough {
		differs = first.canonical != w.canonical(body)
	}
	switch {
	case known && !differs:
		return false
	case !known:
		first = w.contentOf(body)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now, ok := w.known[hash]; ok {
		first = now // changed since
	}
	if differs {
		first.differed++
	}
	w.set(hash, first)
	return differs
}

func (w *Watch) contentOf(body []byte) content {
	return content{raw: maphash.Bytes(w.seed, body), canonical: w.canonical(body)}
}

// mostCanonical is the length of the longest body that is compared as a JSON value. Longer ones
// are compared as bytes.
const mostCanonical = 64 << 10

func (w *Watch) canonical(body []byte) uint64 {
	if len(body) > mostCanonical {
		return maphash.Bytes(w.seed, body)
	}
	if text, err := key.AppendContent(nil, body); err == nil {
		body = text
	}
	return maphash.Bytes(w.seed, body)
}

// set sets the content of a key. If there are too many keys, it forgets the one with the largest
// hash. The caller holds mu.
func (w *Watch) set(hash uint64, c content) {
	if _, ok := w.known[hash]; !ok {
		if hash >= w.limit.Load() {
			return
		}
		heap.Push(&w.hashes, hash)
	}
	w.known[hash] = c
	if len(w.known) > w.most {
		last := heap.Pop(&w.hashes).(uint64)
		delete(w.known, last)
		w.limit.Store(last)
	}
}

// largest is a heap whose first hash is the largest.
type largest []uint64

func (l largest) Len() int           { return len(l) }
func (l largest) Less(i, j int) bool { return l[i] > l[j] }
func (l largest) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *largest) Push(x any)        { *l = append(*l, x.(uint64)) }
func (l *largest) Pop() any {
	last := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return last
}
