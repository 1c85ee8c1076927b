package tiered

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
)

// A key that is removed must not be called done by a copy, and three things
// work against that: the copy that is there, a copy that is under way, based on
// an answer from before the removal, and a cache that cannot be reached.
//
// The order of a removal is: bar the key, remove it from the durable store,
// forget it in each cache, lift the bar. While a key is barred this stack does
// not believe the cache about it, so that from its first step on the removal
// cannot be contradicted here. What copies are under way when the
// bar is lifted, here or in another process, meet a claim that forgetting
// leaves in the place of the copy: whoever fills claims first, and finds the
// key in flight. That claim ends after keepOut; a copy that is later than half
// of that is not written.
//
// If the cache does not answer, the removal is owed: the key stays barred here,
// and the removal is made before the cache answers anything again. Other
// processes are not barred: to them a copy may be visible until it ends, within
// MaxAge, and that is why the removal returns an error.

// keepOut is for how long a removed key is kept out of a cache.
const keepOut = time.Minute

// Remove implements semel.Resolver: it forgets a key in all layers. An error
// may come with true: the durable store has forgotten the key, and the error
// names the layer that could not be told. To remove the key again tells it.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	var was bool
	err := s.settle(ctx, "remove", key, func() (err error) {
		was, err = s.resolver.Remove(ctx, key)
		return err
	})
	return was, err
}

// Resolve implements semel.Resolver. It settles the key in the durable store
// and forgets what other layers know of it. Its error is that of the durable
// store, or names a layer that could not be told as with Remove, which tells it.
func (s *Store) Resolve(ctx context.Context, key semel.Key, as semel.State, result semel.Result, window time.Duration) error {
	return s.settle(ctx, "resolve", key, func() error {
		return s.resolver.Resolve(ctx, key, as, result, window)
	})
}

// Purge implements semel.Purger: each layer that does not forget by itself what
// has expired does so now. It returns the number of records of the durable
// store. What caches fail to purge stays there and answers nothing.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	var forgotten int64
	var err error
	if p, ok := semel.Ability[semel.Purger](s.below); ok {
		forgotten, err = p.Purge(ctx)
	}
	for _, l := range s.layers {
		if l.purger != nil {
			l.run(ctx, time.Now(), func(ctx context.Context) error {
				_, err := l.purger.Purge(ctx)
				return err
			})
		}
	}
	return forgotten, wrap("purge", err)
}

// settle changes a key in the durable store by hand and has the caches forget
// it, also where the durable store's answer did not come.
func (s *Store) settle(ctx context.Context, verb string, key semel.Key, change func() error) error {
	for _, l := range s.layers {
		if l.cache != nil {
			l.bars.raise(key)
			defer l.bars.lift(key)
		}
	}
	err := change()
	if semel.Classify(err) == semel.ClassPermanent {
		return wrap(verb, err) // nothing was changed
	}
	var unreached []error
	for _, l := range s.layers {
		if l.cache == nil {
			continue
		}
		// A caller who gives up between the layers has changed his mind too late.
		var failure error
		if !l.use(context.WithoutCancel(ctx), func(ctx context.Context) error {
			failure = l.forget(ctx, key)
			return failure
		}) {
			if failure == nil {
				failure = fmt.Errorf("the layer is down: %w", semel.ErrStoreUnavailable)
			}
			l.bars.owe(key, s.opts.MaxAge)
			l.tell(Event{Kind: EventUnreached, Keys: 1, Err: failure})
			unreached = append(unreached, fmt.Errorf(
				"layer %q was not reached, and other processes that read it may call %s a duplicate for up to %v: %w",
				l.name, key, s.opts.MaxAge, failure))
		}
	}
	return wrap(verb, errors.Join(append([]error{err}, unreached...)...))
}

// forget removes a key from a cache and leaves a claim in its place.
func (l *layer) forget(ctx context.Context, key semel.Key) error {
	req := semel.ClaimRequest{Key: key, Owner: l.newClaim(), Lease: keepOut, Window: keepOut}
	for {
		if _, err := l.resolver.Remove(ctx, key); err != nil {
			return err
		}
		answers := make([]semel.ClaimAnswer, 1)
		err := l.cache.Claim(ctx, []semel.ClaimRequest{req}, answers)
		switch a := &answers[0]; {
		case errors.Is(err, semel.ErrStoreFull) || err == nil && errors.Is(a.Err, semel.ErrStoreFull):
			return nil // no copy finds room either
		case err != nil:
			return err
		case a.Err != nil:
			return a.Err
		case a.Decision == semel.Fresh:
			return nil
		}
		// A copy, or the first step of one, came between: once more.
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// pay makes the removals that the layer is owed.
func (l *layer) pay(ctx context.Context) error {
	keys, err := l.bars.debts()
	for _, key := range keys {
		if err := l.forget(ctx, key); err != nil {
			return fmt.Errorf("make up for a removal: %w", err)
		}
		l.bars.paid(key)
	}
	return err
}
