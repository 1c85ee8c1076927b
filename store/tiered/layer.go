package tiered

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
)

// layer is the runtime state of one layer above the durable store.
type layer struct {
	circuit
	filter filter.KeyFilter
	cache  cacheStore   // zero if the layer is a filter
	purger semel.Purger // nil if the cache is not a Purger
	traits semel.Traits
	// local is set for a layer in this process, whose calls need no timeout.
	local   bool
	owner   string // owner of the claims in the cache; nonce numbers them
	nonce   atomic.Uint64
	invalid invalidations
	// answered counts the keys that the layer answered for the layers below.
	// filled counts the keys that were copied into it, and refused the keys that were refused.
	// mistaken counts a filter's false positives: keys without a record in the durable store.
	answered, filled, refused, mistaken atomic.Int64
}

// cacheStore is a store with what a stack needs of a cache.
type cacheStore struct {
	semel.Store
	looker
	remover
}

// looker is the part of [semel.Inspector] that a stack needs of a cache, and remover that
// of [semel.Resolver].
type (
	looker interface {
		Look(ctx context.Context, keys []semel.Key, records []semel.Record) error
	}
	remover interface {
		Remove(ctx context.Context, key semel.Key) (bool, error)
	}
)

func cacheOf(store semel.Store) (cacheStore, error) {
	looks, canLook := semel.As[looker](store)
	removes, canRemove := semel.As[remover](store)
	if !canLook || !canRemove {
		return cacheStore{}, fmt.Errorf("%T has Look: %t, Remove: %t; it must have both", store, canLook, canRemove)
	}
	return cacheStore{store, looks, removes}, nil
}

func newLayer(i int, opts Layer, o *Options) (*layer, error) {
	l := &layer{filter: opts.Filter, owner: newOwner()}
	name := opts.Name
	switch {
	case (opts.Filter == nil) == (opts.Cache == nil):
		return nil, errors.New("a layer must have either a Filter or a Cache")
	case l.filter != nil:
		_, l.local = l.filter.(*MemoryFilter)
		if name == "" {
			name = "filter " + strconv.Itoa(i+1)
		}
	default:
		var err error
		if l.cache, err = cacheOf(opts.Cache); err != nil {
			return nil, fmt.Errorf("the cache: %w", err)
		}
		l.purger, _ = semel.As[semel.Purger](opts.Cache) // nil if the cache expires records by itself
		l.traits = l.cache.Traits()
		l.local = !l.traits.Shared
		if name == "" {
			name = "cache " + strconv.Itoa(i+1)
		}
	}
	l.circuit.init(name, o)
	return l, nil
}

// begin marks a layer that is not open yet as failed.
func (l *layer) begin() {
	for _, opened := range []any{l.cache.Store, l.filter} {
		if late, ok := opened.(interface{ pending() error }); ok {
			if err := late.pending(); err != nil {
				l.leave(false, err)
			}
		}
	}
}

// use makes one call of the layer under its timeout, if the layer is in use. It
// reports whether the layer answered. If the caller has a deadline, the layer
// gets half of the remaining time, so that the layers below are still reached.
func (l *layer) use(ctx context.Context, call func(context.Context) error) bool {
	if l.local {
		return l.run(ctx, time.Time{}, call)
	}
	timeout := l.opts.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline)/2)
	}
	began := time.Now()
	timed, cancel := context.WithDeadline(ctx, began.Add(timeout))
	defer cancel()
	return l.run(timed, began, call)
}

// run makes one call of the layer, if the layer is in use. It reports whether
// the layer answered. It first sends the pending removals: the
// layer must not answer before them. began is the start of the call to a layer
// that can block.
func (l *layer) run(ctx context.Context, began time.Time, call func(context.Context) error) bool {
	trial, ok := l.enter()
	if !ok {
		return false
	}
	err := l.removePending(ctx)
	if err == nil {
		err = call(ctx)
	}
	if err == nil || ctx.Err() == nil {
		l.leave(trial, err)
		return err == nil
	}
	var waited time.Duration
	if !l.local {
		waited = time.Since(began)
	}
	l.abandon(trial, waited, err)
	return false
}

// newClaim returns the owner of one claim in the cache.
func (l *layer) newClaim() semel.Owner {
	return semel.Owner{Name: l.owner, Nonce: l.nonce.Add(1)}
}

// newOwner returns a name that no other stack has.
func newOwner() string {
	var unique [8]byte
	rand.Read(unique[:]) // never fails: crypto/rand ends the process instead
	return "tiered/" + hex.EncodeToString(unique[:])
}
