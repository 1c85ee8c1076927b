package tiered

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/retry"
)

// OpenFunc opens a layer. It also returns a function that closes the layer,
// which must not be nil. It should return soon after ctx ends.
type OpenFunc[T any] func(ctx context.Context) (layer T, closing func() error, err error)

// LateCache is a cache whose server may be down when a stack starts. Until it
// is open, each call fails immediately, and the stack skips it like a failed
// layer. It has those abilities of a cache that a stack uses. It is safe for
// concurrent use.
type LateCache struct {
	late[cacheStore]
	traits semel.Traits
}

var (
	_ semel.Store  = (*LateCache)(nil)
	_ looker       = (*LateCache)(nil)
	_ remover      = (*LateCache)(nil)
	_ semel.Purger = (*LateCache)(nil)
)

// OpenCache opens a cache whose traits are known. It blocks for one try.
//   - If the try fails with a retryable error, OpenCache returns the cache
//     without an error. A goroutine then retries, with pauses of up to a
//     second, until the cache is open.
//   - If the error is not retryable, or ctx has ended, OpenCache returns the
//     error.
//
// The caller closes the cache.
func OpenCache(ctx context.Context, traits semel.Traits, open OpenFunc[semel.Store]) (*LateCache, error) {
	c := &LateCache{traits: traits}
	err := c.begin(ctx, func(ctx context.Context) (cacheStore, func() error, error) {
		opened, closing, err := open(ctx)
		if err != nil {
			return cacheStore{}, nil, err
		}
		cache, err := cacheOf(opened)
		switch {
		case err != nil:
			err = fmt.Errorf("tiered: the cache: %w: %w", err, semel.ErrInvalidRequest)
		case cache.Traits() != traits:
			err = fmt.Errorf("tiered: the cache %T has the traits %+v, want %+v: %w", opened, cache.Traits(), traits, semel.ErrInvalidRequest)
		default:
			return cache, closing, nil
		}
		return cacheStore{}, nil, errors.Join(err, closing())
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Traits implements semel.Store.
func (c *LateCache) Traits() semel.Traits { return c.traits }

// Claim implements semel.Store.
func (c *LateCache) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	return c.call(func(s cacheStore) error { return s.Claim(ctx, reqs, answers) })
}

// Complete implements semel.Store.
func (c *LateCache) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return c.call(func(s cacheStore) error { return s.Complete(ctx, reqs, answers) })
}

// Release implements semel.Store.
func (c *LateCache) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return c.call(func(s cacheStore) error { return s.Release(ctx, reqs, answers) })
}

// Extend implements semel.Store.
func (c *LateCache) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return c.call(func(s cacheStore) error { return s.Extend(ctx, reqs, answers) })
}

// Look implements semel.Inspector.
func (c *LateCache) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return c.call(func(s cacheStore) error { return s.Look(ctx, keys, records) })
}

// Remove implements semel.Resolver.
func (c *LateCache) Remove(ctx context.Context, key semel.Key) (was bool, err error) {
	err = c.call(func(s cacheStore) error {
		was, err = s.Remove(ctx, key)
		return err
	})
	return was, err
}

// Purge implements semel.Purger. It does nothing for a cache that expires
// records by itself.
func (c *LateCache) Purge(ctx context.Context) (n int64, err error) {
	err = c.call(func(s cacheStore) error {
		if purger, ok := semel.As[semel.Purger](s.Store); ok {
			n, err = purger.Purge(ctx)
		}
		return err
	})
	return n, err
}

// LateFilter is a filter whose server may be down when a stack starts. See
// [LateCache].
type LateFilter struct{ late[filter.KeyFilter] }

var _ filter.KeyFilter = (*LateFilter)(nil)

// OpenFilter opens a filter as [OpenCache] opens a cache.
func OpenFilter(ctx context.Context, open OpenFunc[filter.KeyFilter]) (*LateFilter, error) {
	f := &LateFilter{}
	if err := f.begin(ctx, open); err != nil {
		return nil, err
	}
	return f, nil
}

// MayContain implements [filter.KeyFilter].
func (f *LateFilter) MayContain(ctx context.Context, keys []semel.Key, maybe []bool) error {
	return f.call(func(filter filter.KeyFilter) error { return filter.MayContain(ctx, keys, maybe) })
}

// Add implements [filter.KeyFilter].
func (f *LateFilter) Add(ctx context.Context, keys []semel.Key) error {
	return f.call(func(filter filter.KeyFilter) error { return filter.Add(ctx, keys) })
}

// Rate implements [filter.KeyFilter]. It is 1 until the filter is open: no key is
// certainly new.
func (f *LateFilter) Rate() float64 {
	if filter := f.opened.Load(); filter != nil {
		return (*filter).Rate()
	}
	return 1
}

// late is a layer that is opened in the background.
type late[T any] struct {
	open   OpenFunc[T]
	opened atomic.Pointer[T] // nil until the layer is open
	cancel context.CancelFunc
	ended  chan struct{} // closed when no goroutine opens the layer

	mu      sync.Mutex // guards the fields below
	failure error      // of the last try
	closing func() error
}

func (l *late[T]) begin(ctx context.Context, open OpenFunc[T]) error {
	l.open, l.cancel, l.ended = open, func() {}, make(chan struct{})
	err := l.try(ctx)
	if err == nil || ctx.Err() != nil || semel.Classify(err) == semel.ClassPermanent {
		close(l.ended)
		return err
	}
	trying, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	go l.goOn(trying)
	return nil
}

func (l *late[T]) try(ctx context.Context) error {
	layer, closing, err := l.open(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = err
	if err == nil {
		l.closing = closing
		l.opened.Store(&layer)
	}
	return err
}

// goOn retries until it succeeds. It retries errors that are not retryable as
// well: an operator may fix the cause, and this process then needs no restart.
func (l *late[T]) goOn(ctx context.Context) {
	defer close(l.ended)
	for n := 0; ; n++ {
		if retry.Sleep(ctx, retry.Backoff(n, firstPause, longestPause)) != nil || l.try(ctx) == nil {
			return
		}
	}
}

// pending returns why the layer is not open, or nil if it is.
func (l *late[T]) pending() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		return nil
	}
	return fmt.Errorf("tiered: the layer is not open yet: %w: %v", semel.ErrStoreUnavailable, l.failure)
}

func (l *late[T]) call(use func(T) error) error {
	layer := l.opened.Load()
	if layer == nil {
		if err := l.pending(); err != nil {
			return err
		}
		layer = l.opened.Load()
	}
	return use(*layer)
}

// Close stops the retries, waits for the current one, and closes the layer if
// it is open. A second Close is legal.
func (l *late[T]) Close() error {
	l.cancel()
	<-l.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	closing := l.closing
	if l.closing = nil; closing != nil {
		return closing()
	}
	if l.failure != nil {
		l.failure = semel.ErrClosed
	}
	return nil
}
