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

// mostOwed is how many removals are remembered for a cache that cannot be
// reached. Beyond that the whole cache is not believed, until every copy that
// may be in it has ended.
const mostOwed = 10_000

var errBlind = fmt.Errorf("too many removals did not reach the layer: it is left out until all its copies have ended: %w", semel.ErrStoreUnavailable)

// bars are the keys about which a cache is not believed: their removal is under
// way, or owed.
type bars struct {
	raised atomic.Bool // whether there is anything below: the fast path

	mu    sync.Mutex // guards all below, and changes of raised
	under map[semel.Key]int
	owed  map[semel.Key]bool
	blind time.Time // until when nothing is believed
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

// raise bars a key for a removal that begins.
func (b *bars) raise(key semel.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.under == nil {
		b.under, b.owed = make(map[semel.Key]int), make(map[semel.Key]bool)
	}
	b.under[key]++
	b.raised.Store(true)
}

// lift ends the bar of a removal that ended.
func (b *bars) lift(key semel.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.under[key]--; b.under[key] == 0 {
		delete(b.under, key)
	}
	b.raised.Store(len(b.under)+len(b.owed) > 0 || !b.blind.IsZero())
}

// owe notes a removal that did not reach the layer, whose copies end within
// maxAge. The key is barred until it does.
func (b *bars) owe(key semel.Key, maxAge time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owed[key] = true; len(b.owed) > mostOwed || !b.blind.IsZero() {
		clear(b.owed)
		// A year is longer than any process; and times end after Forever.
		b.blind = time.Now().Add(min(maxAge, 365*24*time.Hour))
	}
}

// owing returns how many removals the layer is owed.
func (b *bars) owing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.owed)
}

// debts returns the removals that the layer is owed, and an error if it is not
// to be used.
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

// paid ends the bar of a removal that has reached the layer.
func (b *bars) paid(key semel.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.owed, key)
	b.raised.Store(len(b.under)+len(b.owed) > 0 || !b.blind.IsZero())
}
