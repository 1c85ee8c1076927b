package tiered

import (
	"cmp"
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

const (
	defaultFilterCapacity = 1_000_000
	mostFilterCapacity    = 1 << 36
)

// defaultFilterWindow is the default of [FilterOptions].Window.
const defaultFilterWindow = 24 * time.Hour

// FilterOptions configure [NewMemoryFilter]. The zero value is valid.
type FilterOptions struct {
	// Window is how long the filter remembers a key after it was last completed
	// or found done. Use the window of the durable store's keys, or the age of
	// the caches' copies. Defaults to 24 h. Must be at least 1 ms.
	Window time.Duration
	// Capacity is the number of keys in a window, at an even rate. With more
	// keys only the error rate grows. Defaults to 1,000,000. Must be between 1
	// and 2^36.
	Capacity int
	// ErrorRate is the probability that a key which was not added is still read
	// from the caches, at full capacity. Defaults to 0.001. Must be between
	// 1e-5 and 0.5.
	ErrorRate float64
	// Alone means that the filter decides without a store below it. All keys of
	// a window may then arrive in a burst, which takes about 75 bits per key.
	// Add refuses keys above the capacity with semel.ErrStoreFull, so the error
	// rate holds. Keys expire even without new ones: after the window, and at
	// most a third of it later. Defaults to false.
	Alone bool
	// Clock is the wall clock. The filter ignores backward steps. Defaults to
	// time.Now, then the monotonic clock.
	Clock func() time.Time
}

// MemoryFilter is a [filter.KeyFilter] in the memory of this process: a rotating Bloom
// filter, in about 25 bits for each key of the window. It begins empty, so that
// after a restart the first duplicate of each key goes to the durable store. It
// is safe for concurrent use.
type MemoryFilter struct {
	clock *clock.Clock
	alone bool
	mu    sync.RWMutex // guards ids
	ids   *filter.Rotating
}

var _ filter.KeyFilter = (*MemoryFilter)(nil)

// NewMemoryFilter returns an empty filter. Nil opts select the defaults. One
// error names all invalid options. It wraps ErrInvalidRequest.
func NewMemoryFilter(opts *FilterOptions) (*MemoryFilter, error) {
	var o FilterOptions
	if opts != nil {
		o = *opts
	}
	o.Window = cmp.Or(o.Window, defaultFilterWindow)
	rotating := filter.RotatingOptions{Capacity: o.Capacity, Window: o.Window, ErrorRate: o.ErrorRate, WhenFull: filter.Report}
	if o.Alone {
		const parts = 3 // in addition to the part that is being filled
		rotating.WhenFull, rotating.Generations = filter.Refuse, parts+1
		rotating.Capacity = cmp.Or(rotating.Capacity, defaultFilterCapacity)
		if rotating.Capacity <= mostFilterCapacity/parts {
			rotating.Capacity *= parts
		} else if rotating.Capacity <= mostFilterCapacity {
			rotating.Capacity = mostFilterCapacity
		}
	}
	ids, err := filter.NewRotating(&rotating)
	if err != nil {
		return nil, fmt.Errorf("tiered: FilterOptions: %w", err)
	}
	return &MemoryFilter{clock: clock.New(o.Clock, time.Time{}), alone: o.Alone, ids: ids}, nil
}

// MayContain implements filter.KeyFilter. It does not block.
func (f *MemoryFilter) MayContain(_ context.Context, keys []semel.Key, maybe []bool) error {
	var room [128]byte
	if f.alone {
		f.mu.Lock()
		f.ids.Advance(f.clock.Now())
		f.mu.Unlock()
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	for i := range keys {
		maybe[i] = f.ids.Has(appendKey(room[:0], keys[i]))
	}
	return nil
}

// Add implements filter.KeyFilter. It does not block.
func (f *MemoryFilter) Add(_ context.Context, keys []semel.Key) (refused error) {
	var room [128]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids.Advance(f.clock.Now())
	for i := range keys {
		_, err := f.ids.Add(appendKey(room[:0], keys[i]))
		switch {
		case errors.Is(err, filter.ErrFull) && f.alone:
			refused = fmt.Errorf("tiered: the filter has reached its capacity: %w: %w", semel.ErrStoreFull, err)
		case err != nil && !errors.Is(err, filter.ErrFull):
			return fmt.Errorf("tiered: add to the filter: %w", err)
		}
	}
	return refused
}

// Rate implements filter.KeyFilter.
func (f *MemoryFilter) Rate() float64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ids.ErrorRate()
}

// Fill returns the share of bits that are set, between 0 and 1. It does not
// block.
func (f *MemoryFilter) Fill() float64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ids.Fill()
}

// appendKey appends a key in a form in which no two keys are equal.
func appendKey(to []byte, key semel.Key) []byte {
	to = binary.AppendUvarint(to, uint64(len(key.Scope)))
	to = append(to, key.Scope...)
	return append(to, key.ID...)
}
