package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

var traitCases = []testCase{
	{"traits are consistent and constant", traitsAreConsistent},
	{"completions survive if and only if durable", durable},
	{"windows continue after a reopen", windowOverReopen},
	{"holds survive if and only if durable", holdsSurvive},
	{"claims without hold survive if and only if claims are durable", claimsSurvive},
	{"tokens only grow, also over a reopen", fenced},
	{"a second open store has the same records if and only if shared", shared},
	{"transactions are atomic if and only if transactional", transactional},
	{"keys are distinguished if and only if exact", exact},
	{"a record has the origin of the claim that took effect if and only if origins are kept", origins},
}

func traitsAreConsistent(e *env) {
	t := e.traits
	if (t.PowerSafe || t.DurableClaims) && !t.Durable {
		e.Errorf("the traits say PowerSafe: %t, DurableClaims: %t, and not Durable", t.PowerSafe, t.DurableClaims)
	}
	if t.Tick < 0 || t.MaxResult < 0 {
		e.Errorf("the traits have a negative Tick %v or MaxResult %d", t.Tick, t.MaxResult)
	}
	if t.Transactional != (e.harness.Transact != nil) {
		e.Errorf("the traits say Transactional: %t; Harness.Transact is set: %t", t.Transactional, e.harness.Transact != nil)
	}
	if t.Exact == (e.harness.Collide != nil) {
		e.Errorf("the traits say Exact: %t; Harness.Collide is set: %t", t.Exact, e.harness.Collide != nil)
	}
	e.done(e.key(), text("r"))
	e.reopen()
	if again := e.inner.Traits(); again != t {
		e.Errorf("the traits were %+v and are %+v", t, again)
	}
}

func durable(e *env) {
	value, none, failed, large, oneStep, forever, payload := e.key(), e.key(), e.key(), e.key(), e.key(), e.key(), e.key()
	results := map[semel.Key]semel.Result{
		value: text("value"), none: {}, failed: {Kind: semel.Failed, Data: []byte("failed")},
		large: {Kind: semel.Value, Data: noise(e.largest(), 1)},
	}
	for key, result := range results {
		e.done(key, result)
	}
	req := e.request(oneStep)
	req.Done = true
	e.fresh(req)
	results[oneStep] = semel.Result{}
	c := e.fresh(e.request(forever))
	if err := e.complete(forever, c.Token, text("forever"), semel.Forever); err != nil {
		e.Fatalf("complete: %v", err)
	}
	results[forever] = text("forever")
	e.mustComplete(payload, e.fresh(e.with(payload, print('1'))).Token, text("p"))
	results[payload] = text("p")
	released := e.key()
	e.mustRelease(released, e.fresh(e.request(released)).Token)

	for range 3 {
		e.reopen()
		if !e.traits.Durable {
			for key := range results {
				e.fresh(e.request(key)) // it is gone, as the traits say
			}
			return
		}
		for key, result := range results {
			e.wantResult(key, result)
		}
		e.want(semel.Mismatch, e.with(payload, print('2')))
		e.want(semel.Duplicate, e.with(payload, print('1')))
		e.mustRelease(released, e.fresh(e.request(released)).Token)
		e.done(e.key(), text("and it goes on"))
	}
	if r, ok := e.inner.(semel.Resolver); ok {
		if was, err := r.Remove(context.Background(), value); err != nil || !was {
			e.Errorf("remove: %t, %v", was, err)
		}
		e.reopen()
		e.fresh(e.request(value))
		e.wantResult(failed, results[failed])
	}
}

func windowOverReopen(e *env) {
	if !e.movable() || !e.traits.Durable {
		forgottenBeginsAnew(e)
		return
	}
	short, long := e.key(), e.key()
	e.done(short, text("short"))
	c := e.fresh(e.request(long))
	if err := e.complete(long, c.Token, text("long"), 3*e.window); err != nil {
		e.Fatalf("complete: %v", err)
	}
	e.advance(e.window / 2)
	e.reopen()
	e.want(semel.Duplicate, e.request(short))
	e.advance(e.window/2 - time.Second)
	e.reopen()
	e.want(semel.Duplicate, e.request(short))
	e.advance(time.Second + e.traits.Tick)
	e.reopen()
	e.wantResult(long, text("long"))
	again := e.fresh(e.request(short))
	e.mustComplete(short, again.Token, text("again"))
	e.purge()
	e.reopen()
	e.wantResult(short, text("again"))
	e.wantResult(long, text("long"))
}

func holdsSurvive(e *env) {
	lost, late, unknown, done, released := e.key(), e.key(), e.key(), e.key(), e.key()
	e.fresh(e.held(lost))
	c := e.fresh(e.held(late))
	e.unknown(unknown)
	e.mustComplete(done, e.fresh(e.held(done)).Token, text("in time"))
	e.mustRelease(released, e.fresh(e.held(released)).Token)
	e.reopen()
	if !e.traits.Durable {
		for _, key := range []semel.Key{lost, late, unknown, done, released} {
			e.fresh(e.request(key))
		}
		return
	}
	for range 2 {
		if a := e.claimAfter(e.short, e.request(lost), semel.InFlight); a.Decision != semel.OutcomeUnknown {
			e.Errorf("a held key is %s after a reopen and its lease, want unknown", a.Decision)
		}
		e.want(semel.OutcomeUnknown, e.request(unknown))
		e.wantResult(done, text("in time"))
		e.reopen()
	}
	e.mustComplete(late, c.Token, text("late"))
	e.wantResult(late, text("late"))
	again := e.fresh(e.request(released))
	e.mustComplete(released, again.Token, text("again"))
	e.reopen()
	e.wantResult(late, text("late"))
	e.wantResult(released, text("again"))
}

// claimsSurvive leaves claims without Hold in each state to the next process, and one with Hold.
func claimsSurvive(e *env) {
	running, extended, shortened, released, taken := e.request(e.key()), e.shortly(e.key()), e.request(e.key()), e.request(e.key()), e.shortly(e.key())
	onHold := e.held(e.key())
	onHold.Lease = e.lease / 2 // if it ended before it is extended, the key would be unknown
	held := map[semel.Key]semel.Claim{}
	for _, req := range []semel.ClaimRequest{running, extended, shortened, released, taken, onHold} {
		held[req.Key] = e.fresh(req)
	}
	extend := func(key semel.Key, lease time.Duration) {
		c := held[key]
		if a := e.extend(key, c.Token, lease); a.Err == nil {
			c.LeaseEnd = a.LeaseEnd
		}
		held[key] = c
	}
	extend(extended.Key, e.lease)
	extend(shortened.Key, e.short)
	extend(onHold.Key, e.lease)
	e.mustRelease(released.Key, held[released.Key].Token)
	if e.clock != nil && e.traits.DurableClaims {
		e.Log("the clock steps back an hour while the store is closed: its leases end no later for that")
		e.clock.Advance(-time.Hour) // no lease ends early because the clock steps back
	}
	e.reopen()
	if !e.traits.DurableClaims {
		for key, c := range held {
			if key == onHold.Key {
				continue // see holdsSurvive
			}
			e.fresh(e.request(key))
			e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("late"), e.window))
		}
		return
	}
	e.heldBy(running.Key, held[running.Key])("reopen")
	if c := e.fresh(running); c.Token != held[running.Key].Token || c.Attempt != 1 {
		e.Errorf("the owner who repeats a claim after a reopen gets %+v, want %+v", c, held[running.Key])
	}
	if c := e.fresh(e.request(released.Key)); c.Attempt != 1 {
		e.Errorf("a key that was released before a reopen has attempt %d, want 1", c.Attempt)
	}
	e.heldBy(onHold.Key, held[onHold.Key])("reopen")
	a := e.claimAfter(e.short, e.request(taken.Key), semel.InFlight)
	if old := held[taken.Key]; a.Decision != semel.Fresh || a.Claim.Attempt != 2 || a.Claim.Token <= old.Token {
		e.Fatalf("after a reopen and the end of the lease of %+v, a claim is %s with %+v", old, a.Decision, a.Claim)
	}
	e.reopen()
	e.wantAllStale(taken.Key, held[taken.Key].Token, e.heldBy(taken.Key, a.Claim))
	e.heldBy(extended.Key, held[extended.Key])("end of the lease before the extension")
	if a := e.claimAfter(e.short, e.request(shortened.Key), semel.InFlight); a.Decision != semel.Fresh {
		e.Errorf("a lease that was shortened before a reopen does not end: the key is %s", a.Decision)
	}
	e.heldBy(onHold.Key, held[onHold.Key])("end of the lease before the extension")
	extend(extended.Key, e.short)
	extend(onHold.Key, e.short)
	e.mustComplete(running.Key, held[running.Key].Token, text("by the old token"))
	e.mustRelease(taken.Key, a.Claim.Token)
	e.reopen()
	e.wantResult(running.Key, text("by the old token"))
	e.fresh(e.request(taken.Key))
	if a := e.claimAfter(e.short, e.request(extended.Key), semel.InFlight); a.Decision != semel.Fresh {
		e.Errorf("a lease of an earlier process does not end: the key is %s", a.Decision)
	}
	if a := e.claimAfter(e.short, e.request(onHold.Key), semel.InFlight); a.Decision != semel.OutcomeUnknown {
		e.Errorf("a lease with hold of an earlier process does not end: the key is %s", a.Decision)
	}
}

// fenced tries everything that can end a claim. It checks that each later token
// is higher.
func fenced(e *env) {
	key := e.key()
	var last semel.Token
	next := func(how string, a semel.ClaimAnswer) semel.Token {
		e.Helper()
		if a.Decision != semel.Fresh {
			e.Fatalf("after %s the key is %s, want fresh", how, a.Decision)
		}
		if a.Claim.Token <= last {
			e.Errorf("after %s token %d follows %d: tokens of a key must grow, so that a target can refuse the holder of an older one", how, a.Claim.Token, last)
		}
		last = a.Claim.Token
		return last
	}
	next("nothing", e.claim(e.shortly(key)))
	next("the lease's end", e.claimAfter(e.short, e.request(key), semel.InFlight))
	e.mustRelease(key, last)
	token := next("release", e.claim(e.request(key)))
	window := e.window
	if !e.movable() {
		window = e.short
	}
	if err := e.complete(key, token, text("r"), window); err != nil {
		e.Fatalf("complete: %v", err)
	}
	token = next("the window's end", e.claimAfter(window+e.traits.Tick, e.request(key), semel.Duplicate))
	for range 3 {
		e.mustRelease(key, token)
		e.purge()
		e.reopen()
		token = next("a reopen", e.claim(e.shortly(key)))
	}
	// The token of a claim that was lost with its process must not be issued
	// again, now or later.
	for range 3 {
		e.reopen()
		next("a reopen in the middle of a claim", e.claimAfter(e.short, e.shortly(key), semel.InFlight))
	}
}

func shared(e *env) {
	done, held := e.key(), e.key()
	e.done(done, text("r"))
	c := e.fresh(e.request(held))
	second, err := e.open()
	if err != nil {
		if e.traits.Shared {
			e.Fatalf("the traits say Shared, but a second opener is refused: %v", err)
		}
		if class := semel.Classify(err); class != semel.ClassRetryable {
			e.Errorf("a second opener is refused with an error of class %s (%v), want %s: nothing was changed, and later it may be let in", class, err, semel.ClassRetryable)
		}
		e.wantResult(done, text("r")) // the first store still works
		e.mustComplete(held, c.Token, text("held"))
		return
	}
	e.Cleanup(func() {
		if err := closeStore(second); err != nil {
			e.Errorf("close the second store: %v", err)
		}
	})
	first := e.store
	if !e.traits.Shared {
		if e.traits.Durable {
			e.Errorf("the traits say Durable and not Shared, but a second opener is let in")
		}
		e.store = newLedger(e.TB)
		e.store.use(second)
		e.fresh(e.request(done)) // two stores that share nothing
		return
	}
	both := [2]semel.Store{e.inner, second}
	first.use(second)
	e.wantResult(done, text("r"))
	e.heldBy(held, c)("second opening")
	e.mustComplete(held, c.Token, text("across"))
	first.use(both[0])
	e.wantResult(held, text("across"))
	for range 50 {
		key := e.key()
		var winners atomic.Int32
		inParallel(8, func(i int) {
			answers := make([]semel.ClaimAnswer, 1)
			if err := both[i%2].Claim(context.Background(), []semel.ClaimRequest{e.request(key)}, answers); err != nil {
				e.Errorf("claim: %v", err)
			}
			if answers[0].Decision == semel.Fresh {
				winners.Add(1)
			}
		})
		if n := winners.Load(); n != 1 {
			e.Fatalf("%d racers of two openers won %s, want 1", n, key)
		}
	}
}

func transactional(e *env) {
	if e.harness.Transact == nil {
		traitsAreConsistent(e)
		return
	}
	var reqs []semel.ClaimRequest
	transact := func(commit bool) []semel.ClaimAnswer {
		e.Helper()
		answers := make([]semel.ClaimAnswer, len(reqs))
		for i := range reqs {
			reqs[i].Owner = e.owner("transaction")
		}
		if err := e.harness.Transact(e.Context(), e.inner, reqs, answers, commit); err != nil {
			e.Fatalf("transact (commit: %t): %v", commit, err)
		}
		return answers
	}
	seen, twice := e.key(), e.key()
	e.done(seen, text("r"))
	for _, key := range []semel.Key{e.key(), seen, twice, twice, e.key()} {
		req := e.request(key)
		req.Done = true
		reqs = append(reqs, req)
	}
	want := []semel.Decision{semel.Fresh, semel.Duplicate, semel.Fresh, semel.Duplicate, semel.Fresh}
	e.wantDecisions(transact(false), want...)
	e.wantDecisions(transact(false), want...) // the first transaction left nothing
	e.wantDecisions(transact(true), want...)
	for _, key := range []semel.Key{reqs[0].Key, twice, reqs[4].Key} {
		e.store.resolving(key, semel.Result{})
	}
	// A committed transaction has had its effect: its claims do not recognise
	// themselves.
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := e.harness.Transact(e.Context(), e.inner, reqs, answers, true); err != nil {
		e.Fatalf("transact again: %v", err)
	}
	e.wantDecisions(answers, semel.Duplicate, semel.Duplicate, semel.Duplicate, semel.Duplicate, semel.Duplicate)
	e.wantDecisions(e.claims(reqs...), semel.Duplicate, semel.Duplicate, semel.Duplicate, semel.Duplicate, semel.Duplicate)
	for range 2 {
		e.wantDecisions(transact(true), semel.Duplicate, semel.Duplicate, semel.Duplicate, semel.Duplicate, semel.Duplicate)
		for _, req := range reqs {
			e.want(semel.Duplicate, e.request(req.Key))
		}
		if !e.traits.Durable {
			return
		}
		e.reopen()
	}
}

func exact(e *env) {
	if !e.traits.Exact {
		if e.harness.Collide == nil {
			e.Fatalf("the traits say not Exact: Harness.Collide must show two keys taken for one")
		}
		first, second := e.harness.Collide(e.inner)
		e.done(first, text("of the first"))
		answers := make([]semel.ClaimAnswer, 1)
		if err := e.inner.Claim(e.Context(), []semel.ClaimRequest{e.request(second)}, answers); err != nil {
			e.Fatalf("claim: %v", err)
		}
		if d := answers[0].Decision; first == second || d != semel.Duplicate {
			e.Errorf("the traits say not Exact, but after %s is done %s is %s", first, second, d)
		}
		return
	}
	// There are three times as many pairs of keys as 32-bit numbers, so a
	// 32-bit digest would confuse some of them. With go test -short it takes
	// some suites to detect that.
	const batch = 4096
	batches := 40
	if testing.Short() {
		batches = 6
	}
	reqs := make([]semel.ClaimRequest, batch)
	answers := make([]semel.ClaimAnswer, batch)
	for b := range batches {
		for i := range reqs {
			reqs[i] = e.request(semel.Key{Scope: "exact", ID: fmt.Sprintf("%d-%d", b, i)})
			reqs[i].Done = true
			answers[i] = semel.ClaimAnswer{}
		}
		if err := e.inner.Claim(e.Context(), reqs, answers); err != nil {
			e.Fatalf("claim: %v", err)
		}
		for i, a := range answers {
			if a.Decision != semel.Fresh {
				e.Fatalf("%s is %s (%v), but it is a new key", reqs[i].Key, a.Decision, a.Err)
			}
		}
	}
}

func origins(e *env) {
	from := func(req semel.ClaimRequest, origin string) semel.ClaimRequest { req.Origin = origin; return req }
	longest := strings.Repeat("o", semel.MaxOriginBytes)
	want := make(map[semel.Key]string)
	check := func(when string) {
		e.Helper()
		for key, origin := range want {
			if r, ok := e.look(key); ok && (r.State == semel.Absent || e.traits.Origins && r.Origin != origin || !e.traits.Origins && r.Origin != "") {
				e.Errorf("%s, %s is %s from %q; its delivery came from %q", when, key, r.State, r.Origin, origin)
			}
		}
	}
	var reqs []semel.ClaimRequest
	for i, origin := range []string{"orders 2/17 by host:1", "", longest, "\xff\x00'", "done", "held", "transacted"} {
		req := from(e.request(e.key()), origin)
		req.Done, req.Hold = i == 4, i == 5
		want[req.Key] = origin
		reqs = append(reqs, req)
	}
	last, answers := reqs[6:], make([]semel.ClaimAnswer, len(reqs))
	if e.harness.Transact == nil {
		e.fresh(last[0])
	} else if last[0].Done = true; e.harness.Transact(e.Context(), e.inner, last, answers[6:], true) != nil || answers[6].Decision != semel.Fresh {
		e.Fatalf("a new key in a transaction is answered %+v", answers[6])
	}
	reqs[6] = from(e.request(e.key()), longest+"o")
	if err := e.store.Claim(e.Context(), reqs, answers); err != nil || !errors.Is(answers[6].Err, semel.ErrInvalidRequest) {
		e.Fatalf("an origin of %d bytes is answered %v, %v", len(longest)+1, answers[6].Err, err)
	}
	e.want(semel.InFlight, from(e.request(reqs[0].Key), "another delivery"))
	check("once claimed")
	for i, req := range reqs[:4] {
		e.mustComplete(req.Key, answers[i].Claim.Token, semel.Result{Kind: semel.Value, Data: make([]byte, i)})
	}
	e.want(semel.Duplicate, from(e.request(reqs[0].Key), "another delivery"))
	for origin, key := range map[string]semel.Key{"second": e.key(), "": e.key()} {
		e.fresh(from(e.shortly(key), "first"))
		taken := e.claimAfter(e.short, from(e.request(key), origin), semel.InFlight)
		e.mustComplete(key, taken.Claim.Token, semel.Result{})
		want[key] = origin
	}
	check("once completed")
	if e.traits.Durable {
		e.reopen()
		check("after a reopen")
	}
	if l, ok := e.inner.(semel.Inspector); ok {
		for r, err := range l.List(e.Context(), semel.ListOptions{State: semel.Done}) {
			if err != nil || r.Key.ID != "" && r.Origin != want[r.Key] && e.traits.Origins {
				e.Errorf("a list shows %s from %q, %v", r.Key, r.Origin, err)
			}
		}
	}
}
