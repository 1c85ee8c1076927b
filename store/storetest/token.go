package storetest

import (
	"errors"

	"github.com/semel-dev/semel"
)

var tokenCases = []testCase{
	{"a stale token changes nothing after take-over", staleAfterTakeOver},
	{"a stale token changes nothing after release", staleAfterRelease},
	{"a stale token changes nothing after completion", staleAfterCompletion},
	{"a token of an absent key is stale", staleWhereAbsent},
	{"a token of another key is stale", staleFromOtherKey},
	{"a repeated completion succeeds and changes nothing", repeatedCompletion},
	{"a repeated release changes nothing", repeatedRelease},
}

// wantInvalid checks for the error of an invalid request.
func (e *env) wantInvalid(what string, err error) {
	e.Helper()
	if !errors.Is(err, semel.ErrInvalidRequest) {
		e.Errorf("%s is answered %v, want an error that wraps ErrInvalidRequest", what, err)
	}
}

// wantAllStale tries a stale token with each call, and checks with unchanged
// that the record keeps its state and token.
func (e *env) wantAllStale(key semel.Key, token semel.Token, unchanged func(when string)) {
	e.Helper()
	e.wantStale("complete", key, token, e.complete(key, token, text("stale"), e.window))
	unchanged("complete")
	e.wantStale("release", key, token, e.release(semel.ReleaseRequest{Key: key, Token: token}))
	unchanged("release")
	e.wantStale("release as unknown", key, token, e.release(semel.ReleaseRequest{Key: key, Token: token, Unknown: true}))
	unchanged("release as unknown")
	e.wantStale("extend", key, token, e.extend(key, token, 10*e.lease).Err)
	unchanged("extend")
}

// heldBy returns a check that the key is in flight under the same claim.
func (e *env) heldBy(key semel.Key, held semel.Claim) func(when string) {
	return func(when string) {
		e.Helper()
		if a := e.claim(e.request(key)); a.Decision != semel.InFlight || !sameClaim(a.Claim, held) {
			e.Fatalf("after a stale %s the key is %s under %+v, want in flight under %+v", when, a.Decision, a.Claim, held)
		}
	}
}

func staleAfterTakeOver(e *env) {
	key := e.key()
	first := e.fresh(e.shortly(key))
	a := e.claimAfter(e.short, e.request(key), semel.InFlight)
	if a.Decision != semel.Fresh {
		e.Fatalf("after its lease the key is %s, want fresh", a.Decision)
	}
	held := e.heldBy(key, a.Claim)
	e.wantAllStale(key, first.Token, held)
	e.wantAllStale(key, a.Claim.Token+1, held)
	e.wantAllStale(key, 0, held)

	err := e.complete(key, first.Token, text("stale"), e.window)
	var stale *semel.StaleTokenError
	if errors.As(err, &stale) && (stale.State != semel.Claimed || stale.Current != a.Claim.Token) {
		e.Errorf("the stale token error shows %s under %d, want claimed under %d", stale.State, stale.Current, a.Claim.Token)
	}
	e.mustComplete(key, a.Claim.Token, text("good"))
	e.wantResult(key, text("good"))
}

func staleAfterRelease(e *env) {
	key := e.key()
	first := e.fresh(e.request(key))
	e.mustRelease(key, first.Token)
	second := e.fresh(e.request(key))
	e.wantAllStale(key, first.Token, e.heldBy(key, second))
	e.mustComplete(key, second.Token, text("second"))
	e.wantResult(key, text("second"))
}

func staleAfterCompletion(e *env) {
	key := e.key()
	first := e.fresh(e.shortly(key))
	a := e.claimAfter(e.short, e.request(key), semel.InFlight)
	e.mustComplete(key, a.Claim.Token, text("good"))
	e.wantAllStale(key, first.Token, func(string) { e.Helper(); e.wantResult(key, text("good")) })

	// The holder itself cannot revert its completion.
	e.wantStale("release", key, a.Claim.Token, e.release(semel.ReleaseRequest{Key: key, Token: a.Claim.Token}))
	e.wantStale("extend", key, a.Claim.Token, e.extend(key, a.Claim.Token, e.lease).Err)
	e.wantResult(key, text("good"))

	// A key that was completed by a Done claim has no holder.
	key = e.key()
	req := e.request(key)
	req.Done = true
	e.fresh(req)
	for _, token := range []semel.Token{0, 1, 1 << 62, 1 << 63, 1<<64 - 1} {
		err := e.complete(key, token, text("stale"), e.window)
		e.wantStale("complete", key, token, err)
		var stale *semel.StaleTokenError
		if errors.As(err, &stale) && (stale.State != semel.Done || stale.Current != 0) {
			e.Errorf("of a key that was done in one step the error shows %s under %d, want done under none", stale.State, stale.Current)
		}
	}
	if record, ok := e.look(key); ok && (record.State != semel.Done || record.Token != 0 || record.Attempt > 1) {
		e.Errorf("a key that was done in one step is shown as %+v, want done without a token", record)
	}
	e.wantResult(key, semel.Result{})
}

func staleWhereAbsent(e *env) {
	key := e.key()
	absent := func(string) {}
	e.wantAllStale(key, 1, absent)
	e.wantAllStale(key, 1<<62, absent)
	if c := e.fresh(e.request(key)); c.Attempt != 1 {
		e.Errorf("after stale calls the first claim has attempt %d, want 1", c.Attempt)
	}
	// The same applies after the key was claimed and released.
	key = e.key()
	c := e.fresh(e.request(key))
	e.mustRelease(key, c.Token)
	e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("stale"), e.window))
	e.wantStale("extend", key, c.Token, e.extend(key, c.Token, e.lease).Err)
	e.fresh(e.request(key))
}

func staleFromOtherKey(e *env) {
	a, b := e.key(), e.key()
	ca, cb := e.fresh(e.request(a)), e.fresh(e.request(b))
	if ca.Token == cb.Token {
		// Tokens fence one key. Two keys may have equal tokens.
		e.mustComplete(b, ca.Token, text("b"))
		e.want(semel.InFlight, e.request(a))
		return
	}
	e.wantAllStale(b, ca.Token, e.heldBy(b, cb))
	e.wantAllStale(a, cb.Token, e.heldBy(a, ca))
}

func repeatedCompletion(e *env) {
	key := e.key()
	c := e.fresh(e.request(key))
	for range 3 {
		e.mustComplete(key, c.Token, text("r"))
		e.wantResult(key, text("r"))
	}
	// The same in one call.
	key = e.key()
	c = e.fresh(e.request(key))
	req := semel.CompleteRequest{Key: key, Token: c.Token, Result: text("r"), Window: e.window}
	answers := make([]error, 3)
	if err := e.store.Complete(e.Context(), []semel.CompleteRequest{req, req, req}, answers); err != nil {
		e.Fatalf("complete: %v", err)
	}
	for i, err := range answers {
		if err != nil {
			e.Errorf("completion %d of three equal ones in a call: %v", i, err)
		}
	}
	e.wantResult(key, text("r"))
}

func repeatedRelease(e *env) {
	key := e.key()
	first := e.fresh(e.request(key))
	e.mustRelease(key, first.Token)
	// There is nothing left to recognise, so a stale token is a correct answer
	// as well.
	if err := e.release(semel.ReleaseRequest{Key: key, Token: first.Token}); err != nil {
		e.wantStale("release", key, first.Token, err)
	}
	second := e.fresh(e.request(key))
	if second.Token == first.Token {
		e.Fatalf("token %d was granted again", first.Token)
	}
	e.wantStale("release", key, first.Token, e.release(semel.ReleaseRequest{Key: key, Token: first.Token}))
	e.heldBy(key, second)("release")
}
