package logstore

import (
	"context"
	"math"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// Complete implements semel.Store. It blocks for one durable write.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	return s.change(ctx, answers, func(i int) (semel.Key, error) {
		return reqs[i].Key, reqs[i].Validate(s.opts.MaxResult)
	}, func(_ *op, i int) int {
		return richLeast + s.completeRoom(&reqs[i])
	}, func(o *op, i int) (bool, error) {
		return s.completeOne(o, &o.digests[i], &reqs[i])
	})
}

// Release implements semel.Store. It blocks for one durable write if the claim
// is durable or becomes unknown.
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	return s.change(ctx, answers, func(i int) (semel.Key, error) {
		return reqs[i].Key, reqs[i].Key.Validate()
	}, func(o *op, i int) int {
		return s.releaseRoom(&o.digests[i], &reqs[i])
	}, func(o *op, i int) (bool, error) {
		return s.releaseOne(o, &o.digests[i], &reqs[i])
	})
}

// Extend implements semel.Store. It blocks for one durable write if a claim was granted
// with Options.DurableClaims. Other leases are not stored. It does not extend an unknown key. The holder of such a key can still complete or
// release it.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	errs := make([]error, len(reqs))
	err := s.change(ctx, errs, func(i int) (semel.Key, error) {
		if reqs[i].Lease <= 0 {
			return reqs[i].Key, invalid("lease must be above 0, got %s", reqs[i].Lease)
		}
		return reqs[i].Key, reqs[i].Key.Validate()
	}, func(o *op, i int) int {
		if c := s.claims.Get(&o.digests[i]); c != nil && c.lasts() {
			return c.room()
		}
		return noRoom
	}, func(o *op, i int) (ready bool, err error) {
		answers[i] = semel.ExtendAnswer{}
		answers[i].LeaseEnd, ready, err = s.extendOne(o, &o.digests[i], &reqs[i])
		return ready, err
	})
	for i := range errs {
		if answers[i].Err = errs[i]; err != nil {
			answers[i].LeaseEnd = time.Time{} // the record behind it may be lost
		}
	}
	return err
}

// change implements the common steps of the calls that carry a token.
func (s *Store) change(ctx context.Context, answers []error, key func(i int) (semel.Key, error), room func(o *op, i int) int, one func(o *op, i int) (bool, error)) error {
	o := s.newOp()
	defer o.free()
	s.digestAll(o, len(answers), func(i int) (semel.Key, error) {
		k, err := key(i)
		answers[i] = err
		return k, err
	})
	err := s.each(ctx, o, len(answers), func(i int) int { return room(o, i) },
		func(i int) {
			if answers[i] == nil {
				s.plan(o, &o.digests[i])
			}
		},
		func(i int) (ready bool) {
			if answers[i] == nil {
				ready, answers[i] = one(o, i)
				return ready
			}
			return true
		})
	if settled := s.settle(ctx, o); settled != nil {
		return settled
	}
	return err
}

func (s *Store) completeRoom(r *semel.CompleteRequest) int {
	n := len(r.Result.Data)
	if s.origins {
		n += semel.MaxOriginBytes
	}
	if s.opts.KeepIDs {
		n += len(r.Key.Scope) + len(r.Key.ID)
	}
	return n
}

// completeOne completes one key. It returns false if it must read first.
func (s *Store) completeOne(o *op, d *semel.Digest, r *semel.CompleteRequest) (bool, error) {
	now := o.now
	c := s.claims.Get(d)
	switch {
	case c != nil && c.token == r.Token:
		x := done{
			tick:  expiryTick(now, int64(r.Window)),
			check: checkOf(uint64(r.Token)),
			rich: rich{
				token: r.Token, attempt: c.attempt, first: c.first, fingerprint: c.fingerprint,
				key: s.kept(r.Key), origin: c.shown().origin, resultKind: r.Result.Kind, data: r.Result.Data,
			},
		}
		s.claims.Remove(d)
		s.addDone(o, d, &x, now)
		return true, nil
	case c != nil:
		return true, stale(r.Key, r.Token, c.state(now), c.token)
	}
	f, ok, pending, err := s.find(o, d)
	switch {
	case pending || err != nil:
		return !pending, err
	case !ok || now >= f.entry.expires:
		return true, stale(r.Key, r.Token, semel.Absent, 0)
	case r.Token != 0 && f.entry.check == checkOf(uint64(r.Token)):
		o.waitFor(s.pendingAt(f.pos)) // already completed with this token
		return true, nil
	}
	return true, stale(r.Key, r.Token, semel.Done, f.entry.token())
}

// token returns the token that completed an entry, if it is known.
func (e *entry) token() semel.Token {
	if e.rich == nil {
		return 0
	}
	return e.rich.token
}

func stale(k semel.Key, token semel.Token, state semel.State, current semel.Token) error {
	return &semel.StaleTokenError{Key: k, Token: token, State: state, Current: current}
}

// staleOther rejects a token whose key is not claimed.
func (s *Store) staleOther(o *op, d *semel.Digest, k semel.Key, token semel.Token) (bool, error) {
	f, ok, pending, err := s.find(o, d)
	switch {
	case pending || err != nil:
		return !pending, err
	case !ok || o.now >= f.entry.expires:
		return true, stale(k, token, semel.Absent, 0)
	}
	return true, stale(k, token, semel.Done, f.entry.token())
}

// releaseRoom returns an upper bound of the bytes that a release adds to the
// log. A claim that is not in the log adds nothing, so it can be released while the
// disk is full.
func (s *Store) releaseRoom(d *semel.Digest, r *semel.ReleaseRequest) int {
	if c := s.claims.Get(d); c == nil || !c.durable && !r.Unknown {
		return noRoom
	}
	return s.claims.Get(d).room()
}

// releaseOne releases one claim.
func (s *Store) releaseOne(o *op, d *semel.Digest, r *semel.ReleaseRequest) (bool, error) {
	c := s.claims.Get(d)
	switch {
	case c == nil:
		return s.staleOther(o, d, r.Key, r.Token)
	case c.token != r.Token:
		return true, stale(r.Key, r.Token, c.state(o.now), c.token)
	case !r.Unknown:
		s.forgetClaim(o, d, c)
		return true, nil
	}
	if !c.unknown {
		c.unknown = true
		s.writeClaim(o, d, c)
	}
	s.waitForClaim(o, c)
	return true, nil
}

// forgetClaim makes a claimed or unknown key absent.
func (s *Store) forgetClaim(o *op, d *semel.Digest, c *claim) {
	durable := c.durable
	s.claims.Remove(d)
	if durable {
		s.writeRemoval(o, d)
	}
}

// writeRemoval records that a key was removed. The deletion of segments does
// not affect it: the removed entry precedes it in the log, and segments are
// deleted in order.
func (s *Store) writeRemoval(o *op, d *semel.Digest) {
	var r rich
	o.buf = r.encode(o.buf[:0], d, kindRemoval)
	s.appendEntry(o, o.buf)
}

// extendOne extends one lease.
func (s *Store) extendOne(o *op, d *semel.Digest, r *semel.ExtendRequest) (time.Time, bool, error) {
	c := s.claims.Get(d)
	now := o.now
	switch {
	case c == nil:
		ready, err := s.staleOther(o, d, r.Key, r.Token)
		return time.Time{}, ready, err
	case c.token != r.Token || c.state(now) == semel.Unknown:
		return time.Time{}, true, stale(r.Key, r.Token, c.state(now), c.token)
	}
	c.leaseEnd = after(now, int64(r.Lease))
	if c.lasts() {
		s.writeClaim(o, d, c)
	}
	return timeOf(c.leaseEnd), true, nil
}

// done describes the entry of a key that is being completed.
type done struct {
	tick  int64  // expiry
	check uint32 // of the token or owner
	rich  rich   // all other fields; written only if any is set
}

// addDone appends a done entry and adds it to the index. The index must not
// contain the key.
func (s *Store) addDone(o *op, d *semel.Digest, x *done, now int64) {
	if x.isCompact() && s.addCompact(o, d, -1, x.tick, x.check, half(x.rich.fingerprint), now) {
		return
	}
	x.rich.until = tickTime(x.tick)
	if x.rich.token == 0 {
		x.rich.nonce = uint64(x.check)
	}
	o.buf = x.rich.encode(o.buf[:0], d, kindDone)
	s.indexEntry(o, d, -1, o.buf, x.tick, now)
}

// addCompact is addDone for an entry that has only an expiry, a check and half
// a fingerprint. at has the same meaning as in insert. It returns false if the
// expiry does not fit into a compact entry.
func (s *Store) addCompact(o *op, d *semel.Digest, at int, tick int64, check uint32, print uint64, now int64) bool {
	n, ok := encodeCompact(&o.scratch, d, tick, s.active.base, check, print)
	if ok {
		s.indexEntry(o, d, at, o.scratch[:n], tick, now)
	}
	return ok
}

func (s *Store) indexEntry(o *op, d *semel.Digest, at int, entry []byte, tick, now int64) {
	g := s.active
	pos := s.appendEntry(o, entry)
	g.summary.add(tick, g.base)
	if tick != never {
		g.window = max(g.window, tick-now/tickNanos)
	}
	sh, tag := split(d)
	s.index.insert(&s.index.shards[sh], at, tag, pos)
}

// isCompact reports whether the expiry, the check and half the fingerprint are
// all there is to write.
func (x *done) isCompact() bool {
	r := &x.rich
	return r.attempt <= 1 && r.resultKind == semel.NoResult && r.key == (semel.Key{}) && r.origin == ""
}

// after returns now plus d, capped at never.
func after(now, d int64) int64 {
	if d > never-now {
		return never
	}
	return now + d
}

// timeOf converts a time of the store's clock. never becomes the zero time.
func timeOf(nanos int64) time.Time {
	if nanos == math.MaxInt64 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

func digestMemo(s *Store) digest.Memo { return digest.Memo{Hasher: s.hasher} }
