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

// mostOwed is how many pending removals a stack remembers for a cache that is
// unreachable. Above that limit, the stack ignores the whole cache until every
// copy that it may contain has expired.
const mostOwed = 10_000

var errBlind = fmt.Errorf("too many removals did not reach the layer: it is not used until all its copies have expired: %w", semel.ErrStoreUnavailable)

// bars are the keys for which the stack ignores a cache, because their removal
// is in progress or owed.
type bars struct {
	raised atomic.Bool // fast path: reports whether any field below is set

	mu    sync.Mutex // guards all fields below, and changes of raised
	under map[semel.Key]int
	owed  map[semel.Key]bool
	blind time.Time // until then, the whole cache is ignored
}

// has reports whether a key is barred.
func (b *bars) has(key semel.Key) bool {
	if !b.raised.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.under[key] > 0 || b.owed[key] || time.Now().Before(b.blind)
}

// raise bars a key when its removal begins.
func (b *bars) raise(key semel.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.under == nil {
		b.under, b.owed = make(map[semel.Key]int), make(map[semel.Key]bool)
	}
	b.under[key]++
	b.raised.Store(true)
}

// lift ends the bar of a finished removal.
func (b *bars) lift(key semel.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.under[key]--; b.under[key] == 0 {
		delete(b.under, key)
	}
	b.raised.Store(len(b.under)+len(b.owed) > 0 || !b.blind.IsZero())
}

// owe records a removal that did not reach the layer. The layer's copies expire
// within maxAge. The key stays barred until the removal reaches the layer.
func (b *bars) owe(key semel.Key, maxAge time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owed[key] = true; len(b.owed) > mostOwed || !b.blind.IsZero() {
		clear(b.owed)
		// A year is longer than any process runs, and Forever would overflow
		// the time.
		b.blind = time.Now().Add(min(maxAge, 365*24*time.Hour))
	}
}

// owing returns the number of removals that the layer is owed.
func (b *bars) owing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.owed)
}

// debts returns the removals that the layer is owed, or an error if the layer
// must not be used.
func (b *bars) debts() ([]semel.Key, error) {
	if !b.raised.Load() {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Now().Before(b.blind) {
		return nil, errBlind
	}
	b.blind = time.Time{}
	return slices.Collect(maps.Keys(b.owed)), nil
}

// paid ends the bar of a removal that reached the layer.
func (b *bars) paid(key semel.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.owed, key)
	b.raised.Store(len(b.under)+len(b.owed) > 0 || !b.blind.IsZero())
}
