package logstore

import (
	"context"
	"fmt"

	"github.com/semel-dev/semel"
)

// claim is the state of a key that is claimed or unknown. A key is in the
// claims or in the index, never in both.
type claim struct {
	token       semel.Token
	nonce       uint64
	name        string
	first       int64
	leaseEnd    int64
	attempt     uint32
	hold        bool // becomes unknown when the lease ends
	kept        bool // with Options.DurableClaims
	unknown     bool
	durable     bool // in the log, at pos
	pos         uint64
	fingerprint semel.Fingerprint
	detail      *detail // nil if it is empty
}

// detail is the part of a claim that most claims lack.
type detail struct {
	key    semel.Key // with Options.KeepIDs
	origin string
}

// detail returns the detail of a request's claim.
func (s *Store) detail(r *semel.ClaimRequest) *detail {
	if !s.opts.KeepIDs && r.Origin == "" {
		return nil
	}
	return &detail{s.kept(r.Key), r.Origin}
}

// shown returns the detail of a claim, which may be empty.
func (c *claim) shown() detail {
	if c.detail == nil {
		return detail{}
	}
	return *c.detail
}

// putClaim sets the claim of a digest.
func (s *Store) putClaim(d *semel.Digest, c *claim) {
	s.origins = s.origins || c.shown().origin != ""
	s.claims.Put(d, c)
}

// claimBytes is the approximate memory of a claim and its name.
const claimBytes = 192

// holderMost limits how many bytes of a holder's name are stored. The name is
// for people only.
const holderMost = 256

// lasts reports whether the claim's lease applies after a reopen as well. Each
// change of that lease must then be in the log before it is answered.
func (c *claim) lasts() bool { return c.durable && !c.unknown && (!c.hold || c.kept) }

// isAbandoned reports whether a claim's lease ended so long ago that the store
// forgets the claim.
func (c *claim) isAbandoned(now int64) bool {
	return !c.hold && !c.unknown && now-c.leaseEnd > int64(abandoned)
}

// state returns the claim's state at a time.
func (c *claim) state(now int64) semel.State {
	if c.unknown || c.hold && now >= c.leaseEnd {
		return semel.Unknown
	}
	return semel.Claimed
}

func (c *claim) owned(o semel.Owner) bool {
	return c.nonce == o.Nonce && shortName(c.name) == shortName(o.Name) && o != semel.Owner{}
}

// shortName returns the part of a holder's name that is stored.
func shortName(name string) string { return name[:min(len(name), holderMost)] }

func (c *claim) grant() semel.Claim {
	return semel.Claim{Token: c.token, Attempt: int(c.attempt), LeaseEnd: timeOf(c.leaseEnd)}
}

// rich returns the encoded form of a claim.
func (c *claim) rich() rich {
	return rich{
		token: c.token, nonce: c.nonce, attempt: c.attempt, unknown: c.unknown, retry: !c.hold, kept: c.kept,
		first: c.first, until: c.leaseEnd, fingerprint: c.fingerprint,
		holder: shortName(c.name), key: c.shown().key, origin: c.shown().origin,
	}
}

// room returns an upper bound of the bytes that the claim adds to the log.
func (c *claim) room() int {
	d := c.shown()
	return richLeast + holderMost + len(d.key.Scope) + len(d.key.ID) + len(d.origin)
}

// Claim implements semel.Store. It blocks for one durable write if Hold or Done is
// set, or if the store has Options.DurableClaims. Otherwise it waits for the disk
// only if an answer depends on a record that is not yet durable.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	o := s.newOp()
	defer o.free()
	s.digestAll(o, len(reqs), func(i int) (semel.Key, error) {
		answers[i] = semel.ClaimAnswer{Err: reqs[i].Validate()}
		return reqs[i].Key, answers[i].Err
	})
	err := s.each(ctx, o, len(reqs),
		func(i int) int { return s.claimRoom(&reqs[i]) },
		func(i int) {
			if answers[i].Err == nil {
				s.plan(o, &o.digests[i])
			}
		},
		func(i int) bool {
			return answers[i].Err != nil || s.claimOne(o, &o.digests[i], &reqs[i], &answers[i])
		})
	if settled := s.settle(ctx, o); settled != nil {
		for i := range answers {
			if answers[i].Err == nil {
				answers[i] = semel.ClaimAnswer{} // the record behind an answer may be lost
			}
		}
		return settled
	}
	return err
}

// digestAll fills o.digests with the digests of the valid keys.
func (s *Store) digestAll(o *op, n int, key func(i int) (semel.Key, error)) {
	memo := digestMemo(s)
	for i := range n {
		var d semel.Digest
		if k, err := key(i); err == nil {
			d = memo.Key(k)
		}
		o.digests = append(o.digests, d)
	}
}

// claimRoom returns an upper bound of the bytes that a claim adds to the log.
func (s *Store) claimRoom(r *semel.ClaimRequest) int {
	if !r.Hold && !r.Done && !s.opts.DurableClaims {
		return richLeast
	}
	n := richLeast + len(shortName(r.Owner.Name)) + len(r.Origin)
	if s.opts.KeepIDs {
		n += len(r.Key.Scope) + len(r.Key.ID)
	}
	return n
}

// richLeast is an upper bound of the size of an entry without strings and data.
var richLeast = new(rich).size()

// plan queues the reads that the decision on a key needs.
func (s *Store) plan(o *op, d *semel.Digest) {
	sh, tag := split(d)
	if x := &s.index.shards[sh]; x.has(x.seek(tag), tag) {
		_, _, _, _ = s.find(o, d) // decide handles the errors
	}
}

// claimOne decides one claim. It returns false if it must read first.
func (s *Store) claimOne(o *op, d *semel.Digest, r *semel.ClaimRequest, a *semel.ClaimAnswer) bool {
	now := o.now
	if c := s.claims.Get(d); c != nil {
		s.claimAgain(o, d, r, a, c, now)
		return true
	}
	f, ok, pending, err := s.find(o, d)
	switch {
	case err != nil:
		a.Err = err
		return true
	case pending:
		return false
	case ok && now < f.entry.expires:
		s.answerDone(o, r, a, f)
		return true
	case ok:
		s.index.remove(f.shard, f.slot)
	}
	switch {
	case !r.Time.IsZero() && r.Window != semel.Forever && timeOf(now).Sub(r.Time) > r.Window:
		a.Decision = semel.Late
	case s.full():
		a.Err = s.errFull()
	default:
		s.grant(o, d, r, a, &claim{first: now}, now)
	}
	return true
}

// answerDone answers the claim of a done key.
func (s *Store) answerDone(o *op, r *semel.ClaimRequest, a *semel.ClaimAnswer, f *found) {
	e := &f.entry
	// The answer survives a crash only if the record does.
	o.waitFor(s.pendingAt(f.pos))
	switch {
	case mismatch(half(r.Fingerprint), e.print):
		a.Decision = semel.Mismatch
		if e.rich != nil {
			a.Claim = semel.Claim{Token: e.rich.token, Attempt: int(e.rich.attempt)}
		}
	case r.Done && e.check != 0 && e.check == o.checkOfOwner(&r.Owner):
		a.Decision = semel.Fresh // a retry of this claim after its answer was lost; Attempt is not set
	default:
		a.Decision = semel.Duplicate
		a.Result = e.result()
	}
}

// mismatch reports whether two half fingerprints prove different payloads.
func mismatch(a, b uint64) bool { return a != 0 && b != 0 && a != b }

// result returns the result that a done entry stores.
func (e *entry) result() semel.Result {
	if e.rich == nil || e.rich.resultKind == semel.NoResult {
		return semel.Result{}
	}
	return semel.Result{Kind: e.rich.resultKind, Data: e.rich.data}
}

// claimAgain decides the claim of a key that is already claimed or unknown.
func (s *Store) claimAgain(o *op, d *semel.Digest, r *semel.ClaimRequest, a *semel.ClaimAnswer, c *claim, now int64) {
	state := c.state(now)
	switch {
	case !c.fingerprint.Matches(r.Fingerprint):
		a.Decision, a.Claim = semel.Mismatch, c.grant()
	case state == semel.Claimed && !r.Done && c.owned(r.Owner):
		if end := after(now, int64(r.Lease)); end > c.leaseEnd {
			c.leaseEnd = end
			if c.lasts() {
				c.detail = s.detail(r) // there is room for this one
				s.writeClaim(o, d, c)
			}
		}
		a.Decision, a.Claim = semel.Fresh, c.grant()
		s.waitForClaim(o, c)
	case state == semel.Unknown:
		a.Decision, a.Claim, a.Holder = semel.OutcomeUnknown, c.grant(), c.name
	case now < c.leaseEnd:
		a.Decision, a.Claim, a.Holder = semel.InFlight, c.grant(), c.name
	default:
		s.grant(o, d, r, a, c, now)
	}
}

// waitForClaim makes the call wait for a granted claim's record, if the claim is
// in the log.
func (s *Store) waitForClaim(o *op, c *claim) {
	if c.durable {
		o.waitFor(s.pendingAt(c.pos))
	}
}

// grant gives the key to the caller. Old is the claim whose lease ended, or a
// new claim.
func (s *Store) grant(o *op, d *semel.Digest, r *semel.ClaimRequest, a *semel.ClaimAnswer, old *claim, now int64) {
	a.Decision = semel.Fresh
	if r.Done {
		a.Claim.Attempt = int(old.attempt) + 1
		if old.attempt == 0 && !s.opts.KeepIDs && r.Origin == "" &&
			s.addCompact(o, d, -1, expiryTick(now, int64(r.Window)), o.checkOfOwner(&r.Owner), half(r.Fingerprint), now) {
			return
		}
		x := done{
			tick:  expiryTick(now, int64(r.Window)),
			check: o.checkOfOwner(&r.Owner),
			rich:  rich{first: old.first, attempt: old.attempt + 1, fingerprint: r.Fingerprint, key: s.kept(r.Key), origin: r.Origin},
		}
		s.claims.Remove(d) // also invalidates old
		s.addDone(o, d, &x, now)
		return
	}
	s.token++
	c := claim{
		token: s.token, nonce: r.Owner.Nonce, name: r.Owner.Name,
		first: old.first, leaseEnd: after(now, int64(r.Lease)), attempt: old.attempt + 1,
		hold: r.Hold, kept: s.opts.DurableClaims, fingerprint: r.Fingerprint, detail: s.detail(r),
	}
	if c.fingerprint.IsZero() {
		c.fingerprint = old.fingerprint
	}
	if c.hold || s.opts.DurableClaims {
		s.writeClaim(o, d, &c)
	}
	s.putClaim(d, &c)
	a.Claim = c.grant()
}

// writeClaim appends a claim to the log.
func (s *Store) writeClaim(o *op, d *semel.Digest, c *claim) {
	r := c.rich()
	o.buf = r.encode(o.buf[:0], d, kindClaim)
	c.pos = s.appendEntry(o, o.buf)
	c.durable = true
}

// kept returns the readable key if the store keeps keys.
func (s *Store) kept(k semel.Key) semel.Key {
	if !s.opts.KeepIDs {
		return semel.Key{}
	}
	return k
}

// full reports whether the index has reached its memory limit.
func (s *Store) full() bool { return s.memoryBytes() >= s.opts.MaxIndexBytes }

func (s *Store) memoryBytes() int64 { return s.index.bytes + int64(s.claims.Len())*claimBytes }

func (s *Store) errFull() error {
	return fmt.Errorf("logstore: the index is full: %d keys and %d claims take %d bytes, Options.MaxIndexBytes is %d: %w",
		s.index.count, s.claims.Len(), s.memoryBytes(), s.opts.MaxIndexBytes, semel.ErrStoreFull)
}
