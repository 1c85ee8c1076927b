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
)

// layer is one layer above the durable store at work.
type layer struct {
	circuit
	filter   semel.KeyFilter
	cache    semel.Store
	looker   semel.Looker
	resolver semel.Resolver
	purger   semel.Purger // nil if the cache has none
	traits   semel.Traits
	// local is a layer of this process, whose calls need no time-out.
	local bool
	owner string // of claims in the cache, which nonce numbers
	nonce atomic.Uint64
	bars  bars
	// answered is for how many keys it spared the layers below work, filled
	// how many were copied into it, refused how many it did not take; mistaken is
	// how many a filter called maybe there that the durable store did not have.
	answered, filled, refused, mistaken atomic.Int64
}

func newLayer(i int, opts Layer, o *Options) (*layer, error) {
	l := &layer{filter: opts.Filter, cache: opts.Cache, owner: newOwner()}
	name := opts.Name
	switch {
	case (l.filter == nil) == (l.cache == nil):
		return nil, errors.New("a layer has either a Filter or a Cache")
	case l.filter != nil:
		_, l.local = l.filter.(*MemoryFilter)
		if name == "" {
			name = "filter " + strconv.Itoa(i+1)
		}
	default:
		var looks, resolves bool
		l.looker, looks = semel.Ability[semel.Looker](l.cache)
		l.resolver, resolves = semel.Ability[semel.Resolver](l.cache)
		if !looks || !resolves {
			return nil, fmt.Errorf("the cache %T looks keys up: %t, and removes them: %t; a cache needs both", l.cache, looks, resolves)
		}
		l.purger, _ = semel.Ability[semel.Purger](l.cache) // nil if it forgets by itself
		l.traits = l.cache.Traits()
		l.local = !l.traits.Shared
		if name == "" {
			name = "cache " + strconv.Itoa(i+1)
		}
	}
	l.circuit.init(name, o)
	return l, nil
}

// begin takes a layer that is not open yet for one that failed.
func (l *layer) begin() {
	for _, opened := range []any{l.cache, l.filter} {
		if late, ok := opened.(interface{ pending() error }); ok {
			if err := late.pending(); err != nil {
				l.leave(false, err)
			}
		}
	}
}

// use makes one call of the layer under its time-out, if the layer is in use,
// and reports whether it was answered. Of a caller's deadline a layer gets half
// of what is left, so that the layers below are reached in time.
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

// run makes one call of the layer, if the layer is in use, and reports whether
// it was answered. Removals that the layer is owed come first: before they have
// reached it, it must not answer. began is when a layer that can keep a caller
// waiting was asked.
func (l *layer) run(ctx context.Context, began time.Time, call func(context.Context) error) bool {
	trial, ok := l.enter()
	if !ok {
		return false
	}
	err := l.pay(ctx)
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
