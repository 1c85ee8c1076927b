package tiered

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

// mostPending is how many pending removals a stack remembers for a cache that is
// unreachable. Above that limit, the stack ignores the whole cache until every
// copy that it may contain has expired.
const mostPending = 10_000

var errIgnored = fmt.Errorf("too many removals did not reach the layer: it is not used until all its copies have expired: %w", semel.ErrStoreUnavailable)

// invalidations are the keys for which the stack ignores a cache, because their removal
// is in progress or pending.
type invalidations struct {
	active atomic.Bool // fast path: reports whether any field below is set

	mu      sync.Mutex // guards all fields below, and changes of active
	running map[semel.Key]int
	pending map[semel.Key]bool
	ignored time.Time // until then, the whole cache is ignored
}

// has reports whether the cache is ignored for a key.
func (v *invalidations) has(key semel.Key) bool {
	if !v.active.Load() {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.running[key] > 0 || v.pending[key] || time.Now().Before(v.ignored)
}

// begin ignores the cache for a key when its removal begins.
func (v *invalidations) begin(key semel.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running == nil {
		v.running, v.pending = make(map[semel.Key]int), make(map[semel.Key]bool)
	}
	v.running[key]++
	v.active.Store(true)
}

// end notes that a removal is finished.
func (v *invalidations) end(key semel.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running[key]--; v.running[key] == 0 {
		delete(v.running, key)
	}
	v.active.Store(len(v.running)+len(v.pending) > 0 || !v.ignored.IsZero())
}

// postpone records a removal that did not reach the layer. The layer's copies expire
// within maxAge. The cache is ignored for the key until the removal reaches the layer.
func (v *invalidations) postpone(key semel.Key, maxAge time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pending[key] = true; len(v.pending) > mostPending || !v.ignored.IsZero() {
		clear(v.pending)
		// A year is longer than any process runs, and Forever would overflow
		// the time.
		v.ignored = time.Now().Add(min(maxAge, 365*24*time.Hour))
	}
}

// count returns the number of pending removals.
func (v *invalidations) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.pending)
}

// due returns the pending removals, or an error if the layer
// must not be used.
func (v *invalidations) due() ([]semel.Key, error) {
	if !v.active.Load() {
		return nil, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Now().Before(v.ignored) {
		return nil, errIgnored
	}
	v.ignored = time.Time{}
	return slices.Collect(maps.Keys(v.pending)), nil
}

// reached notes that a pending removal reached the layer.
func (v *invalidations) reached(key semel.Key) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.pending, key)
	v.active.Store(len(v.running)+len(v.pending) > 0 || !v.ignored.IsZero())
}
