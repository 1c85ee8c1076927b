package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// env is the environment of a case: a store behind a ledger that checks each of
// its answers, and the store's clock.
type env struct {
	testing.TB
	harness Harness
	clock   *clock // nil unless Time is Injected
	open    func() (semel.Store, error)
	inner   semel.Store // the store under test itself, for its abilities
	store   *ledger
	traits  semel.Traits

	// lease and window do not end unless a case moves the clock. A case waits
	// until short ends.
	lease, window, short time.Duration

	keys   atomic.Int64
	nonces atomic.Uint64
}

// slack is the permitted rounding of a lease. The suite adds it to each wait.
const slack = time.Millisecond

// patience is how long the suite waits for an event with a real clock. Only a
// hanging store reaches it.
const patience = 2 * time.Minute

func newEnv(tb testing.TB, h Harness) *env {
	tb.Helper()
	e := &env{TB: tb, harness: h, lease: time.Minute, short: 10 * time.Second}
	now := time.Now
	switch h.Time {
	case Injected:
		e.clock = newClock()
		now = e.clock.Now
	case Wall:
		e.lease, e.short = 30*time.Minute, 250*time.Millisecond
	}
	e.nonces.Store(rand.Uint64()) // a server may remember the nonces of an earlier run
	e.open = h.New(tb, now)
	e.store = newLedger(tb)
	e.inner = e.mustOpen()
	e.traits = e.inner.Traits()
	e.store.use(e.inner)
	// A window is longer than any wait of the cases, even with a coarse
	// resolution.
	e.window = time.Hour + 4*e.traits.Tick
	return e
}

// mustOpen opens the store and closes it when the test ends.
func (e *env) mustOpen() semel.Store {
	e.Helper()
	store, err := e.open()
	if err != nil {
		e.Fatalf("open the store: %v", err)
	}
	e.Cleanup(func() {
		if err := closeStore(store); err != nil && !errors.Is(err, semel.ErrClosed) {
			e.Errorf("close the store: %v", err)
		}
	})
	return store
}

// reopen closes the store and opens it in the same place.
func (e *env) reopen() {
	e.Helper()
	if err := closeStore(e.inner); err != nil {
		e.Fatalf("close the store: %v", err)
	}
	e.store.reopened(e.traits)
	if e.movable() {
		e.advance(slack) // starting a process takes time
	}
	e.inner = e.mustOpen()
	e.store.use(e.inner)
}

// closeStore closes a store that implements io.Closer.
func closeStore(store semel.Store) error {
	if c, ok := store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// now returns the store's time, as far as the suite knows it.
func (e *env) now() time.Time {
	if e.clock != nil {
		return e.clock.Now()
	}
	return time.Now()
}

// times returns how often a case repeats an attempt. With go test -short it is
// a third of n.
func times(n int) int {
	if testing.Short() {
		return n / 3
	}
	return n
}

// movable reports whether the case can set the store's time exactly.
func (e *env) movable() bool { return e.harness.Time != Wall }

// advance advances a movable clock.
func (e *env) advance(d time.Duration) {
	if e.clock != nil {
		e.clock.Advance(d)
		return
	}
	time.Sleep(d) // in a bubble
}

// after waits for d and then checks cond. If the clock is not movable, it polls
// cond, so cond must not change the state that it checks.
func (e *env) after(d time.Duration, what string, cond func() bool) {
	e.Helper()
	if e.movable() {
		e.advance(d + slack)
		if !cond() {
			e.Fatalf("%v later it does not hold that %s", d, what)
		}
		return
	}
	deadline := time.Now().Add(d + patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			e.Fatalf("for %v it does not hold that %s", d+patience, what)
		}
		<-tick.C
	}
}

// claimAfter waits for a lease or window of d. It returns the first answer to
// the claim whose decision is not waiting.
func (e *env) claimAfter(d time.Duration, req semel.ClaimRequest, waiting semel.Decision) semel.ClaimAnswer {
	e.Helper()
	var a semel.ClaimAnswer
	e.after(d, fmt.Sprintf("the answer is no longer %s", waiting), func() bool {
		a = e.claim(req)
		return a.Decision != waiting
	})
	return a
}

// key returns a key that this test has not used before.
func (e *env) key() semel.Key {
	return semel.Key{Scope: "storetest", ID: fmt.Sprintf("key-%06d", e.keys.Add(1))}
}

// owner returns a unique owner.
func (e *env) owner(name string) semel.Owner {
	return semel.Owner{Name: name, Nonce: e.nonces.Add(1)}
}

// request returns a claim request for a key by a new owner.
func (e *env) request(key semel.Key) semel.ClaimRequest {
	return semel.ClaimRequest{Key: key, Owner: e.owner("worker"), Lease: e.lease, Window: e.window}
}

// shortly returns a claim request with a lease that the case waits for.
func (e *env) shortly(key semel.Key) semel.ClaimRequest {
	req := e.request(key)
	req.Lease = e.short
	return req
}

// claim makes one claim, which must be answered.
func (e *env) claim(req semel.ClaimRequest) semel.ClaimAnswer {
	e.Helper()
	answers := make([]semel.ClaimAnswer, 1)
	err := e.store.Claim(context.Background(), []semel.ClaimRequest{req}, answers)
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		e.Fatalf("claim %s: %v", req.Key, err)
	}
	return answers[0]
}

// want makes one claim and checks the decision.
func (e *env) want(decision semel.Decision, req semel.ClaimRequest) semel.ClaimAnswer {
	e.Helper()
	a := e.claim(req)
	if a.Decision != decision {
		e.Fatalf("claim of %s is answered %s, want %s", req.Key, a.Decision, decision)
	}
	return a
}

// fresh makes one claim, which must be granted.
func (e *env) fresh(req semel.ClaimRequest) semel.Claim {
	e.Helper()
	return e.want(semel.Fresh, req).Claim
}

// wantResult checks that the key is a duplicate with this result.
func (e *env) wantResult(key semel.Key, want semel.Result) {
	e.Helper()
	a := e.want(semel.Duplicate, e.request(key))
	if !e.sameResult(a.Result, want) {
		e.Fatalf("the result of %s is %s, want %s", key, describe(a.Result), describe(want))
	}
}

// sameResult compares results as far as the store keeps them.
func (e *env) sameResult(got, want semel.Result) bool {
	if e.traits.Results {
		return equalResults(got, want)
	}
	return len(got.Data) == 0 && (got.Kind == semel.NoResult || got.Kind == semel.NotKept)
}

// sameClaim compares claims; times compare as instants.
func sameClaim(a, b semel.Claim) bool {
	return a.Token == b.Token && a.Attempt == b.Attempt && a.LeaseEnd.Equal(b.LeaseEnd)
}

func equalResults(a, b semel.Result) bool {
	return a.Kind == b.Kind && string(a.Data) == string(b.Data)
}

func describe(r semel.Result) string {
	kinds := [...]string{"none", "value", "failed", "not kept"}
	kind := "invalid"
	if int(r.Kind) < len(kinds) {
		kind = kinds[r.Kind]
	}
	if len(r.Data) > 32 {
		return fmt.Sprintf("%s %q… (%d bytes)", kind, r.Data[:32], len(r.Data))
	}
	return fmt.Sprintf("%s %q", kind, r.Data)
}

// text returns a result with the text s.
func text(s string) semel.Result { return semel.Result{Kind: semel.Value, Data: []byte(s)} }

// complete completes one key and returns its answer.
func (e *env) complete(key semel.Key, token semel.Token, result semel.Result, window time.Duration) error {
	e.Helper()
	answers := make([]error, 1)
	req := semel.CompleteRequest{Key: key, Token: token, Result: result, Window: window}
	if err := e.store.Complete(context.Background(), []semel.CompleteRequest{req}, answers); err != nil {
		e.Fatalf("complete %s: %v", key, err)
	}
	return answers[0]
}

// mustComplete completes one key with the usual window.
func (e *env) mustComplete(key semel.Key, token semel.Token, result semel.Result) {
	e.Helper()
	if err := e.complete(key, token, result, e.window); err != nil {
		e.Fatalf("complete %s: %v", key, err)
	}
}

// done claims and completes a key.
func (e *env) done(key semel.Key, result semel.Result) semel.Token {
	e.Helper()
	c := e.fresh(e.request(key))
	e.mustComplete(key, c.Token, result)
	return c.Token
}

// release releases one claim and returns the answer.
func (e *env) release(req semel.ReleaseRequest) error {
	e.Helper()
	answers := make([]error, 1)
	if err := e.store.Release(context.Background(), []semel.ReleaseRequest{req}, answers); err != nil {
		e.Fatalf("release %s: %v", req.Key, err)
	}
	return answers[0]
}

// mustRelease releases one claim.
func (e *env) mustRelease(key semel.Key, token semel.Token) {
	e.Helper()
	if err := e.release(semel.ReleaseRequest{Key: key, Token: token}); err != nil {
		e.Fatalf("release %s: %v", key, err)
	}
}

// extend extends one lease and returns its answer.
func (e *env) extend(key semel.Key, token semel.Token, lease time.Duration) semel.ExtendAnswer {
	e.Helper()
	answers := make([]semel.ExtendAnswer, 1)
	req := semel.ExtendRequest{Key: key, Token: token, Lease: lease}
	if err := e.store.Extend(context.Background(), []semel.ExtendRequest{req}, answers); err != nil {
		e.Fatalf("extend %s: %v", key, err)
	}
	return answers[0]
}

// wantStale checks for the error of a token that does not hold the key.
func (e *env) wantStale(verb string, key semel.Key, token semel.Token, err error) {
	e.Helper()
	var stale *semel.StaleTokenError
	switch {
	case !errors.As(err, &stale):
		e.Errorf("%s of %s with stale token %d is answered %v, want a *StaleTokenError", verb, key, token, err)
	case stale.Key != key || stale.Token != token:
		e.Errorf("%s of %s with stale token %d: the error names key %s and token %d", verb, key, token, stale.Key, stale.Token)
	}
}

// inParallel runs f(0) to f(n-1) concurrently and waits for all of them.
func inParallel(n int, f func(i int)) {
	var group sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		group.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	group.Wait()
}

// clock is a wall clock that the suite sets.
type clock struct {
	mu sync.Mutex // guards t
	t  time.Time
}

// newClock starts at an odd time, so that rounding is visible.
func newClock() *clock {
	return &clock{t: time.Date(2026, 3, 1, 12, 34, 56, 123456789, time.UTC)}
}

// Now returns the clock's time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

// Advance moves the clock by d, which may be negative.
func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}
