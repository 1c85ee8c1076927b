package tiered

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

// Complete implements semel.Store. After the durable store has answered, it
// copies keys that were claimed through this stack to the layers above.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return below(ctx, s, "complete", reqs, answers, s.complete,
		func(r *semel.CompleteRequest) (error, bool) { return nil, r.Token == 0 })
}

// complete completes keys in the durable store and copies them. It forgets
// their claims before the outcome is known. A repeated completion succeeds
// whatever result it carries, but only the first one's result is stored.
func (s *Store) complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if len(s.layers) == 0 {
		return s.durable.Complete(ctx, reqs, answers)
	}
	prints := make([]semel.Fingerprint, len(reqs))
	known := make([]bool, len(reqs))
	for i := range reqs {
		prints[i], known[i] = s.granted.take(reqs[i].Key, reqs[i].Token)
	}
	asked := moment{time.Now(), s.clock.Now()}
	if err := s.durable.Complete(ctx, reqs, answers); err != nil {
		return err
	}
	copies := make([]copied, 0, len(reqs))
	for i := range reqs {
		if known[i] && answers[i] == nil {
			copies = append(copies, copied{reqs[i].Key, prints[i], reqs[i].Result, reqs[i].Window})
		}
	}
	s.fill(ctx, s.layers, copies, asked)
	return nil
}

// Release implements semel.Store. It asks the durable store only, because the
// layers above hold no claims.
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	for i := range reqs {
		s.granted.take(reqs[i].Key, reqs[i].Token)
	}
	return below(ctx, s, "release", reqs, answers, s.durable.Release,
		func(r *semel.ReleaseRequest) (error, bool) { return nil, r.Token == 0 })
}

// Extend implements semel.Store. It asks the durable store.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return below(ctx, s, "extend", reqs, answers, s.durable.Extend,
		func(r *semel.ExtendRequest) (semel.ExtendAnswer, bool) {
			return semel.ExtendAnswer{LeaseEnd: s.clock.Now().Add(r.Lease)}, r.Token == 0
		})
}
