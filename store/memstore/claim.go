package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
)

// batchAhead is the number of requests for which a call prefetches memory
// before it decides the first of them.
const batchAhead = 32

// Claim implements [semel.Store]. It does not block.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if err := s.enter(ctx, "claim", len(reqs), len(answers)); err != nil {
		return err
	}
	if len(reqs) == 1 {
		d := s.digest(&reqs[0].Key)
		s.prefetch(&d)
		return s.claim(&reqs[0], &answers[0], &d, s.moment())
	}
	var now moment
	var digests [batchAhead]semel.Digest
	for len(reqs) > 0 {
		n := min(len(reqs), batchAhead)
		memo := scopeMemo{store: s}
		for i := range n {
			digests[i] = memo.digest(&reqs[i].Key)
			s.prefetch(&digests[i])
		}
		if now == (moment{}) {
			// Reading the clock takes about as long as reading the memory.
			now = s.moment()
		}
		for i := range n {
			if err := s.claim(&reqs[i], &answers[i], &digests[i], now); err != nil {
				return err
			}
		}
		reqs, answers = reqs[n:], answers[n:]
	}
	return nil
}

// claim decides one request. An error refuses the whole call.
func (s *Store) claim(req *semel.ClaimRequest, answer *semel.ClaimAnswer, d *semel.Digest, now moment) error {
	*answer = semel.ClaimAnswer{}
	if err := req.Validate(); err != nil {
		answer.Err = err
		return nil
	}
	for tries := 0; ; tries++ {
		sh := s.lock(d[0])
		if sh == nil {
			return fmt.Errorf("memstore: claim: %w", semel.ErrClosed)
		}
		full := s.decide(sh, req, answer, d, now)
		s.unlock(sh)
		if !full {
			return nil
		}
		// No lock is held here, because makeRoom may find room in any shard.
		if tries > 0 || !s.makeRoom(now) {
			answer.Err = fmt.Errorf("memstore: the store holds %d keys: %w", s.opts.MaxKeys, semel.ErrStoreFull)
			return nil
		}
	}
}

// decide answers a claim under the shard's lock. It returns true, and does not
// answer, if the key is new and the store is full.
func (s *Store) decide(sh *shard, req *semel.ClaimRequest, answer *semel.ClaimAnswer, d *semel.Digest, now moment) (full bool) {
	if r, _ := sh.record(d, now.nanos); r != nil {
		s.decideKnown(sh, r, req, answer, now)
		return false
	}
	by := uint64(0)
	if req.Done {
		by = s.ownerBy(&req.Owner)
	}
	// A compact key has no fingerprint and therefore matches any.
	if req.Done && req.Time.IsZero() && s.opts.MaxKeys == 0 && s.compact(req) {
		// The fast path finds and inserts in one step.
		expiry := s.scale.Expiry(now.nanos, req.Window)
		if _, added := sh.done.Add(d, struct{}{}, now.tick, expiry); added {
			sh.noteDone(d, expiry, req.Window, by)
			answer.Decision, answer.Claim.Attempt = semel.Fresh, 1
			return false
		} else if by == 0 {
			answer.Decision = semel.Duplicate
			return false
		}
	}
	if _, expiry, ok := sh.done.Find(d, now.tick); ok {
		answer.Decision = semel.Duplicate
		if sh.recent.has(completion{by, recentKey(d), expiry}) {
			answer.Decision = semel.Fresh // a repetition of this claim, whose answer was lost; without an attempt
		}
		return false
	}
	if req.Late(time.Unix(0, now.nanos)) {
		answer.Decision = semel.Late
		return false
	}
	return s.grantNew(sh, req, answer, d, now)
}

// compact reports whether a claim with Done results in a compact key.
func (s *Store) compact(req *semel.ClaimRequest) bool {
	return s.compactWindow(req.Window) && req.Fingerprint.IsZero() && req.Origin == ""
}

// compactWindow reports whether a key with this window, and without result,
// fingerprint and origin, is compact.
func (s *Store) compactWindow(window time.Duration) bool {
	return (window <= s.opts.MaxWindow || window == semel.Forever) && !s.opts.KeepIDs
}

// decideKnown answers a claim of a key that has a record.
func (s *Store) decideKnown(sh *shard, r *record, req *semel.ClaimRequest, answer *semel.ClaimAnswer, now moment) {
	state := r.stateAt(now.nanos)
	owned := req.Owner == semel.Owner{Name: r.holder, Nonce: r.nonce} && req.Owner != semel.Owner{}
	switch {
	case !r.fingerprint.Matches(req.Fingerprint):
		answer.Decision, answer.Claim = semel.Mismatch, r.claim()
	case state == semel.Done && r.oneStep && req.Done && owned:
		answer.Decision = semel.Fresh // a repetition of this claim, whose answer was lost; without an attempt
	case state == semel.Done:
		answer.Decision, answer.Result = semel.Duplicate, r.result()
	case state == semel.Unknown:
		answer.Decision, answer.Claim, answer.Holder = semel.OutcomeUnknown, r.claim(), r.holder
	case owned && !req.Done:
		r.leaseEnd = max(r.leaseEnd, after(now.nanos, req.Lease))
		answer.Decision, answer.Claim = semel.Fresh, r.claim()
	case r.leaseEnd > now.nanos:
		answer.Decision, answer.Claim, answer.Holder = semel.InFlight, r.claim(), r.holder
	default:
		r.attempt++
		s.grant(sh, r, req, answer, now)
	}
}

// grantNew grants a claim of a key without a record. It returns true if the
// store is full.
func (s *Store) grantNew(sh *shard, req *semel.ClaimRequest, answer *semel.ClaimAnswer, d *semel.Digest, now moment) (full bool) {
	if s.opts.MaxKeys > 0 && !s.reserve(sh) {
		return true
	}
	if req.Done && s.compact(req) {
		sh.setDone(d, now, s.scale.Expiry(now.nanos, req.Window), req.Window, s.ownerBy(&req.Owner))
		answer.Decision, answer.Claim.Attempt = semel.Fresh, 1
		return false
	}
	r := sh.add(d, now.nanos)
	r.attempt = 1
	if s.opts.KeepIDs {
		sh.setKey(r, req.Key)
	}
	s.grant(sh, r, req, answer, now)
	return false
}

// grant gives a record to the owner of a request, or marks it as done.
func (s *Store) grant(sh *shard, r *record, req *semel.ClaimRequest, answer *semel.ClaimAnswer, now moment) {
	sh.setHolder(r, req.Owner)
	sh.setOrigin(r, req.Origin)
	if !req.Fingerprint.IsZero() {
		// A take-over without fingerprint keeps the fingerprint of the record,
		// so that another payload still does not match.
		r.fingerprint = req.Fingerprint
	}
	answer.Decision, r.oneStep = semel.Fresh, req.Done
	if req.Done {
		r.token, r.state, r.leaseEnd = 0, semel.Done, 0
		r.expires = after(now.nanos, req.Window)
		answer.Claim.Attempt = int(r.attempt)
		return
	}
	r.token = semel.Token(s.token.Add(1))
	r.state, r.hold = semel.Claimed, req.Hold
	r.leaseEnd, r.expires = after(now.nanos, req.Lease), never
	answer.Claim = r.claim()
}
