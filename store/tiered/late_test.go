package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/store/tiered"
)

// server is a server that may be down when its cache is opened.
type server struct {
	cache         *faulty
	tried, closed atomic.Int64

	mu  sync.Mutex // guards err
	err error      // the result of an open
}

func newServer(t *testing.T, err error) *server {
	t.Helper()
	s := &server{cache: newFaulty(newMemory(t, nil)), err: err}
	s.cache.shared = true
	return s
}

func (s *server) is(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *server) open(context.Context) (semel.Store, func() error, error) {
	s.tried.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, nil, s.err
	}
	return s.cache, func() error { s.closed.Add(1); return nil }, nil
}

var errDown = fmt.Errorf("connection refused: %w", semel.ErrStoreUnavailable)

func TestStackBeginsWithoutACacheThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(t, errDown)
		cache, err := tiered.OpenCache(t.Context(), server.cache.Traits(), server.open)
		if err != nil {
			t.Fatal(err)
		}
		b := &bundle{TB: t, durable: newFaulty(newMemory(t, nil)), events: new([]tiered.Event)}
		b.Store, err = tiered.New(b.durable, &tiered.Options{
			Layers:  []tiered.Layer{{Name: "late", Cache: cache}},
			Observe: func(e tiered.Event) { *b.events = append(*b.events, e) },
		})
		if err != nil {
			t.Fatal(err)
		}
		b.told("late down")
		b.done("before")
		b.want(semel.Duplicate, "before")
		if st := b.Status().Layers[0]; !st.Down || !errors.Is(st.Err, semel.ErrStoreUnavailable) {
			t.Errorf("the status of a cache that is not open: %+v", st)
		}
		if was, err := b.Remove(t.Context(), key("before")); !was || !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("a removal that does not reach the cache: %t, %v", was, err)
		}
		b.told("late unreached")
		server.is(nil)
		time.Sleep(tiered.DefaultRetry + time.Second)
		b.done("after")
		b.told("late up")
		b.want(semel.Duplicate, "after") // was copied
		b.spared("a duplicate after the cache is open", func() { b.want(semel.Duplicate, "after") })
		b.done("before") // was removed
		if err := errors.Join(cache.Close(), cache.Close()); err != nil || server.closed.Load() != 1 {
			t.Errorf("closed %d times: %v", server.closed.Load(), err)
		}
	})
}

func TestLateLayerIsTriedWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(t, errDown)
		cache, err := tiered.OpenCache(t.Context(), server.cache.Traits(), server.open)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := server.tried.Load(); n < 60 || n > 70 {
			t.Errorf("a server that is down is tried %d times in a minute", n)
		}
		server.is(fmt.Errorf("another prefix: %w", semel.ErrInvalidRequest)) // does not end the retries
		time.Sleep(time.Minute)
		server.is(nil)
		time.Sleep(time.Minute)
		before := server.tried.Load()
		time.Sleep(time.Minute)
		if server.tried.Load() != before {
			t.Error("an open cache is opened again")
		}
		if err := cache.Close(); err != nil || server.closed.Load() != 1 {
			t.Errorf("closed %d times: %v", server.closed.Load(), err)
		}
	})
}

func TestTieredStoreClosesWhileALateLayerIsBeingOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(t, errDown)
		closed := 0
		first := true
		filter, err := tiered.OpenFilter(t.Context(), func(ctx context.Context) (filter.KeyFilter, func() error, error) {
			if first {
				first = false
				return nil, nil, errDown
			}
			<-ctx.Done() // and then it succeeds
			opened, err := tiered.NewMemoryFilter(nil)
			return opened, func() error { closed++; return nil }, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if rate := filter.Rate(); rate != 1 {
			t.Errorf("a filter that is not open says that its rate is %g", rate)
		}
		if err := filter.Add(t.Context(), nil); !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("a filter that is not open takes keys: %v", err)
		}
		time.Sleep(time.Second)
		if err := filter.Close(); err != nil || closed != 1 {
			t.Errorf("what was opened since then was closed %d times: %v", closed, err)
		}

		cache, err := tiered.OpenCache(t.Context(), server.cache.Traits(), server.open)
		if err != nil {
			t.Fatal(err)
		}
		if err := cache.Close(); err != nil || server.closed.Load() != 0 {
			t.Errorf("what was never open was closed %d times: %v", server.closed.Load(), err)
		}
	})
}

func TestPermanentOpeningErrorsAreReturnedImmediately(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	other := newServer(t, nil).cache.Traits()
	other.MaxResult++
	for what, c := range map[string]struct {
		ctx    context.Context
		err    error
		traits *semel.Traits
	}{
		"an error that will not pass": {t.Context(), fmt.Errorf("x: %w", semel.ErrInvalidRequest), nil},
		"the end of the context":      {ended, errDown, nil},
		"other traits":                {t.Context(), nil, &other},
	} {
		server := newServer(t, c.err)
		traits := server.cache.Traits()
		if c.traits != nil {
			traits = *c.traits
		}
		cache, err := tiered.OpenCache(c.ctx, traits, server.open)
		if cache != nil || err == nil || server.tried.Load() != 1 || c.err == nil && server.closed.Load() != 1 {
			t.Errorf("%s: %v, %v after %d tries, closed %d times", what, cache, err, server.tried.Load(), server.closed.Load())
		}
	}
}

func TestALateCachePassesLooksAndRemovalsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newServer(t, errDown)
		cache, err := tiered.OpenCache(t.Context(), server.cache.Traits(), server.open)
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close()
		k := key("k")
		claims := []semel.ClaimRequest{{Key: k, Window: time.Hour, Done: true}}
		if err := server.cache.Claim(t.Context(), claims, make([]semel.ClaimAnswer, 1)); err != nil {
			t.Fatal(err)
		}
		var found [1]semel.Record
		if err := cache.Look(t.Context(), []semel.Key{k}, found[:]); !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("a cache that is not open finds a key: %v", err)
		}
		server.is(nil)
		time.Sleep(time.Minute)
		if err := cache.Look(t.Context(), []semel.Key{k}, found[:]); err != nil || found[0].State != semel.Done {
			t.Errorf("the key finds %+v, %v", found[0], err)
		}
		for _, want := range []bool{true, false} {
			if was, err := cache.Remove(t.Context(), k); err != nil || was != want {
				t.Errorf("remove a key: %t, %v; want %t", was, err, want)
			}
		}
	})
}
