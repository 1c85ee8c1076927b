package storetest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

var claimCases = []testCase{
	{"one of many concurrent claims wins", oneRacerWins},
	{"one of many concurrent claims takes over an ended lease", oneRacerTakesOver},
	{"a first claim is granted", firstClaimIsGranted},
	{"a key is in flight while its lease runs", runningLeaseIsInFlight},
	{"a claim repeated after a lost reply is the same claim", repeatedClaimRecognisesItself},
	{"a repeated claim has the later of both lease ends", repeatedClaimAndLease},
	{"a claim repeated after completion is a duplicate", repeatedClaimAfterCompletion},
	{"a claim repeated after take-over is in flight", repeatedClaimAfterTakeOver},
	{"owners with the same name are different owners", ownersOfOneName},
	{"a claim without an owner matches no other claim", claimWithoutOwner},
	{"an old message without a record is late", oldMessageIsLate},
	{"an old message with a record is decided by the record", oldMessageWithRecord},
}

func oneRacerWins(e *env) {
	const racers = 16
	for range 100 {
		e.race(e.key(), racers)
	}
	if e.store.decided(semel.InFlight) == 0 {
		e.Errorf("no racer was ever told of another's claim")
	}
}

// race lets many goroutines claim one key concurrently and checks that exactly
// one wins.
func (e *env) race(key semel.Key, racers int) (won semel.Claim) {
	e.Helper()
	var winners atomic.Int32
	answers := make([]semel.ClaimAnswer, racers)
	errs := make([]error, racers)
	inParallel(racers, func(i int) {
		errs[i] = e.store.Claim(context.Background(), []semel.ClaimRequest{e.request(key)}, answers[i:i+1])
		if answers[i].Decision == semel.Fresh {
			winners.Add(1)
		}
	})
	for i, a := range answers {
		switch {
		case errs[i] != nil || a.Err != nil:
			e.Fatalf("claim %s among racers: %v, %v", key, errs[i], a.Err)
		case a.Decision == semel.Fresh:
			won = a.Claim
		case a.Decision != semel.InFlight:
			e.Fatalf("claim of %s among racers is answered %s", key, a.Decision)
		}
	}
	if n := winners.Load(); n != 1 {
		e.Fatalf("%d of %d racers won %s, want 1", n, racers, key)
	}
	for _, a := range answers {
		if a.Decision == semel.InFlight && a.Claim.Token != won.Token {
			e.Errorf("a concurrent claim of %s got token %d, but %d won", key, a.Claim.Token, won.Token)
		}
	}
	return won
}

func oneRacerTakesOver(e *env) {
	var keys []semel.Key
	first := make(map[semel.Key]semel.Claim)
	for range 50 {
		key := e.key()
		keys = append(keys, key)
		first[key] = e.fresh(e.shortly(key))
	}
	ended := e.fresh(e.shortly(e.key()))
	e.awaitLease(ended, keys[0])
	for _, key := range keys[1:] {
		won := e.race(key, 8)
		if won.Attempt != 2 || won.Token <= first[key].Token {
			e.Errorf("the take-over of %+v is %+v, want attempt 2 and a higher token", first[key], won)
		}
	}
}

// awaitLease waits until a lease has ended that was claimed after the lease of
// probe. It detects the end by taking over probe.
func (e *env) awaitLease(c semel.Claim, probe semel.Key) {
	e.Helper()
	if e.movable() {
		e.advance(c.LeaseEnd.Sub(e.now()) + slack)
		return
	}
	e.claimAfter(e.short, e.request(probe), semel.InFlight)
	e.after(e.short, "the lease has ended", func() bool { return time.Now().After(c.LeaseEnd.Add(e.short)) })
}

func firstClaimIsGranted(e *env) {
	before := e.now()
	c := e.fresh(e.request(e.key()))
	if c.Attempt != 1 {
		e.Errorf("the first claim has attempt %d, want 1", c.Attempt)
	}
	if e.movable() {
		e.wantLeaseEnd("claim", c.LeaseEnd, before.Add(e.lease))
	}
}

// wantLeaseEnd checks the end of a lease, within the resolution of the store's
// time.
func (e *env) wantLeaseEnd(verb string, got, want time.Time) {
	e.Helper()
	if got.Before(want.Add(-slack)) || got.After(want.Add(slack+e.traits.Tick)) {
		e.Errorf("after %s the lease ends at %v, want %v", verb, got, want)
	}
}

func runningLeaseIsInFlight(e *env) {
	key := e.key()
	req := e.request(key)
	req.Owner = e.owner("the holder")
	held := e.fresh(req)
	for range 3 {
		a := e.want(semel.InFlight, e.request(key))
		if !sameClaim(a.Claim, held) || a.Holder != "the holder" {
			e.Errorf("in flight shows claim %+v of %q, want %+v of %q", a.Claim, a.Holder, held, "the holder")
		}
		if a.Result.Kind != semel.NoResult || len(a.Result.Data) > 0 {
			e.Errorf("in flight shows the result %s", describe(a.Result))
		}
	}
	e.mustComplete(key, held.Token, text("ok"))
	e.wantResult(key, text("ok"))
}

func repeatedClaimRecognisesItself(e *env) {
	key := e.key()
	req := e.request(key)
	first := e.fresh(req)
	for range 3 {
		again := e.fresh(req)
		if again.Token != first.Token || again.Attempt != first.Attempt {
			e.Errorf("the claim %+v is repeated as %+v: token and attempt must be the same", first, again)
		}
		if again.LeaseEnd.Before(first.LeaseEnd) {
			e.Errorf("repeating a claim moves its lease end from %v back to %v", first.LeaseEnd, again.LeaseEnd)
		}
	}
	e.want(semel.InFlight, e.request(key))
	e.mustComplete(key, first.Token, text("done once"))
	e.wantResult(key, text("done once"))

	// A different payload is a different message, whatever its owner.
	req = e.with(e.key(), print('1'))
	e.fresh(req)
	req.Fingerprint = print('2')
	e.want(semel.Mismatch, req)
}

func repeatedClaimAndLease(e *env) {
	for _, hold := range []bool{false, true} {
		req := e.request(e.key())
		req.Hold = hold
		first := e.fresh(req)
		again := func(lease time.Duration) semel.Claim {
			e.Helper()
			repeated := req
			repeated.Lease = lease
			c := e.fresh(repeated)
			if c.Token != first.Token || c.Attempt != first.Attempt {
				e.Errorf("the claim %+v (hold: %t) is repeated as %+v: token and attempt must be the same", first, hold, c)
			}
			return c
		}
		if c := again(e.lease / 2); !c.LeaseEnd.Equal(first.LeaseEnd) {
			e.Errorf("a claim repeated with a shorter lease ends at %v, want %v as before", c.LeaseEnd, first.LeaseEnd)
		}
		longer := again(2 * e.lease)
		if d := longer.LeaseEnd.Sub(first.LeaseEnd); d < e.lease-slack {
			e.Errorf("a claim repeated with twice the lease of %v ends %v later", e.lease, d)
		}
		if a := e.want(semel.InFlight, e.request(req.Key)); !sameClaim(a.Claim, longer) {
			e.Errorf("after a repeated claim in flight shows %+v, want %+v", a.Claim, longer)
		}
		if e.movable() {
			e.wantLeaseEnd("a repeated claim", longer.LeaseEnd, e.now().Add(2*e.lease))
			e.advance(e.lease)
			e.wantLeaseEnd("a claim repeated later", again(2*e.lease).LeaseEnd, e.now().Add(2*e.lease))
		}
	}
	// After its lease it is still the same claim, if it was not taken over.
	req, probe := e.shortly(e.key()), e.key()
	e.fresh(e.shortly(probe))
	first := e.fresh(req)
	e.awaitLease(first, probe)
	req.Lease = e.lease
	if c := e.fresh(req); c.Token != first.Token || c.Attempt != first.Attempt || !c.LeaseEnd.After(first.LeaseEnd) {
		e.Errorf("the claim %+v is repeated after its lease as %+v, want the same token and attempt and a later end", first, c)
	}
	e.want(semel.InFlight, e.request(req.Key))
}

func repeatedClaimAfterCompletion(e *env) {
	key := e.key()
	req := e.request(key)
	e.mustComplete(key, e.fresh(req).Token, text("r"))
	a := e.want(semel.Duplicate, req)
	if !e.sameResult(a.Result, text("r")) {
		e.Errorf("the repeated claim gets the result %s", describe(a.Result))
	}
}

func repeatedClaimAfterTakeOver(e *env) {
	key := e.key()
	req := e.shortly(key)
	first := e.fresh(req)
	taken := e.claimAfter(e.short, e.request(key), semel.InFlight)
	if taken.Decision != semel.Fresh || taken.Claim.Attempt != 2 || taken.Claim.Token <= first.Token {
		e.Fatalf("after %+v the take-over is %s %+v, want fresh, attempt 2, a higher token", first, taken.Decision, taken.Claim)
	}
	if a := e.want(semel.InFlight, req); a.Claim.Token != taken.Claim.Token {
		e.Errorf("in flight shows token %d, want %d", a.Claim.Token, taken.Claim.Token)
	}
}

func ownersOfOneName(e *env) {
	key := e.key()
	e.fresh(e.request(key)) // the same name, another nonce
	e.want(semel.InFlight, e.request(key))

	key = e.key()
	req := e.request(key)
	e.fresh(req)
	req.Owner.Name = "another" // another name, the same nonce
	e.want(semel.InFlight, req)
}

// claimWithoutOwner claims without an owner. Two such claims are not a
// repetition of one claim.
func claimWithoutOwner(e *env) {
	for _, hold := range []bool{false, true} {
		key := e.key()
		req := e.request(key)
		req.Owner, req.Hold = semel.Owner{}, hold
		held := e.fresh(req)
		for range 2 {
			if a := e.want(semel.InFlight, req); !sameClaim(a.Claim, held) {
				e.Errorf("in flight shows claim %+v, want %+v", a.Claim, held)
			}
		}
		e.mustComplete(key, held.Token, text("ok"))
	}
	req := e.request(e.key())
	req.Owner, req.Done = semel.Owner{}, true
	e.fresh(req)
	e.want(semel.Duplicate, req)
	batch := []semel.ClaimRequest{e.request(e.key()), {}}
	batch[0].Owner = semel.Owner{}
	batch[1] = batch[0]
	answers := make([]semel.ClaimAnswer, 2)
	if err := e.store.Claim(context.Background(), batch, answers); err != nil || answers[0].Decision != semel.Fresh || answers[1].Decision != semel.InFlight {
		e.Errorf("twice in a call without an owner: %s and %s, %v", answers[0].Decision, answers[1].Decision, err)
	}
}

func oldMessageIsLate(e *env) {
	margin := slack
	if !e.movable() {
		margin = patience
	}
	for _, c := range []struct {
		what   string
		age    time.Duration
		window time.Duration
		want   semel.Decision
	}{
		{"older than the window", e.window + margin, e.window, semel.Late},
		{"much older than the window", 1000 * e.window, e.window, semel.Late},
		{"younger than the window", e.window - margin, e.window, semel.Fresh},
		{"of now", 0, e.window, semel.Fresh},
		{"of the future", -time.Hour, e.window, semel.Fresh},
		{"old, kept forever", 1000 * e.window, semel.Forever, semel.Fresh},
	} {
		for _, done := range []bool{false, true} {
			req := e.request(e.key())
			req.Time, req.Window, req.Done = e.now().Add(-c.age), c.window, done
			if a := e.claim(req); a.Decision != c.want {
				e.Errorf("a message %s (done: %t) is answered %s, want %s", c.what, done, a.Decision, c.want)
			}
			if c.want == semel.Late {
				// Nothing was recorded, so a retry gets the key.
				if again := e.fresh(e.request(req.Key)); again.Attempt != 1 {
					e.Errorf("after late the first claim has attempt %d, want 1", again.Attempt)
				}
			}
		}
	}
}

func oldMessageWithRecord(e *env) {
	old := func(key semel.Key) semel.ClaimRequest {
		req := e.request(key)
		req.Time = e.now().Add(-2 * e.window)
		return req
	}
	key := e.key()
	held := e.fresh(e.request(key))
	e.want(semel.InFlight, old(key))
	e.mustComplete(key, held.Token, text("r"))
	e.want(semel.Duplicate, old(key))
}
