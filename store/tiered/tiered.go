package tiered

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/invalid"
)

// Defaults of [Options].
const (
	defaultMaxAge  = 10 * time.Minute
	defaultTimeout = 250 * time.Millisecond
	defaultRetry   = time.Second
)

// OutagePolicy selects the behaviour while the durable store does not answer.
type OutagePolicy uint8

const (
	// Stop returns the durable store's error. Nothing is processed twice and
	// nothing is lost. Caches still answer the keys that they know as done.
	Stop OutagePolicy = iota
	// Wait retries with growing pauses until the store answers or the call's
	// context ends.
	Wait
	// Pass answers claims with Fresh and token 0, without a claim. Effects run
	// but are not recorded. So every delivery during the outage, and every
	// later delivery of the same key, repeats the effect. No message is lost.
	// Completing, releasing or extending such a claim does nothing.
	Pass
)

// Options configure [New]. The zero value is valid.
type Options struct {
	// Layers are the layers above the durable store, in the order in which a
	// claim reaches them. Defaults to none.
	Layers []Layer
	// MaxAge is how long a cache may answer before the durable store is asked
	// again. If another process removes a record, this stack may report it as
	// done for at most that time. It may be [semel.Forever]. Defaults to 10
	// min. Must not be negative.
	MaxAge time.Duration
	// Timeout is the limit for one call of a filter or cache. Layers in this
	// process have no timeout. Defaults to 250 ms. Must not be negative.
	Timeout time.Duration
	// Retry is how long a failed layer is skipped before one call tries it
	// again. Defaults to 1 s. Must not be negative.
	Retry time.Duration
	// OnOutage selects the behaviour while the durable store does not answer.
	// Defaults to Stop.
	OnOutage OutagePolicy
	// Observe receives an event when a layer fails or recovers. It runs in the
	// goroutine of the call that met the event, so it may run concurrently. It
	// must not block. Defaults to none.
	Observe func(Event)
	// Clock is the wall clock. The stack ignores backward steps. Defaults to
	// time.Now, then the monotonic clock.
	Clock func() time.Time
}

// Layer is one layer above the durable store: a filter or a cache.
type Layer struct {
	// Name names the layer in events and errors. Defaults to "filter" or
	// "cache" with its position among the layers, from 1.
	Name string
	// Filter tells keys that are certainly new. Every key that becomes done in the
	// durable store must be added to it: all writers share the filter, or this
	// process is the only writer. Otherwise the stack skips cache reads for keys
	// that the caches have. Nothing worse happens.
	Filter filter.KeyFilter
	// Cache keeps copies of done keys. It must have Look of [semel.Inspector] and
	// Remove of [semel.Resolver]. Nobody but stacks above the same durable store may
	// claim in it.
	Cache semel.Store
}

// Store is a stack of stores. It is safe for concurrent use, starts no
// goroutines and has nothing to close: who opened its layers closes them, after
// the last call of the stack.
//
// Look answers from the durable store. Unwrap gives access to optional
// interfaces of the durable store that the stack does not implement. Their reads are correct. A
// transaction of the durable store may claim and complete keys without the
// layers above; a later claim copies those keys. Removals must go through the
// stack.
type Store struct {
	below     semel.Store     // the durable store as given
	claims    semel.Store     // the same, with single claims joined
	durable   semel.Store     // the same, with all single calls joined
	inspector semel.Inspector // of the durable store
	resolver  semel.Resolver
	opts      Options
	layers    []*layer
	traits    semel.Traits
	clock     *clock.Clock
	outage    circuit // of the durable store
	passed    atomic.Int64
	// ahead is how far the durable store's clock is ahead of this one, in
	// nanoseconds, as computed from its leases.
	ahead   atomic.Int64
	granted grants
	scratch sync.Pool  // of *reading
	looking sync.Mutex // held by the caller that looks below for copies; other callers do not wait for it
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.Purger         = (*Store)(nil)
)

// New stacks layers above a durable store, which must implement [semel.Inspector]
// and [semel.Resolver]. Nil opts select the defaults, which have no layers. One
// error names all invalid options. It wraps ErrInvalidRequest.
func New(durable semel.Store, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.MaxAge = cmp.Or(o.MaxAge, defaultMaxAge)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Retry = cmp.Or(o.Retry, defaultRetry)
	s := &Store{below: durable, opts: o, clock: clock.New(o.Clock, time.Time{})}
	if err := s.stack(); err != nil {
		return nil, err
	}
	s.outage.init("durable", &s.opts)
	s.scratch.New = func() any { return new(reading) }
	for _, l := range s.layers {
		l.begin()
	}
	return s, nil
}

// Dual stacks one cache above a durable store, for instance Redis above a
// database. It is New with one layer, named "cache".
func Dual(cache, durable semel.Store, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if len(o.Layers) > 0 {
		return nil, fmt.Errorf("tiered: Options.Layers must be empty, because Dual has one layer, its cache: use New for other layers: %w", semel.ErrInvalidRequest)
	}
	o.Layers = []Layer{{Name: "cache", Cache: cache}}
	return New(durable, &o)
}

// stack creates the layers and reports all invalid options.
func (s *Store) stack() error {
	wrong := invalid.In("tiered: ")
	o := &s.opts
	if o.MaxAge < 0 {
		wrong.Add("Options.MaxAge: %v is negative", o.MaxAge)
	}
	if o.Timeout < 0 {
		wrong.Add("Options.Timeout: %v is negative", o.Timeout)
	}
	if o.Retry < 0 {
		wrong.Add("Options.Retry: %v is negative", o.Retry)
	}
	if o.OnOutage > Pass {
		wrong.Add("Options.OnOutage: %d is none of Stop, Wait and Pass", o.OnOutage)
	}
	if s.below == nil {
		wrong.Add("the durable store is nil")
	} else {
		s.claims, s.durable = join(s.below)
		s.traits = s.below.Traits()
		var inspects, resolves bool
		s.inspector, inspects = semel.As[semel.Inspector](s.below)
		s.resolver, resolves = semel.As[semel.Resolver](s.below)
		if !inspects || !resolves {
			wrong.Add("the durable store: %T implements Inspector: %t, Resolver: %t; it must implement both", s.below, inspects, resolves)
		}
		s.traits.Batching = semel.Batching{Off: true} // an answer from a cache must not wait for the durable store
	}
	for i, opts := range o.Layers {
		l, err := newLayer(i, opts, o)
		if err != nil {
			wrong.Add("Options.Layers[%d]: %w", i, err)
			continue
		}
		s.traits.Exact = s.traits.Exact && (l.filter != nil || l.traits.Exact)
		s.layers = append(s.layers, l)
	}
	return wrong.Err()
}

// join joins the single calls to a durable store, unless that store joins calls
// itself.
func join(below semel.Store) (claims, all semel.Store) {
	if semel.Join(below, 0) == below { // it is joined already
		below = below.(interface{ Unwrap() semel.Store }).Unwrap()
	}
	if below.Traits().Batching.Off {
		return below, below
	}
	return semel.Join(lasting{below}, 0), semel.Join(below, 0)
}

// lasting is a store whose claims are never released. Join releases claims that
// were granted to callers whose context has ended. But a caller of a stack may
// retry and recognise its claim, so that claim must not be released.
type lasting struct{ semel.Store }

// Release implements semel.Store.
func (lasting) Release(context.Context, []semel.ReleaseRequest, []error) error { return nil }

// Traits implements semel.Store. The traits are those of the durable store.
// Exact requires exact caches as well, because a cache's answer is final.
func (s *Store) Traits() semel.Traits { return s.traits }

// Unwrap returns the durable store, for the abilities that layers do not
// change.
func (s *Store) Unwrap() semel.Store { return s.below }

// Look implements [semel.Inspector]. It asks the durable store.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return wrap("look", s.inspector.Look(ctx, keys, records))
}

// List implements [semel.Inspector]. It lists the durable store.
func (s *Store) List(ctx context.Context, opts semel.ListOptions) iter.Seq2[semel.Record, error] {
	return s.inspector.List(ctx, opts)
}

// Count implements [semel.Inspector]. It counts the durable store.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	counts, err := s.inspector.Count(ctx)
	return counts, wrap("count", err)
}

// lengthError rejects a call with different numbers of requests and answers.
func lengthError(verb string, requests, answers int) error {
	return fmt.Errorf("tiered: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
}

// wrap adds the stack and the call to an error.
func wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tiered: %s: %w", verb, err)
}
