package storetest

import (
	"time"

	"github.com/semel-dev/semel"
)

var leaseCases = []testCase{
	{"a takeover of an ended lease increases attempt and token", leaseIsTakenOver},
	{"a lease ends at its stated time", leaseEdge},
	{"extend moves the end of a lease", extendMovesLease},
	{"a lease that ended and was not taken over is extended and completed", endedLeaseStillHolds},
	{"release makes the key fresh with a higher token", releaseMakesFresh},
	{"lease and window are independent", leaseAndWindow},
	{"a clock that steps back neither shortens nor extends a lease or window", clockStepsBack},
	{"requests without lease or window are refused", boundsAreChecked},
}

func leaseIsTakenOver(e *env) {
	key := e.key()
	claim := e.fresh(e.shortly(key))
	for attempt := 2; attempt <= 5; attempt++ {
		a := e.claimAfter(e.short, e.shortly(key), semel.InFlight)
		if a.Decision != semel.Fresh {
			e.Fatalf("after its lease the key is %s, want fresh", a.Decision)
		}
		if a.Claim.Attempt != attempt {
			e.Errorf("take-over has attempt %d, want %d", a.Claim.Attempt, attempt)
		}
		if a.Claim.Token <= claim.Token {
			e.Errorf("take-over has token %d after %d", a.Claim.Token, claim.Token)
		}
		claim = a.Claim
	}
	// The last lease may have ended as well. The key still belongs to its
	// holder.
	e.mustComplete(key, claim.Token, text("at last"))
	e.wantResult(key, text("at last"))
}

func leaseEdge(e *env) {
	key := e.key()
	before := time.Now()
	c := e.fresh(e.shortly(key))
	if !e.movable() {
		e.claimAfter(e.short, e.request(key), semel.InFlight)
		if took := time.Since(before); took < e.short-slack {
			e.Errorf("a lease of %v was taken over after %v", e.short, took)
		}
		return
	}
	e.advance(c.LeaseEnd.Sub(e.now()) - 1)
	e.want(semel.InFlight, e.request(key))
	e.advance(1)
	if a := e.fresh(e.request(key)); a.Attempt != 2 {
		e.Errorf("at the end of its lease the key is claimed with attempt %d, want 2", a.Attempt)
	}
}

func extendMovesLease(e *env) {
	key := e.key()
	c := e.fresh(e.shortly(key))
	before := e.now()
	a := e.extend(key, c.Token, e.lease)
	if a.Err != nil {
		e.Fatalf("extend: %v", a.Err)
	}
	other := e.key()
	e.fresh(e.shortly(other))
	e.claimAfter(e.short, e.request(other), semel.InFlight)
	if got := e.want(semel.InFlight, e.request(key)); !got.Claim.LeaseEnd.Equal(a.LeaseEnd) {
		e.Errorf("in flight shows lease end %v, want the extended %v", got.Claim.LeaseEnd, a.LeaseEnd)
	}
	if e.movable() {
		e.wantLeaseEnd("extend", a.LeaseEnd, before.Add(e.lease))
	}
	// Extend sets the end, so it can also shorten a lease.
	if a = e.extend(key, c.Token, e.short); a.Err != nil {
		e.Fatalf("extend: %v", a.Err)
	}
	if taken := e.claimAfter(e.short, e.request(key), semel.InFlight); taken.Claim.Attempt != 2 {
		e.Errorf("after the extended lease attempt is %d, want 2", taken.Claim.Attempt)
	}
	e.wantStale("extend", key, c.Token, e.extend(key, c.Token, e.lease).Err)
}

func endedLeaseStillHolds(e *env) {
	extended, completed, released := e.key(), e.key(), e.key()
	c1, c2, c3 := e.fresh(e.shortly(extended)), e.fresh(e.shortly(completed)), e.fresh(e.shortly(released))
	probe := e.key()
	e.fresh(e.shortly(probe))
	e.awaitLease(c3, probe)

	if a := e.extend(extended, c1.Token, e.lease); a.Err != nil {
		e.Errorf("extend a lease that ended but was not taken over: %v", a.Err)
	} else if got := e.want(semel.InFlight, e.request(extended)); got.Claim.Token != c1.Token {
		e.Errorf("the extended key is held by token %d, want %d", got.Claim.Token, c1.Token)
	}
	e.mustComplete(completed, c2.Token, text("in time enough"))
	e.wantResult(completed, text("in time enough"))
	e.mustRelease(released, c3.Token)
	if c := e.fresh(e.request(released)); c.Attempt != 1 {
		e.Errorf("after release the attempt is %d, want 1", c.Attempt)
	}
}

func releaseMakesFresh(e *env) {
	key := e.key()
	var last semel.Token
	for range 5 {
		c := e.fresh(e.request(key))
		if c.Attempt != 1 {
			e.Errorf("after release the attempt is %d, want 1: nothing was lost in the middle", c.Attempt)
		}
		if c.Token <= last {
			e.Errorf("after release token %d follows %d", c.Token, last)
		}
		last = c.Token
		e.mustRelease(key, c.Token)
	}
}

func leaseAndWindow(e *env) {
	if !e.movable() {
		// The window is shorter than the lease, and counts from completion.
		key := e.key()
		c := e.fresh(e.request(key))
		if err := e.complete(key, c.Token, text("r"), e.short); err != nil {
			e.Fatalf("complete: %v", err)
		}
		e.claimAfter(e.short+e.traits.Tick, e.request(key), semel.Duplicate)
		return
	}
	// A window that is shorter than the lease does not end a claim …
	key := e.key()
	req := e.request(key)
	req.Lease, req.Window = 3*e.window, e.window
	c := e.fresh(req)
	e.advance(2*e.window + e.traits.Tick)
	e.want(semel.InFlight, e.request(key))
	// … and counts from completion, as the completion says.
	if err := e.complete(key, c.Token, text("r"), 2*e.window); err != nil {
		e.Fatalf("complete: %v", err)
	}
	e.advance(2*e.window - 1)
	e.want(semel.Duplicate, e.request(key)) // also after the end of the lease
	e.advance(1 + e.traits.Tick)
	if c := e.fresh(e.request(key)); c.Attempt != 1 {
		e.Errorf("a forgotten key is claimed with attempt %d, want 1", c.Attempt)
	}
}

func clockStepsBack(e *env) {
	if e.clock == nil {
		// The suite cannot step this clock: time only passes.
		leaseIsTakenOver(e)
		return
	}
	held, kept, probe := e.key(), e.key(), e.key()
	c := e.fresh(e.shortly(held))
	e.done(kept, text("r"))
	e.clock.Advance(-48 * time.Hour)
	e.fresh(e.request(probe)) // the store sees the step

	e.want(semel.InFlight, e.request(held))
	e.want(semel.Duplicate, e.request(kept))
	e.clock.Advance(e.short - slack)
	e.want(semel.InFlight, e.request(held))
	e.clock.Advance(2 * slack)
	if taken := e.fresh(e.request(held)); taken.Attempt != 2 || taken.Token <= c.Token {
		e.Errorf("after the lease, on a clock set back, the take-over of %+v is %+v", c, taken)
	}
	e.clock.Advance(e.window - e.short - 2*slack)
	e.want(semel.Duplicate, e.request(kept))
	e.clock.Advance(2*slack + e.traits.Tick)
	e.fresh(e.request(kept))
}

func boundsAreChecked(e *env) {
	for _, c := range []struct {
		what   string
		change func(*semel.ClaimRequest)
	}{
		{"no lease", func(r *semel.ClaimRequest) { r.Lease = 0 }},
		{"a negative lease", func(r *semel.ClaimRequest) { r.Lease = -1 }},
		{"no window", func(r *semel.ClaimRequest) { r.Window = 0 }},
		{"a negative window", func(r *semel.ClaimRequest) { r.Window = -1 }},
		{"no window, done", func(r *semel.ClaimRequest) { r.Window, r.Done = 0, true }},
	} {
		bad := e.request(e.key())
		c.change(&bad)
		good := e.request(e.key())
		answers := make([]semel.ClaimAnswer, 2)
		err := e.store.Claim(e.Context(), []semel.ClaimRequest{bad, good}, answers)
		if err != nil {
			e.Errorf("a claim with %s fails the whole call: %v", c.what, err)
			continue
		}
		e.wantInvalid("claim with "+c.what, answers[0].Err)
		if answers[1].Decision != semel.Fresh {
			e.Errorf("next to a claim with %s, another claim is answered %s, want fresh", c.what, answers[1].Decision)
		}
		e.fresh(e.request(bad.Key)) // nothing was recorded
	}

	key := e.key()
	held := e.fresh(e.request(key))
	e.wantInvalid("complete without window", e.complete(key, held.Token, text("r"), 0))
	e.wantInvalid("complete with a negative window", e.complete(key, held.Token, text("r"), -1))
	e.wantInvalid("extend without lease", e.extend(key, held.Token, 0).Err)
	e.wantInvalid("extend with a negative lease", e.extend(key, held.Token, -1).Err)
	e.want(semel.InFlight, e.request(key)) // and nothing was changed
	e.mustComplete(key, held.Token, text("r"))
}
