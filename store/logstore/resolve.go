package logstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// resolve settles the unknown record of a digest. The request has its key if that is known.
func (k *keys) resolve(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	key, result := req.Key, req.Result
	room := semel.MaxOriginBytes + k.completeRoom(&semel.CompleteRequest{Key: key, Result: result})
	return k.settleByHand(ctx, d, func() int { return room }, func(o *op, d *semel.Digest) error {
		now := o.now
		c := k.claims.Get(d)
		if c == nil || c.state(now) != semel.Unknown {
			return notUnknown(key, *d)
		}
		if req.As == semel.Absent {
			k.forgetClaim(o, d, c)
			return nil
		}
		x := done{
			tick: expiryTick(now, int64(req.Window)),
			// No token is stored, so the holder's token is stale from now on.
			rich: rich{
				attempt: c.attempt, first: c.first, fingerprint: c.fingerprint,
				key: k.kept(key), origin: c.shown().origin, resultKind: result.Kind, data: result.Data,
			},
		}
		k.claims.Remove(d)
		k.addDone(o, d, &x, now)
		return nil
	})
}

// notUnknown rejects the resolution of a key whose outcome is known.
func notUnknown(key semel.Key, d semel.Digest) error {
	return fmt.Errorf("logstore: resolve %s: %w", shown(key, d), semel.ErrNotUnknown)
}

// shown returns a key for a message, or its digest if the key is not known.
func shown(key semel.Key, d semel.Digest) string {
	if key.ID == "" {
		return "the digest " + d.String()
	}
	return key.String()
}

// remove makes a key absent.
func (k *keys) remove(ctx context.Context, d semel.Digest) (found bool, err error) {
	err = k.settleByHand(ctx, d, k.values.knownRoom, func(o *op, d *semel.Digest) error {
		if c := k.claims.Get(d); c != nil {
			found = true
			k.forgetClaim(o, d, c)
			return nil
		}
		f, ok, _, err := k.finder.find(o, d)
		if !ok {
			return err
		}
		k.finder.remove(f)
		if found = o.now < f.entry.expires; found {
			k.finder.runs.hide(d, k.writeRemoval(o, d))
			k.values.forgetKnown(o)
		}
		return nil
	})
	return found, err
}

// settleByHand makes one change of one record, which takes at most the given room besides
// one entry. It calls change again after reads.
func (k *keys) settleByHand(ctx context.Context, d semel.Digest, room func() int, change func(o *op, d *semel.Digest) error) (err error) {
	o := k.newOp()
	defer o.free()
	o.digests = append(o.digests, d)
	failed := k.each(ctx, o, 1, func(int) int { return richLeast + room() }, func(int) {}, func(int) bool {
		err = change(o, &o.digests[0])
		return !o.mustRead()
	})
	if failed != nil {
		return failed
	}
	return errors.Join(err, k.committer.settle(ctx, o))
}
