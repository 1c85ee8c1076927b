package storetest

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/semel-dev/semel"
)

// Look implements semel.Inspector.
func (r *reference) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, len(keys), len(records)); err != nil {
		return err
	}
	for i, key := range keys {
		records[i] = r.get(key).Record
	}
	return nil
}

// List implements semel.Inspector.
func (r *reference) List(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		r.mu.Lock()
		var all []semel.Record
		for key := range r.records {
			kept := r.get(key)
			rec := kept.Record
			rec.Result.Data = nil
			if kept.unlisted {
				rec.Key = semel.Key{}
			}
			if (filter.State == semel.Absent || rec.State == filter.State) && (filter.Scope == nil || rec.Key.Scope == *filter.Scope) {
				all = append(all, rec)
			}
		}
		r.mu.Unlock()
		for _, rec := range all {
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// Resolve implements semel.Resolver.
func (r *reference) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, 0, 0); err != nil {
		return err
	}
	key, as, result, window := req.Key, req.As, req.Result, req.Window
	if err := key.Validate(); err != nil {
		return err
	}
	if as != semel.Absent && as != semel.Done || as == semel.Done && window <= 0 {
		return fmt.Errorf("reference: resolve as %s for %v: %w", as, window, semel.ErrInvalidRequest)
	}
	rec := r.get(key)
	if rec.State != semel.Unknown {
		return fmt.Errorf("reference: %w", semel.ErrNotUnknown)
	}
	if as == semel.Absent {
		delete(r.records, r.key(key))
		return nil
	}
	rec.State, rec.Token, rec.LeaseEnd, rec.Result = as, 0, time.Time{}, result
	r.keep(rec, window)
	return nil
}

// Remove implements semel.Resolver.
func (r *reference) Remove(ctx context.Context, key semel.Key) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, 0, 0); err != nil {
		return false, err
	}
	was := r.get(key).State != semel.Absent
	delete(r.records, r.key(key))
	return was, nil
}

// Purge implements semel.Purger.
func (r *reference) Purge(ctx context.Context) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, 0, 0); err != nil {
		return 0, err
	}
	before := len(r.records)
	for key := range r.records {
		if r.get(key); r.bug == purgesClaims && r.records[key].State == semel.Claimed {
			delete(r.records, key)
		}
	}
	return int64(before - len(r.records)), nil
}

// Count implements semel.Inspector.
func (r *reference) Count(ctx context.Context) (semel.Counts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var c semel.Counts
	if err := r.enter(ctx, 0, 0); err != nil {
		return c, err
	}
	for key := range r.records {
		rec := r.get(key)
		switch rec.State {
		case semel.Claimed:
			c.Claimed++
		case semel.Done:
			c.Done++
		case semel.Unknown:
			c.Unknown++
		}
		c.Oldest = max(c.Oldest, r.now.Sub(rec.FirstSeen))
		c.MemoryBytes += 100
		c.DiskBytes += 100
	}
	return c, nil
}

// BindScope implements semel.ScopeBinder.
func (r *reference) BindScope(ctx context.Context, scope, rule string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, 0, 0); err != nil {
		return "", err
	}
	if _, bound := r.rules[scope]; !bound && (rule != "" || r.bug == bindsNothing) || r.bug == bindsAgain {
		r.rules[scope] = rule
	}
	return r.rules[scope], nil
}
