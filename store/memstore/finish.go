package memstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/semel-dev/semel"
)

// Complete implements [semel.Store]. It does not block.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if err := s.enter(ctx, "complete", len(reqs), len(answers)); err != nil {
		return err
	}
	if len(reqs) == 1 {
		d := s.digest(&reqs[0].Key)
		s.prefetch(&d)
		return s.complete(&reqs[0], &answers[0], &d, s.moment())
	}
	now := s.moment()
	var digests [batchAhead]semel.Digest
	for len(reqs) > 0 {
		n := min(len(reqs), batchAhead)
		memo := scopeMemo{store: s}
		for i := range n {
			digests[i] = memo.digest(&reqs[i].Key)
			s.prefetch(&digests[i])
		}
		for i := range n {
			if err := s.complete(&reqs[i], &answers[i], &digests[i], now); err != nil {
				return err
			}
		}
		reqs, answers = reqs[n:], answers[n:]
	}
	return nil
}

// complete decides one request. An error refuses the whole call.
func (s *Store) complete(req *semel.CompleteRequest, answer *error, d *semel.Digest, now moment) error {
	if *answer = req.Validate(s.opts.MaxResult); *answer != nil {
		return nil
	}
	sh := s.lock(d[0])
	if sh == nil {
		return fmt.Errorf("memstore: complete: %w", semel.ErrClosed)
	}
	*answer = s.completeIn(sh, req, d, now)
	s.unlock(sh)
	return nil
}

func (s *Store) completeIn(sh *shard, req *semel.CompleteRequest, d *semel.Digest, now moment) error {
	r, n := sh.record(d, now.nanos)
	switch {
	case r == nil:
		_, expiry, ok := sh.done.Find(d, now.tick)
		if ok && sh.recent.has(completion{uint64(req.Token), recentKey(d), expiry}) {
			return nil
		}
		return sh.stale(d, req.Key, req.Token, now)
	case r.token != req.Token || req.Token == 0:
		return sh.stale(d, req.Key, req.Token, now)
	case r.state == semel.Done:
		return nil
	}
	s.finish(sh, r, n, d, req.Result, req.Window, now)
	return nil
}

// ownerBy returns the value of completion.by for an owner. 0 means no owner.
func (s *Store) ownerBy(owner *semel.Owner) uint64 {
	if *owner == (semel.Owner{}) {
		return 0
	}
	return max(maphash.String(s.seed, owner.Name)^owner.Nonce, 1)
}

// recentKey returns the part of a digest that is kept of a completion.
func recentKey(d *semel.Digest) uint64 { return binary.BigEndian.Uint64(d[1:9]) }

// finish marks a record as done, in the compact form if possible.
func (s *Store) finish(sh *shard, r *record, n uint32, d *semel.Digest, result semel.Result, window time.Duration, now moment) {
	if result.Kind == semel.NoResult && len(result.Data) == 0 && r.attempt == 1 && r.fingerprint.IsZero() && r.originLen == 0 && s.compactWindow(window) {
		token := r.token
		sh.drop(r, n)
		sh.setDone(d, now, s.scale.Expiry(now.nanos, window), window, uint64(token))
		return
	}
	r.state, r.leaseEnd = semel.Done, 0
	r.expires = after(now.nanos, window)
	sh.setResult(r, result)
}

// Release implements [semel.Store]. It does not block. A repeated release is
// not recognised and gets a [*semel.StaleTokenError].
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	if err := s.enter(ctx, "release", len(reqs), len(answers)); err != nil {
		return err
	}
	now := s.moment()
	for i := range reqs {
		req := &reqs[i]
		if answers[i] = req.Key.Validate(); answers[i] != nil {
			continue
		}
		d := s.digest(&req.Key)
		sh := s.lock(d[0])
		if sh == nil {
			return fmt.Errorf("memstore: release: %w", semel.ErrClosed)
		}
		answers[i] = release(sh, req, &d, now)
		s.unlock(sh)
	}
	return nil
}

func release(sh *shard, req *semel.ReleaseRequest, d *semel.Digest, now moment) error {
	r, n := sh.held(d, req.Token, now)
	switch {
	case r == nil:
		return sh.stale(d, req.Key, req.Token, now)
	case req.Unknown:
		r.state = semel.Unknown
	default:
		sh.drop(r, n)
	}
	return nil
}

// Extend implements [semel.Store]. It does not block. An unknown record cannot
// be extended, but its holder may complete or release it.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if err := s.enter(ctx, "extend", len(reqs), len(answers)); err != nil {
		return err
	}
	now := s.moment()
	for i := range reqs {
		req := &reqs[i]
		if err := req.Validate(); err != nil {
			answers[i] = semel.ExtendAnswer{Err: err}
			continue
		}
		d := s.digest(&req.Key)
		sh := s.lock(d[0])
		if sh == nil {
			return fmt.Errorf("memstore: extend: %w", semel.ErrClosed)
		}
		answers[i] = extend(sh, req, &d, now)
		s.unlock(sh)
	}
	return nil
}

func extend(sh *shard, req *semel.ExtendRequest, d *semel.Digest, now moment) semel.ExtendAnswer {
	r, _ := sh.held(d, req.Token, now)
	if r == nil || r.stateAt(now.nanos) == semel.Unknown {
		return semel.ExtendAnswer{Err: sh.stale(d, req.Key, req.Token, now)}
	}
	r.leaseEnd = after(now.nanos, req.Lease)
	return semel.ExtendAnswer{LeaseEnd: instant(r.leaseEnd)}
}

// held returns the claimed or unknown record that a token holds, or nil.
func (sh *shard) held(d *semel.Digest, token semel.Token, now moment) (*record, uint32) {
	r, n := sh.record(d, now.nanos)
	if r == nil || r.state == semel.Done || r.token != token {
		return nil, 0
	}
	return r, n
}

// stale returns the error for a stale token, with the current state.
func (sh *shard) stale(d *semel.Digest, key semel.Key, token semel.Token, now moment) error {
	refusal := &semel.StaleTokenError{Key: key, Token: token}
	if r, _ := sh.record(d, now.nanos); r != nil {
		refusal.State, refusal.Current = r.stateAt(now.nanos), r.token
	} else if _, _, ok := sh.done.Find(d, now.tick); ok {
		refusal.State = semel.Done
	}
	return refusal
}
