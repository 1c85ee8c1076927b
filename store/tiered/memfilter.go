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

const (
	defaultFilterCapacity = 1_000_000
	mostFilterCapacity    = 1 << 36
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
	// Alone says that the filter decides, with no store below it. All keys of
	// a window may then come at once, which takes about 75 bits for each. Add
	// refuses what is more with semel.ErrStoreFull, so that the error rate holds,
	// and keys are forgotten in time also where none are added: after the window,
	// and at most a third of it later.
	Alone bool
	// Clock is the wall clock; the filter does not follow it backwards. Defaults
	// to time.Now and then the monotonic clock.
	Clock func() time.Time
}

// MemoryFilter is a [semel.KeyFilter] in the memory of this process: a rotating Bloom
// filter, in about 25 bits for each key of the window. It begins empty, so that
// after a restart the first duplicate of each key goes to the durable store. It
// is safe for concurrent use.
type MemoryFilter struct {
	clock *clock.Clock
	alone bool
	mu    sync.RWMutex // guards ids
	ids   *filter.Rotating
}

var _ semel.KeyFilter = (*MemoryFilter)(nil)

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
	rotating := filter.RotatingOptions{Capacity: o.Capacity, Window: o.Window, ErrorRate: o.ErrorRate, WhenFull: filter.Report}
	if o.Alone {
		const parts = 3 // beside the one that is filled
		rotating.WhenFull, rotating.Generations = filter.Refuse, parts+1
		if rotating.Capacity == 0 {
			rotating.Capacity = defaultFilterCapacity
		}
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

// MayContain implements semel.KeyFilter. It does not block.
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

// Add implements semel.KeyFilter. It does not block.
func (f *MemoryFilter) Add(_ context.Context, keys []semel.Key) (refused error) {
	var room [128]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids.Advance(f.clock.Now())
	for i := range keys {
		_, err := f.ids.Add(appendKey(room[:0], keys[i]))
		switch {
		case errors.Is(err, filter.ErrFull) && f.alone:
			refused = fmt.Errorf("tiered: the filter holds the keys it was made for: %w: %w", semel.ErrStoreFull, err)
		case err != nil && !errors.Is(err, filter.ErrFull):
			return fmt.Errorf("tiered: add to the filter: %w", err)
		}
	}
	return refused
}

// Rate implements semel.KeyFilter.
func (f *MemoryFilter) Rate() float64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ids.ErrorRate()
}

// Fill returns the share of bits that are set, between 0 and 1. It does not block.
func (f *MemoryFilter) Fill() float64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.ids.Fill()
}

// appendKey appends a key so that scope and id do not run into each other.
func appendKey(to []byte, key semel.Key) []byte {
	to = binary.AppendUvarint(to, uint64(len(key.Scope)))
	to = append(to, key.Scope...)
	return append(to, key.ID...)
}
