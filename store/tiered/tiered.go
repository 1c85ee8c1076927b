package tiered

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/invalid"
)

// Defaults of [Options].
const (
	DefaultMaxAge  = 10 * time.Minute
	DefaultTimeout = 250 * time.Millisecond
	DefaultRetry   = time.Second
)

// OutagePolicy says what happens while the durable store does not answer.
type OutagePolicy uint8

const (
	// Stop returns the durable store's error. Nothing is processed twice and
	// nothing is lost; what caches know to be done is still answered.
	Stop OutagePolicy = iota
	// Wait asks again, with growing pauses, until the store answers or the
	// call's context ends.
	Wait
	// Pass answers claims with Fresh and token 0, without a claim: effects run
	// and are not remembered, so that every delivery during the outage, and
	// every later delivery of the same key, has its effect again. No message
	// is lost. Completing, releasing or extending such a claim does nothing.
	Pass
)

// Options are the options of [New]. The zero value is valid.
type Options struct {
	// Layers are the layers above the durable store, in the order in which a
	// claim comes to them. Defaults to none.
	Layers []Layer
	// SoleWriter says that every key which becomes done in the durable store
	// is added to the filters among the layers: they are of this process and
	// no other writes, or all writers share them. Filters need it. If it is not
	// true, reads of caches are skipped for keys which are there, and nothing
	// worse. Defaults to false.
	SoleWriter bool
	// MaxAge is the longest that a cache answers without the durable store
	// being asked again. A record that another process removes is called done
	// here for that long at most. It may be [semel.Forever]. Defaults to 10 min.
	// Must not be negative.
	MaxAge time.Duration
	// Timeout is how long one call of a filter or cache may take; those in
	// this process are not timed. Defaults to 250 ms. Must not be negative.
	Timeout time.Duration
	// Retry is how long a layer that failed is left out before one call tries
	// it again. Defaults to 1 s. Must not be negative.
	Retry time.Duration
	// OnOutage says what happens while the durable store does not answer.
	// Defaults to Stop.
	OnOutage OutagePolicy
	// Observe is told when layers fail and return, from the goroutine of the
	// call that met it, many at once. It must not block. Defaults to none.
	Observe func(Event)
	// Clock is the wall clock; the stack does not follow it backwards. Defaults
	// to time.Now and then the monotonic clock.
	Clock func() time.Time
}

// Layer is one layer above the durable store: a filter or a cache.
type Layer struct {
	// Name names the layer in events and errors. Defaults to "filter" or
	// "cache" with its place among the layers, from 1.
	Name string
	// Filter tells keys that are certainly new.
	Filter semel.KeyFilter
	// Cache keeps copies of done keys. It must be a [semel.Looker] and a
	// [semel.Resolver], and nobody but stacks above the same durable store may
	// claim in it.
	Cache semel.Store
}

// Store is a stack of stores. It is safe for concurrent use, starts no
// goroutines and has nothing to close: who opened its layers closes them, after
// the last call of the stack.
//
// Look answers from the durable store. Abilities that a stack has not itself
// are those of the durable store, by Unwrap: what they read is right, and a
// transaction of the durable store may claim and complete keys past the layers
// above, which copy them when they are next asked for. What removes keys must
// go through the stack.
type Store struct {
	below    semel.Store // the durable store as it was given
	claims   semel.Store // the same, its single claims joined
	durable  semel.Store // the same, all its single calls joined
	looker   semel.Looker
	resolver semel.Resolver
	opts     Options
	layers   []*layer
	traits   semel.Traits
	clock    *clock.Clock
	outage   circuit // of the durable store
	passed   atomic.Int64
	// ahead is by how much the durable store's clock is ahead of ours, as its
	// leases tell, in nanoseconds.
	ahead   atomic.Int64
	granted grants
	scratch sync.Pool  // of *reading
	looking sync.Mutex // held by the one who looks below for copies; nobody waits for it
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Looker   = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Purger   = (*Store)(nil)
)

// New stacks layers above a durable store, which must have the abilities
// [semel.Looker] and [semel.Resolver]. Nil options are the zero options, which
// have no layers. All options that are out of bounds are named in one error,
// which wraps ErrInvalidRequest.
func New(durable semel.Store, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MaxAge == 0 {
		o.MaxAge = DefaultMaxAge
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Retry == 0 {
		o.Retry = DefaultRetry
	}
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

// Dual stacks one cache above a durable store: the two layers of the guides,
// Redis and a database. It is New with that one layer, named "cache".
func Dual(cache, durable semel.Store, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if len(o.Layers) > 0 {
		return nil, fmt.Errorf("tiered: Options.Layers: Dual has one layer, which is its cache: use New: %w", semel.ErrInvalidRequest)
	}
	o.Layers = []Layer{{Name: "cache", Cache: cache}}
	return New(durable, &o)
}

// stack makes the layers and reports all that is wrong with the options.
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
		var looks, resolves bool
		s.looker, looks = semel.Ability[semel.Looker](s.below)
		s.resolver, resolves = semel.Ability[semel.Resolver](s.below)
		if !looks || !resolves {
			wrong.Add("the durable store %T looks keys up: %t, and removes them: %t; a stack needs both", s.below, looks, resolves)
		}
	}
	for i, opts := range o.Layers {
		l, err := newLayer(i, opts, o)
		switch {
		case err != nil:
			wrong.Add("Options.Layers[%d]: %w", i, err)
			continue
		case l.filter != nil && !o.SoleWriter:
			wrong.Add("Options.Layers[%d]: a filter that does not see every writer is of no use; if it does, set SoleWriter", i)
		case l.cache != nil:
			s.traits.Exact = s.traits.Exact && l.traits.Exact
		}
		s.layers = append(s.layers, l)
	}
	return wrong.Err()
}

// join joins the single calls that come to a durable store, which may do so
// itself.
func join(below semel.Store) (claims, all semel.Store) {
	if j, ok := below.(*semel.Joined); ok {
		below = j.Unwrap()
	}
	if _, ok := below.(interface{ JoinsCalls() }); ok {
		return below, below
	}
	return semel.Join(lasting{below}, 0), semel.Join(below, 0)
}

// lasting is a store of which no claim is given back. Join releases those that
// are granted to callers who gave up; but a caller of a stack may ask again and
// recognise its claim, which must not be released under it then.
type lasting struct{ semel.Store }

// Release implements semel.Store.
func (lasting) Release(context.Context, []semel.ReleaseRequest, []error) error { return nil }

// Traits implements semel.Store. They are those of the durable store; Exact
// needs exact caches too, since a cache's word is final.
func (s *Store) Traits() semel.Traits { return s.traits }

// Unwrap returns the durable store, for the abilities that layers do not
// change.
func (s *Store) Unwrap() semel.Store { return s.below }

// JoinsCalls says that [semel.Join] is to pass calls on as they come: what a
// cache answers must not wait for what the durable store is asked for. The
// stack joins the single calls that come to the durable store.
func (s *Store) JoinsCalls() {}

// Look implements semel.Looker. It asks the durable store.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return wrap("look", s.looker.Look(ctx, keys, records))
}

// lengthError refuses a call whose answers are not as many as its requests.
func lengthError(verb string, requests, answers int) error {
	return fmt.Errorf("tiered: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
}

// wrap says that an error came through the stack.
func wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tiered: %s: %w", verb, err)
}
