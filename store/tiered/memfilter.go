package tiered

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/clock"
)

// DefaultFilterWindow is the default of [FilterOptions].Window.
const DefaultFilterWindow = 24 * time.Hour

// FilterOptions are the options of [NewMemoryFilter]. The zero value is valid.
type FilterOptions struct {
	// Window is how long a key is remembered since it was last done or found to
	// be done: that of the durable store's keys, or of those that caches keep.
	// Defaults to 24 h. Must be at least 1 ms.
	Window time.Duration
	// Capacity is how many keys a window holds, at an even pace; with more the
	// error rate grows and nothing else. Defaults to 1,000,000. Must be between
	// 1 and 2^36.
	Capacity int
	// ErrorRate is the probability with which a key that was not added is read
	// from the caches all the same, at capacity. Defaults to 0.001. Must be
	// between 1e-5 and 0.5.
	ErrorRate float64
	// Clock is the wall clock; the filter does not follow it backwards. Defaults
	// to time.Now and then the monotonic clock.
	Clock func() time.Time
}

// MemoryFilter is a [Filter] in the memory of this process: a rotating Bloom
// filter, in about 25 bits for each key of the window. It begins empty, so that
// after a restart the first duplicate of each key goes to the durable store. It
// is safe for concurrent use.
type MemoryFilter struct {
	clock *clock.Clock
	mu    sync.RWMutex // guards ids
	ids   *filter.Rotating
}

var _ Filter = (*MemoryFilter)(nil)

// NewMemoryFilter returns an empty filter. Nil options are the zero options.
// All options that are out of bounds are named in one error, which wraps
// ErrInvalidRequest.
func NewMemoryFilter(opts *FilterOptions) (*MemoryFilter, error) {
	var o FilterOptions
	if opts != nil {
		o = *opts
	}
	if o.Window == 0 {
		o.Window = DefaultFilterWindow
	}
	ids, err := filter.NewRotating(&filter.RotatingOptions{
		Capacity: o.Capacity, Window: o.Window, ErrorRate: o.ErrorRate, WhenFull: filter.Report,
	})
	if err != nil {
		return nil, fmt.Errorf("tiered: FilterOptions: %w", err)
	}
	return &MemoryFilter{clock: clock.New(o.Clock, time.Time{}), ids: ids}, nil
}

// MayContain implements Filter. It does not block.
func (f *MemoryFilter) MayContain(_ context.Context, keys []semel.Key, maybe []bool) error {
	var room [128]byte
	f.mu.RLock()
	defer f.mu.RUnlock()
	for i := range keys {
		maybe[i] = f.ids.Has(appendKey(room[:0], keys[i]))
	}
	return nil
}

// Add implements Filter. It does not block.
func (f *MemoryFilter) Add(_ context.Context, keys []semel.Key) error {
	var room [128]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids.Advance(f.clock.Now())
	for i := range keys {
		if _, err := f.ids.Add(appendKey(room[:0], keys[i])); err != nil && !errors.Is(err, filter.ErrFull) {
			return fmt.Errorf("tiered: add to the filter: %w", err)
		}
	}
	return nil
}

// Rate implements Filter.
func (f *MemoryFilter) Rate() float64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ids.ErrorRate()
}

// appendKey appends a key so that scope and id do not run into each other.
func appendKey(to []byte, key semel.Key) []byte {
	to = binary.AppendUvarint(to, uint64(len(key.Scope)))
	to = append(to, key.Scope...)
	return append(to, key.ID...)
}
