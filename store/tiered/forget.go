package tiered

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
)

// After a removal, no copy may report the key as done. Three cases must be
// handled: an existing copy, a copy being written from an older answer, and an
// unreachable cache.
//
// A removal has four steps:
//  1. Ignore the cache for the key.
//  2. Remove it from the durable store.
//  3. Forget it in each cache.
//  4. Use the cache for the key again.
//
// Meanwhile this stack does not use the cache for the key. So from the first
// step on, nothing in this stack contradicts the removal.
//
// A copy may still be in progress at the end, here or in another
// process. Step 3 therefore leaves a claim in the cache. A fill claims first
// and finds the key in flight. That claim ends after keepOut. A copy that is
// late by more than half of keepOut is not written.
//
// If the cache does not answer, the removal is pending. The cache stays ignored for the key here,
// and the removal is done before the cache answers any other call. Other
// processes do not know that: they may see a copy until it expires, within MaxAge.
// That is why the removal returns an error.

// keepOut is how long a removed key is kept out of a cache.
const keepOut = time.Minute

// Remove implements semel.Resolver. It removes a key from all layers. It may
// return true with an error: the durable store has removed the key, and the
// error names a layer that was not reached. Remove the key again to retry that
// layer.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	var was bool
	err := s.settle(ctx, "remove", key, func() (err error) {
		was, err = s.resolver.Remove(ctx, key)
		return err
	})
	return was, err
}

// Resolve implements semel.Resolver. It resolves the key in the durable store
// and removes it from the other layers. The error is the durable store's, or
// names a layer that was not reached, as for Remove. Remove then retries that
// layer.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	return s.settle(ctx, "resolve", req.Key, func() error {
		return s.resolver.Resolve(ctx, req)
	})
}

// LookDigest implements semel.DigestResolver. It asks the durable store.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	by, ok := s.resolver.(semel.DigestResolver)
	if !ok {
		return semel.Record{}, fmt.Errorf("tiered: the durable store needs the key itself: %w", errors.ErrUnsupported)
	}
	r, err := by.LookDigest(ctx, d)
	return r, wrap("look", err)
}

// ResolveDigest implements semel.DigestResolver. The layers have digests of their
// own, so the durable store must keep readable keys.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	key, err := s.keyOf(ctx, d)
	switch {
	case err != nil:
		return err
	case key.ID == "":
		return wrap("resolve", fmt.Errorf("the digest %s: %w", d, semel.ErrNotUnknown))
	}
	req.Key = key
	return s.Resolve(ctx, req)
}

// RemoveDigest implements semel.DigestResolver, for the stores of ResolveDigest.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (bool, error) {
	key, err := s.keyOf(ctx, d)
	if err != nil || key.ID == "" {
		return false, err
	}
	return s.Remove(ctx, key)
}

// keyOf returns the readable key of a digest, or no key if there is no record.
func (s *Store) keyOf(ctx context.Context, d semel.Digest) (semel.Key, error) {
	r, err := s.LookDigest(ctx, d)
	if err == nil && r.State != semel.Absent && r.Key.ID == "" {
		err = fmt.Errorf("tiered: the layers above the durable store have digests of their own, and the durable store keeps no ids: %w", errors.ErrUnsupported)
	}
	return r.Key, err
}

// Purge implements semel.Purger. It purges the durable store and each layer
// that does not expire records by itself. It returns the number of records that
// the durable store removed. Expired records that a cache fails to purge remain
// there, but answer nothing.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	var forgotten int64
	var err error
	if p, ok := semel.As[semel.Purger](s.below); ok {
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

// settle changes a key in the durable store by hand and removes it from the
// caches, even if the durable store's answer was lost.
func (s *Store) settle(ctx context.Context, verb string, key semel.Key, change func() error) error {
	for _, l := range s.layers {
		if l.filter == nil {
			l.invalid.begin(key)
			defer l.invalid.end(key)
		}
	}
	err := change()
	if semel.Classify(err) == semel.ClassPermanent {
		return wrap(verb, err) // nothing was changed
	}
	var unreached []error
	for _, l := range s.layers {
		if l.filter != nil {
			continue
		}
		// From here on, the call completes even if the caller's context ends.
		var failure error
		if !l.use(context.WithoutCancel(ctx), func(ctx context.Context) error {
			failure = l.forget(ctx, key)
			return failure
		}) {
			if failure == nil {
				failure = fmt.Errorf("the layer is down: %w", semel.ErrStoreUnavailable)
			}
			l.invalid.postpone(key, s.opts.MaxAge)
			l.tell(Event{Kind: EventUnreached, Keys: 1, Err: failure})
			unreached = append(unreached, fmt.Errorf(
				"layer %q was not reached: other processes that read it may report %s as a duplicate for up to %v: %w",
				l.name, key, s.opts.MaxAge, failure))
		}
	}
	return wrap(verb, errors.Join(append([]error{err}, unreached...)...))
}

// forget removes a key from a cache and leaves a claim in its place.
func (l *layer) forget(ctx context.Context, key semel.Key) error {
	req := semel.ClaimRequest{Key: key, Owner: l.newClaim(), Lease: keepOut, Window: keepOut}
	for {
		if _, err := l.cache.Remove(ctx, key); err != nil {
			return err
		}
		answers := make([]semel.ClaimAnswer, 1)
		err := l.cache.Claim(ctx, []semel.ClaimRequest{req}, answers)
		switch a := &answers[0]; {
		case errors.Is(err, semel.ErrStoreFull) || err == nil && errors.Is(a.Err, semel.ErrStoreFull):
			return nil // a copy does not fit either
		case err != nil:
			return err
		case a.Err != nil:
			return a.Err
		case a.Decision == semel.Fresh:
			return nil
		}
		// A copy, or its first step, came in between: retry.
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// removePending sends the pending removals to the layer.
func (l *layer) removePending(ctx context.Context) error {
	keys, err := l.invalid.due()
	for _, key := range keys {
		if err := l.forget(ctx, key); err != nil {
			return fmt.Errorf("repeat a missed removal: %w", err)
		}
		l.invalid.reached(key)
	}
	return err
}
