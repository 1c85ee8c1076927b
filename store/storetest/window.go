package storetest

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

var windowCases = []testCase{
	{"a key is remembered for its window and forgotten a tick later", windowEdges},
	{"a key kept forever does not expire", foreverStays},
	{"windows of one store are independent", windowsAreIndependent},
	{"a forgotten key starts again", forgottenBeginsAnew},
	{"purge under load forgets no live key", purgeUnderLoad},
}

func windowEdges(e *env) {
	if !e.movable() {
		windowElapses(e)
		return
	}
	for _, window := range []time.Duration{e.window, e.window + 1, e.window + time.Millisecond/3, 30 * e.window} {
		for _, oneStep := range []bool{false, true} {
			key := e.key()
			if oneStep {
				req := e.request(key)
				req.Done, req.Window = true, window
				e.fresh(req)
			} else {
				c := e.fresh(e.request(key))
				if err := e.complete(key, c.Token, text("r"), window); err != nil {
					e.Fatalf("complete: %v", err)
				}
			}
			e.advance(window - 1)
			if a := e.claim(e.request(key)); a.Decision != semel.Duplicate {
				e.Fatalf("1ns before its window of %v ends the key is %s (done in one step: %t)", window, a.Decision, oneStep)
			}
			e.advance(1 + e.traits.Tick)
			if a := e.claim(e.request(key)); a.Decision != semel.Fresh {
				e.Fatalf("a tick after its window of %v the key is %s (done in one step: %t)", window, a.Decision, oneStep)
			}
		}
	}
}

// windowElapses is windowEdges for a clock that cannot be set.
func windowElapses(e *env) {
	key := e.key()
	c := e.fresh(e.request(key))
	before := time.Now()
	if err := e.complete(key, c.Token, text("r"), e.short); err != nil {
		e.Fatalf("complete: %v", err)
	}
	a := e.claimAfter(e.short+e.traits.Tick, e.request(key), semel.Duplicate)
	if took := time.Since(before); took < e.short-slack {
		e.Errorf("a window of %v ended after %v", e.short, took)
	}
	if a.Decision != semel.Fresh {
		e.Errorf("after its window the key is %s, want fresh", a.Decision)
	}
}

func foreverStays(e *env) {
	key, inOneStep := e.key(), e.key()
	c := e.fresh(e.request(key))
	if err := e.complete(key, c.Token, text("r"), semel.Forever); err != nil {
		e.Fatalf("complete: %v", err)
	}
	req := e.request(inOneStep)
	req.Done, req.Window = true, semel.Forever
	e.fresh(req)
	switch e.harness.Time {
	case Injected:
		e.advance(50 * 365 * 24 * time.Hour)
	case Bubble: // a longer step would run the store's own timers too often
		e.advance(1000 * e.window)
	}
	e.purge()
	e.wantResult(key, text("r"))
	e.wantResult(inOneStep, semel.Result{})
}

func windowsAreIndependent(e *env) {
	if !e.movable() {
		long := e.key()
		e.done(long, text("long"))
		windowElapses(e)
		e.wantResult(long, text("long"))
		return
	}
	// Ten keys whose windows do not end in the order of their completion.
	type entry struct {
		key semel.Key
		end time.Time
	}
	var entries []entry
	for i := range 10 {
		key := e.key()
		window := time.Duration((i*7)%10+1) * e.window
		c := e.fresh(e.request(key))
		if err := e.complete(key, c.Token, text("r"), window); err != nil {
			e.Fatalf("complete: %v", err)
		}
		entries = append(entries, entry{key, e.now().Add(window)})
	}
	for range 12 {
		e.purge()
		for _, x := range entries {
			if e.now().Before(x.end) {
				e.want(semel.Duplicate, e.request(x.key))
			} else if e.now().After(x.end.Add(e.traits.Tick)) {
				c := e.fresh(e.request(x.key))
				e.mustRelease(x.key, c.Token)
			}
		}
		e.advance(e.window)
	}
}

func forgottenBeginsAnew(e *env) {
	key := e.key()
	window := e.window
	if !e.movable() {
		window = e.short
	}
	req := e.request(key)
	req.Fingerprint = print('1')
	c := e.fresh(req)
	if err := e.complete(key, c.Token, text("first"), window); err != nil {
		e.Fatalf("complete: %v", err)
	}
	again := e.request(key)
	again.Fingerprint = print('2')
	a := e.claimAfter(window+e.traits.Tick, again, semel.Mismatch)
	if a.Decision != semel.Fresh || a.Claim.Attempt != 1 || a.Claim.Token <= c.Token {
		e.Errorf("a forgotten key is %s with %+v, want fresh, attempt 1 and a token above %d", a.Decision, a.Claim, c.Token)
	}
	// A token from the first life is stale in the second.
	if a.Claim.Token != c.Token {
		e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("first"), e.window))
	}
	e.mustComplete(key, a.Claim.Token, text("second"))
	e.wantResult(key, text("second"))
}

func purgeUnderLoad(e *env) {
	const workers = 8
	rounds := times(60)
	var live, claimed [workers][]semel.Key
	ended := make(chan struct{})
	purged := make(chan struct{})
	go func() {
		defer close(purged)
		p, ok := e.inner.(semel.Purger)
		for ok {
			select {
			case <-ended:
				return
			default:
				if _, err := p.Purge(context.Background()); err != nil {
					e.Errorf("purge: %v", err)
					return
				}
			}
		}
	}()
	inParallel(workers, func(w int) {
		for i := range rounds {
			kept, short, held := e.key(), e.key(), e.key()
			answers := make([]semel.ClaimAnswer, 3)
			err := e.store.Claim(context.Background(), []semel.ClaimRequest{e.request(kept), e.request(short), e.request(held)}, answers)
			if err != nil {
				e.Errorf("claim under load: %v", err)
				return
			}
			errs := make([]error, 2)
			err = e.store.Complete(context.Background(), []semel.CompleteRequest{
				{Key: kept, Token: answers[0].Claim.Token, Result: text(kept.ID), Window: e.window},
				{Key: short, Token: answers[1].Claim.Token, Result: text(short.ID), Window: time.Millisecond},
			}, errs)
			if err != nil || errs[0] != nil || errs[1] != nil {
				e.Errorf("complete under load: %v, %v", err, errs)
				return
			}
			live[w], claimed[w] = append(live[w], kept), append(claimed[w], held)
			if w == 0 && e.clock != nil && i%4 == 0 {
				e.clock.Advance(slack)
			}
		}
	})
	close(ended)
	<-purged
	for w := range workers {
		for i, key := range live[w] {
			e.wantResult(key, text(key.ID))
			e.want(semel.InFlight, e.request(claimed[w][i]))
		}
	}
}
