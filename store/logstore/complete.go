package logstore

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

func (k *keys) complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	return k.change(ctx, answers, func(i int) (semel.Key, error) {
		return reqs[i].Key, reqs[i].Validate(k.opts.MaxResult)
	}, func(_ *op, i int) int {
		return richLeast + k.completeRoom(&reqs[i])
	}, func(o *op, i int) (bool, error) {
		return k.completeOne(o, &o.digests[i], &reqs[i])
	})
}

func (k *keys) release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	return k.change(ctx, answers, func(i int) (semel.Key, error) {
		return reqs[i].Key, reqs[i].Key.Validate()
	}, func(o *op, i int) int {
		return k.releaseRoom(&o.digests[i], &reqs[i])
	}, func(o *op, i int) (bool, error) {
		return k.releaseOne(o, &o.digests[i], &reqs[i])
	})
}

func (k *keys) extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	errs := make([]error, len(reqs))
	err := k.change(ctx, errs, func(i int) (semel.Key, error) {
		if reqs[i].Lease <= 0 {
			return reqs[i].Key, invalid("lease must be above 0, got %s", reqs[i].Lease)
		}
		return reqs[i].Key, reqs[i].Key.Validate()
	}, func(o *op, i int) int {
		if c := k.claims.Get(&o.digests[i]); c != nil && c.lasts() {
			return c.room()
		}
		return noRoom
	}, func(o *op, i int) (ready bool, err error) {
		answers[i] = semel.ExtendAnswer{}
		answers[i].LeaseEnd, ready, err = k.extendOne(o, &o.digests[i], &reqs[i])
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
func (k *keys) change(ctx context.Context, answers []error, key func(i int) (semel.Key, error), room func(o *op, i int) int, one func(o *op, i int) (bool, error)) error {
	o := k.newOp()
	defer o.free()
	k.digestAll(o, len(answers), func(i int) (semel.Key, error) {
		k, err := key(i)
		answers[i] = err
		return k, err
	})
	err := k.each(ctx, o, len(answers), func(i int) int { return room(o, i) },
		func(i int) {
			if answers[i] == nil {
				k.finder.plan(o, &o.digests[i])
			}
		},
		func(i int) (ready bool) {
			if answers[i] == nil {
				ready, answers[i] = one(o, i)
				return ready
			}
			return true
		})
	if settled := k.committer.settle(ctx, o); settled != nil {
		return settled
	}
	return err
}

func (k *keys) completeRoom(r *semel.CompleteRequest) int {
	n := len(r.Result.Data)
	if k.claims.origins {
		n += semel.MaxOriginBytes
	}
	if k.opts.KeepIDs {
		n += len(r.Key.Scope) + len(r.Key.ID)
	}
	return n
}

// completeOne completes one key. It returns false if it must read first.
func (k *keys) completeOne(o *op, d *semel.Digest, r *semel.CompleteRequest) (bool, error) {
	now := o.now
	c := k.claims.Get(d)
	switch {
	case c != nil && c.token == r.Token:
		x := done{
			tick:  expiryTick(now, int64(r.Window)),
			check: checkOf(uint64(r.Token)),
			rich: rich{
				token: r.Token, attempt: c.attempt, first: c.first, fingerprint: c.fingerprint,
				key: k.kept(r.Key), origin: c.shown().origin, resultKind: r.Result.Kind, data: r.Result.Data,
			},
		}
		k.claims.Remove(d)
		k.addDone(o, d, &x, now)
		return true, nil
	case c != nil:
		return true, stale(r.Key, r.Token, c.state(now), c.token)
	}
	f, ok, pending, err := k.finder.find(o, d)
	switch {
	case pending || err != nil:
		return !pending, err
	case !ok || now >= f.entry.expires:
		return true, stale(r.Key, r.Token, semel.Absent, 0)
	case r.Token != 0 && f.entry.check == checkOf(uint64(r.Token)):
		k.waitForEntry(o, f) // already completed with this token
		return true, nil
	}
	return true, stale(r.Key, r.Token, semel.Done, f.entry.token())
}

func stale(k semel.Key, token semel.Token, state semel.State, current semel.Token) error {
	return &semel.StaleTokenError{Key: k, Token: token, State: state, Current: current}
}

// staleOther rejects a token whose key is not claimed.
func (k *keys) staleOther(o *op, d *semel.Digest, key semel.Key, token semel.Token) (bool, error) {
	f, ok, pending, err := k.finder.find(o, d)
	switch {
	case pending || err != nil:
		return !pending, err
	case !ok || o.now >= f.entry.expires:
		return true, stale(key, token, semel.Absent, 0)
	}
	return true, stale(key, token, semel.Done, f.entry.token())
}

// releaseRoom returns an upper bound of the bytes that a release adds to the
// log. A claim that is not in the log adds nothing, so it can be released while the
// disk is full.
func (k *keys) releaseRoom(d *semel.Digest, r *semel.ReleaseRequest) int {
	if c := k.claims.Get(d); c == nil || !c.durable && !r.Unknown {
		return noRoom
	}
	return k.claims.Get(d).room()
}

// releaseOne releases one claim.
func (k *keys) releaseOne(o *op, d *semel.Digest, r *semel.ReleaseRequest) (bool, error) {
	c := k.claims.Get(d)
	switch {
	case c == nil:
		return k.staleOther(o, d, r.Key, r.Token)
	case c.token != r.Token:
		return true, stale(r.Key, r.Token, c.state(o.now), c.token)
	case !r.Unknown:
		k.forgetClaim(o, d, c)
		return true, nil
	}
	if !c.unknown {
		c.unknown = true
		k.writeClaim(o, d, c)
	}
	k.waitForClaim(o, c)
	return true, nil
}

// forgetClaim makes a claimed or unknown key absent.
func (k *keys) forgetClaim(o *op, d *semel.Digest, c *claim) {
	durable := c.durable
	k.claims.Remove(d)
	if durable {
		k.writeRemoval(o, d)
	}
}

// writeRemoval records that a key was removed. The deletion of segments does
// not affect it: the removed entry precedes it in the log, and segments are
// deleted in order.
func (k *keys) writeRemoval(o *op, d *semel.Digest) (pos uint64) {
	var r rich
	o.buf = r.encode(o.buf[:0], d, kindRemoval)
	return k.committer.append(o, o.buf)
}

// extendOne extends one lease.
func (k *keys) extendOne(o *op, d *semel.Digest, r *semel.ExtendRequest) (time.Time, bool, error) {
	c := k.claims.Get(d)
	now := o.now
	switch {
	case c == nil:
		ready, err := k.staleOther(o, d, r.Key, r.Token)
		return time.Time{}, ready, err
	case c.token != r.Token || c.state(now) == semel.Unknown:
		return time.Time{}, true, stale(r.Key, r.Token, c.state(now), c.token)
	}
	c.leaseEnd = after(now, int64(r.Lease))
	if c.lasts() {
		k.writeClaim(o, d, c)
	}
	return timeOf(c.leaseEnd), true, nil
}
