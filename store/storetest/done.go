package storetest

import (
	"time"

	"github.com/semel-dev/semel"
)

var doneCases = []testCase{
	{"a done claim completes in one step", doneClaim},
	{"a done claim repeated after a lost reply is fresh again", repeatedDoneClaim},
	{"a done claim of another owner is a duplicate", doneClaimOfAnother},
	{"many done claims repeated after a lost reply are fresh again", repeatedDoneClaims},
	{"a done claim respects a holder and takes over an ended lease", doneClaimAndLease},
}

func doneClaim(e *env) {
	key := e.key()
	req := e.request(key)
	req.Done, req.Lease = true, 0
	if c := e.fresh(req); c != (semel.Claim{Attempt: 1}) {
		e.Errorf("a done claim has %+v, want the first attempt alone", c)
	}
	e.wantResult(key, semel.Result{})
	again := e.request(key)
	again.Done, again.Lease = true, 0
	e.want(semel.Duplicate, again)

	e.want(semel.Duplicate, e.request(key))
}

// doneRequests returns Done claims in each form in which a store may record
// them.
func (e *env) doneRequests() map[string]semel.ClaimRequest {
	reqs := make(map[string]semel.ClaimRequest)
	add := func(how string, change func(*semel.ClaimRequest)) {
		req := e.request(e.key())
		req.Done, req.Lease = true, 0
		change(&req)
		reqs[how] = req
	}
	add("plain", func(*semel.ClaimRequest) {})
	add("with a payload", func(r *semel.ClaimRequest) { r.Fingerprint = print('1') })
	add("kept forever", func(r *semel.ClaimRequest) { r.Window = semel.Forever })
	add("kept for long", func(r *semel.ClaimRequest) { r.Window = 1000 * e.window })
	add("of a message with a time", func(r *semel.ClaimRequest) { r.Time = e.now() })
	add("of an owner without a name", func(r *semel.ClaimRequest) { r.Owner.Name = "" })
	add("of an owner without a nonce", func(r *semel.ClaimRequest) { r.Owner = semel.Owner{Name: "only a name"} })
	taken := e.key()
	e.mustRelease(taken, e.fresh(e.request(taken)).Token)
	add("of a key that was released", func(r *semel.ClaimRequest) { r.Key = taken })
	return reqs
}

// wantRepeated repeats a Done claim. The store must grant it again, without the
// first answer's attempt, and must not change the record.
func (e *env) wantRepeated(how string, req semel.ClaimRequest) {
	e.Helper()
	if a := e.claim(req); a.Decision != semel.Fresh || a.Claim != (semel.Claim{}) || a.Holder != "" || !equalResults(a.Result, semel.Result{}) {
		e.Errorf("a done claim (%s) that is repeated is answered %s with %+v of %q, want fresh with nothing", how, a.Decision, a.Claim, a.Holder)
	}
}

func repeatedDoneClaim(e *env) {
	reqs := e.doneRequests()
	for how, req := range reqs {
		if c := e.fresh(req); c != (semel.Claim{Attempt: 1}) {
			e.Errorf("a done claim (%s) has %+v, want the first attempt alone", how, c)
		}
		for range 3 {
			e.wantRepeated(how, req)
		}
		lease := req
		lease.Done, lease.Lease = false, e.lease
		e.want(semel.Duplicate, lease) // this is a different request
		e.want(semel.Duplicate, e.request(req.Key))
		e.wantRepeated(how, req)
	}
	// Other owners claim in between.
	for range 200 {
		req := e.request(e.key())
		req.Done = true
		e.fresh(req)
	}
	for how, req := range reqs {
		e.wantRepeated(how, req)
	}
	if e.traits.Durable {
		e.reopen()
		for how, req := range reqs {
			e.wantRepeated(how+", after a reopen", req)
		}
	}
	// A different payload is a different message, whatever its owner.
	other := reqs["with a payload"]
	other.Fingerprint = print('2')
	e.want(semel.Mismatch, other)

	// The record of a key that was taken over must contain the owner as well.
	key := e.key()
	held := e.fresh(e.shortly(key))
	req := e.request(key)
	req.Done = true
	if a := e.claimAfter(e.short, req, semel.InFlight); a.Decision != semel.Fresh || a.Claim != (semel.Claim{Attempt: 2}) {
		e.Errorf("a done claim after a lease is answered %s with %+v, want fresh with attempt 2", a.Decision, a.Claim)
	}
	e.wantRepeated("after a lease", req)
	e.wantStale("complete", key, held.Token, e.complete(key, held.Token, text("late"), e.window))
	e.wantRepeated("after a lease", req)

	// The window counts from the first claim.
	if e.movable() {
		key := e.key()
		req := e.request(key)
		req.Done = true
		e.fresh(req)
		e.advance(e.window / 2)
		e.wantRepeated("in the middle of its window", req)
		e.advance(e.window/2 - 1)
		e.want(semel.Duplicate, e.request(key))
		e.advance(1 + e.traits.Tick)
		if c := e.fresh(req); c != (semel.Claim{Attempt: 1}) {
			e.Errorf("a done claim that is repeated after its window has %+v, want the first attempt", c)
		}
	}
}

func doneClaimOfAnother(e *env) {
	for how, req := range e.doneRequests() {
		e.fresh(req)
		for what, owner := range map[string]semel.Owner{
			"no owner":                    {},
			"another nonce":               {Name: req.Owner.Name, Nonce: req.Owner.Nonce + 1},
			"another name":                {Name: req.Owner.Name + "'s neighbour", Nonce: req.Owner.Nonce},
			"the nonce in the high bits":  {Name: req.Owner.Name, Nonce: req.Owner.Nonce<<32 | 1},
			"the nonce in the other half": {Name: req.Owner.Name, Nonce: req.Owner.Nonce>>32 | req.Owner.Nonce<<32 ^ 1},
		} {
			other := req
			other.Owner = owner
			if a := e.claim(other); a.Decision != semel.Duplicate {
				e.Errorf("after a done claim (%s) one of %s is answered %s, want duplicate", how, what, a.Decision)
			}
		}
	}
	// A completion by the key's holder is not a Done claim.
	key := e.key()
	req := e.request(key)
	e.mustComplete(key, e.fresh(req).Token, semel.Result{})
	req.Done = true
	e.want(semel.Duplicate, req)
	if r, ok := e.inner.(semel.Resolver); ok {
		key := e.key()
		req := e.request(key)
		if err := e.release(semel.ReleaseRequest{Key: key, Token: e.fresh(req).Token, Unknown: true}); err != nil {
			e.Fatalf("release as unknown: %v", err)
		}
		e.store.resolving(key, semel.Result{})
		if err := r.Resolve(e.Context(), semel.ResolveRequest{Key: key, As: semel.Done, Window: e.window}); err != nil {
			e.Fatalf("resolve: %v", err)
		}
		req.Done = true
		e.want(semel.Duplicate, req)
	}
}

// repeatedDoneClaims makes many calls with new keys only, so that a store uses
// its fast path for them, if it has one.
func repeatedDoneClaims(e *env) {
	const calls, size = 24, 20
	for call := range calls {
		reqs := make([]semel.ClaimRequest, size, size+2)
		for i := range reqs {
			reqs[i] = e.request(e.key())
			reqs[i].Done = true
			if call%3 == 1 {
				reqs[i].Window += time.Duration(i) * time.Minute
			}
		}
		again := e.request(reqs[0].Key)
		again.Done = true
		for i, a := range e.claims(append(reqs, again, reqs[1])...) {
			switch {
			case i == size && a.Decision != semel.Duplicate:
				e.Fatalf("another owner's done claim in the same call is answered %s", a.Decision)
			case i < size && (a.Decision != semel.Fresh || a.Claim != (semel.Claim{Attempt: 1})):
				e.Fatalf("done claim %d of a call is answered %s with %+v", i, a.Decision, a.Claim)
			case i > size && (a.Decision != semel.Fresh || a.Claim != (semel.Claim{})):
				e.Fatalf("a done claim that is repeated in a call is answered %s with %+v", a.Decision, a.Claim)
			}
		}
		for i, a := range e.claims(reqs...) {
			if a.Decision != semel.Fresh || a.Claim != (semel.Claim{}) {
				e.Fatalf("done claim %d of call %d that is repeated is answered %s with %+v, want fresh with nothing", i, call, a.Decision, a.Claim)
			}
			reqs[i].Owner = e.owner("another")
		}
		for i, a := range e.claims(reqs...) {
			if a.Decision != semel.Duplicate {
				e.Fatalf("done claim %d of call %d of another is answered %s, want duplicate", i, call, a.Decision)
			}
		}
	}
}

func doneClaimAndLease(e *env) {
	key := e.key()
	held := e.fresh(e.shortly(key))
	req := e.request(key)
	req.Done = true
	if e.movable() {
		if a := e.want(semel.InFlight, req); a.Claim.Token != held.Token {
			e.Errorf("in flight shows token %d, want %d", a.Claim.Token, held.Token)
		}
	}
	a := e.claimAfter(e.short, req, semel.InFlight)
	if a.Decision != semel.Fresh {
		e.Fatalf("a done claim after the lease is answered %s, want fresh", a.Decision)
	}
	e.wantStale("complete", key, held.Token, e.complete(key, held.Token, text("late"), e.window))
	e.wantResult(key, semel.Result{})
}
