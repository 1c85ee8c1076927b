package storetest

import (
	"context"
	"errors"

	"github.com/semel-dev/semel"
)

var holdCases = []testCase{
	{"a held key becomes unknown when its lease ends", holdBecomesUnknown},
	{"a held key that is completed in time is done", holdCompletedInTime},
	{"an unknown key does not become fresh by itself", unknownStays},
	{"the late holder completes an unknown key", lateHolderCompletes},
	{"a release as unknown makes the key unknown immediately", releaseAsUnknown},
	{"a held key that is released is fresh", holdReleased},
	{"an unknown key is not extended", unknownIsNotExtended},
	{"the late holder releases an unknown key", lateHolderReleases},
	{"a repeated claim of an unknown key is in doubt", repeatedClaimOfUnknown},
	{"resolve settles an unknown key both ways", resolveSettles},
	{"resolve refuses a key that is not unknown", resolveRefuses},
	{"remove forgets a key in any state", removeForgets},
}

// held returns a claim request with Hold and a lease that the case waits for.
func (e *env) held(key semel.Key) semel.ClaimRequest {
	req := e.shortly(key)
	req.Hold = true
	return req
}

// unknown brings a key into the state Unknown.
func (e *env) unknown(key semel.Key) semel.Claim {
	e.Helper()
	req := e.request(key)
	req.Hold = true
	c := e.fresh(req)
	if err := e.release(semel.ReleaseRequest{Key: key, Token: c.Token, Unknown: true}); err != nil {
		e.Fatalf("release %s as unknown: %v", key, err)
	}
	e.want(semel.OutcomeUnknown, e.request(key))
	return c
}

func holdBecomesUnknown(e *env) {
	key := e.key()
	req := e.held(key)
	req.Owner = e.owner("the lost one")
	c := e.fresh(req)
	if e.movable() {
		e.want(semel.InFlight, e.request(key))
	}
	a := e.claimAfter(e.short, e.request(key), semel.InFlight)
	if a.Decision != semel.OutcomeUnknown {
		e.Fatalf("after the lease a held key is %s, want unknown", a.Decision)
	}
	if a.Claim.Token != c.Token || a.Claim.Attempt != c.Attempt || a.Holder != "the lost one" {
		e.Errorf("unknown shows %+v of %q, want %+v of %q", a.Claim, a.Holder, c, "the lost one")
	}
	// Neither a claim with Hold nor one with Done bypasses it.
	e.want(semel.OutcomeUnknown, e.held(key))
	done := e.request(key)
	done.Done = true
	e.want(semel.OutcomeUnknown, done)
	e.wantStale("complete", key, c.Token+1, e.complete(key, c.Token+1, text("no"), e.window))
	e.wantStale("release", key, c.Token+1, e.release(semel.ReleaseRequest{Key: key, Token: c.Token + 1}))
	e.wantStale("extend", key, c.Token+1, e.extend(key, c.Token+1, e.lease).Err)
	e.want(semel.OutcomeUnknown, e.request(key))
}

func holdCompletedInTime(e *env) {
	key := e.key()
	c := e.fresh(e.held(key))
	e.mustComplete(key, c.Token, text("r"))
	probe := e.key()
	e.fresh(e.shortly(probe))
	e.claimAfter(e.short, e.request(probe), semel.InFlight)
	e.wantResult(key, text("r"))
}

func unknownStays(e *env) {
	lost, released := e.key(), e.key()
	c := e.fresh(e.held(lost))
	e.unknown(released)
	if a := e.claimAfter(e.short, e.request(lost), semel.InFlight); a.Decision != semel.OutcomeUnknown {
		e.Fatalf("after the lease a held key is %s, want unknown", a.Decision)
	}
	if e.movable() {
		e.advance(1000 * e.window)
	}
	e.purge()
	e.want(semel.OutcomeUnknown, e.request(lost))
	e.want(semel.OutcomeUnknown, e.request(released))
	e.mustComplete(lost, c.Token, text("after all"))
}

// purge lets the store drop expired data, if it is a Purger.
func (e *env) purge() {
	e.Helper()
	if p, ok := e.inner.(semel.Purger); ok {
		if _, err := p.Purge(context.Background()); err != nil {
			e.Fatalf("purge: %v", err)
		}
	}
}

func lateHolderCompletes(e *env) {
	lost := e.key()
	c := e.fresh(e.held(lost))
	e.claimAfter(e.short, e.request(lost), semel.InFlight)
	e.mustComplete(lost, c.Token, text("late but true"))
	e.wantResult(lost, text("late but true"))
	e.mustComplete(lost, c.Token, text("late but true")) // the reply was lost

	released := e.key()
	c = e.unknown(released)
	e.mustComplete(released, c.Token, text("it was there"))
	e.wantResult(released, text("it was there"))
}

// eachUnknown calls f with a key for each way in which a key becomes unknown.
func (e *env) eachUnknown(f func(how string, req semel.ClaimRequest, held semel.Claim)) {
	e.Helper()
	req := e.held(e.key())
	c := e.fresh(req)
	if a := e.claimAfter(e.short, e.request(req.Key), semel.InFlight); a.Decision != semel.OutcomeUnknown {
		e.Fatalf("after the lease a held key is %s, want unknown", a.Decision)
	}
	f("by the end of its lease", req, c)

	req = e.request(e.key())
	c = e.fresh(req)
	if err := e.release(semel.ReleaseRequest{Key: req.Key, Token: c.Token, Unknown: true}); err != nil {
		e.Fatalf("release %s as unknown: %v", req.Key, err)
	}
	f("by a release", req, c)
}

func unknownIsNotExtended(e *env) {
	e.eachUnknown(func(how string, req semel.ClaimRequest, held semel.Claim) {
		for range 2 {
			err := e.extend(req.Key, held.Token, e.lease).Err
			e.wantStale("extend", req.Key, held.Token, err)
			var stale *semel.StaleTokenError
			if errors.As(err, &stale) && (stale.State != semel.Unknown || stale.Current != held.Token) {
				e.Errorf("of a key that is unknown %s the error shows %s under %d, want unknown under %d", how, stale.State, stale.Current, held.Token)
			}
			e.want(semel.OutcomeUnknown, e.request(req.Key))
		}
		e.mustComplete(req.Key, held.Token, text("after all"))
		e.wantResult(req.Key, text("after all"))
	})
}

func lateHolderReleases(e *env) {
	e.eachUnknown(func(_ string, req semel.ClaimRequest, held semel.Claim) {
		if err := e.release(semel.ReleaseRequest{Key: req.Key, Token: held.Token, Unknown: true}); err != nil {
			e.Errorf("release an unknown key as unknown: %v", err)
		}
		e.want(semel.OutcomeUnknown, e.request(req.Key))
		e.mustRelease(req.Key, held.Token)
		if c := e.fresh(e.request(req.Key)); c.Attempt != 1 {
			e.Errorf("after the late holder's release the attempt is %d, want 1", c.Attempt)
		}
	})
}

func repeatedClaimOfUnknown(e *env) {
	e.eachUnknown(func(how string, req semel.ClaimRequest, held semel.Claim) {
		if a := e.want(semel.OutcomeUnknown, req); a.Claim.Token != held.Token {
			e.Errorf("the claim that is repeated when its key is unknown %s is shown token %d, want %d", how, a.Claim.Token, held.Token)
		}
	})
}

func releaseAsUnknown(e *env) {
	// The same applies to a claim without Hold: the holder decides.
	key := e.key()
	c := e.fresh(e.request(key))
	if err := e.release(semel.ReleaseRequest{Key: key, Token: c.Token, Unknown: true}); err != nil {
		e.Fatalf("release as unknown: %v", err)
	}
	a := e.want(semel.OutcomeUnknown, e.request(key))
	if a.Claim.Token != c.Token {
		e.Errorf("unknown shows token %d, want %d", a.Claim.Token, c.Token)
	}
}

func holdReleased(e *env) {
	key := e.key()
	req := e.request(key)
	req.Hold = true
	c := e.fresh(req)
	e.mustRelease(key, c.Token)
	again := e.fresh(e.request(key))
	if again.Token <= c.Token {
		e.Errorf("after release token %d follows %d", again.Token, c.Token)
	}
	if again.Attempt != 1 {
		e.Errorf("after release the attempt is %d, want 1", again.Attempt)
	}
}

// resolver returns the store's Resolver, or nil. Without a Resolver only the
// holder can settle an unknown key, and the case checks that instead.
func (e *env) resolver() semel.Resolver {
	e.Helper()
	r, ok := e.inner.(semel.Resolver)
	if !ok {
		key := e.key()
		c := e.unknown(key)
		e.mustComplete(key, c.Token, text("by the holder"))
		e.wantResult(key, text("by the holder"))
		return nil
	}
	return r
}

func resolveSettles(e *env) {
	r := e.resolver()
	if r == nil {
		return
	}
	for _, result := range []semel.Result{{}, text("found it"), {Kind: semel.Failed, Data: []byte("refused")}} {
		key := e.key()
		c := e.unknown(key)
		e.store.resolving(key, result)
		if err := r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: semel.Done, Result: result, Window: e.window}); err != nil {
			e.Fatalf("resolve as done: %v", err)
		}
		e.wantResult(key, result)
		// The late holder arrives after the decision.
		e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("too late"), e.window))
		e.wantStale("release", key, c.Token, e.release(semel.ReleaseRequest{Key: key, Token: c.Token}))
		e.wantResult(key, result)
	}

	key := e.key()
	c := e.unknown(key)
	if err := r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: semel.Absent}); err != nil {
		e.Fatalf("resolve as absent: %v", err)
	}
	e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("too late"), e.window))
	again := e.fresh(e.request(key))
	if again.Token <= c.Token {
		e.Errorf("after resolve token %d follows %d", again.Token, c.Token)
	}
	if again.Token != c.Token {
		e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("too late"), e.window))
	}
	e.mustComplete(key, again.Token, text("again"))

	// The window of a resolution counts from the resolution.
	if e.movable() {
		key := e.key()
		e.unknown(key)
		e.store.resolving(key, text("r"))
		if err := r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: semel.Done, Result: text("r"), Window: e.window}); err != nil {
			e.Fatalf("resolve as done: %v", err)
		}
		e.advance(e.window - 1)
		e.want(semel.Duplicate, e.request(key))
		e.advance(1 + e.traits.Tick)
		e.fresh(e.request(key))
	}
}

func resolveRefuses(e *env) {
	r := e.resolver()
	if r == nil {
		return
	}
	absent, claimed, done, ended := e.key(), e.key(), e.key(), e.key()
	c := e.fresh(e.request(claimed))
	e.done(done, text("r"))
	e.fresh(e.shortly(ended))
	for _, key := range []semel.Key{absent, claimed, done, ended} {
		for _, as := range []semel.State{semel.Done, semel.Absent} {
			if err := r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: as, Result: text("no"), Window: e.window}); !errors.Is(err, semel.ErrNotUnknown) {
				e.Errorf("resolve %s as %s is answered %v, want ErrNotUnknown", key, as, err)
			}
		}
	}
	e.fresh(e.request(absent))
	e.heldBy(claimed, c)("resolve")
	e.wantResult(done, text("r"))

	key := e.key()
	e.unknown(key)
	for _, as := range []semel.State{semel.Claimed, semel.Unknown} {
		e.wantInvalid("resolve as "+as.String(), r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: as, Window: e.window}))
	}
	e.wantInvalid("resolve as done without window", r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: semel.Done}))
	if err := r.Resolve(e.Context(), semel.ResolveRequest{Key: semel.Key{Scope: "s"}, As: semel.Absent}); !errors.Is(err, semel.ErrInvalidKey) {
		e.Errorf("resolve of an empty key is answered %v, want ErrInvalidKey", err)
	}
	e.want(semel.OutcomeUnknown, e.request(key))
}

func removeForgets(e *env) {
	r := e.resolver()
	if r == nil {
		return
	}
	remove := func(key semel.Key) bool {
		e.Helper()
		was, err := r.Remove(e.Context(), key)
		if err != nil {
			e.Fatalf("remove %s: %v", key, err)
		}
		return was
	}
	claimed, done, unknown := e.key(), e.key(), e.key()
	c1 := e.fresh(e.request(claimed))
	c2 := e.done(done, text("r"))
	c3 := e.unknown(unknown)
	for _, x := range []struct {
		key   semel.Key
		token semel.Token
	}{{claimed, c1.Token}, {done, c2}, {unknown, c3.Token}} {
		if !remove(x.key) {
			e.Errorf("remove %s reports that there was no record", x.key)
		}
		if remove(x.key) {
			e.Errorf("remove %s again reports that there was a record", x.key)
		}
		e.wantStale("complete", x.key, x.token, e.complete(x.key, x.token, text("stale"), e.window))
		c := e.fresh(e.request(x.key))
		if c.Token <= x.token {
			e.Errorf("after remove token %d follows %d", c.Token, x.token)
		}
		if c.Token != x.token {
			e.wantStale("complete", x.key, x.token, e.complete(x.key, x.token, text("stale"), e.window))
		}
	}
	if remove(e.key()) {
		e.Errorf("remove of an absent key reports that there was a record")
	}
}
