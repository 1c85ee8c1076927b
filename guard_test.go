package semel_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

// hooked is a store whose calls a test can replace.
type hooked struct {
	semel.Store
	claim    func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error
	complete func(context.Context, []semel.CompleteRequest, []error) error
	extend   func(context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error
}

func (h *hooked) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if h.claim != nil {
		return h.claim(ctx, reqs, answers)
	}
	return h.Store.Claim(ctx, reqs, answers)
}

func (h *hooked) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if h.complete != nil {
		return h.complete(ctx, reqs, answers)
	}
	return h.Store.Complete(ctx, reqs, answers)
}

func (h *hooked) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if h.extend != nil {
		return h.extend(ctx, reqs, answers)
	}
	return h.Store.Extend(ctx, reqs, answers)
}

// journal counts effects and collects events.
type journal struct {
	mu     sync.Mutex
	runs   int
	events []semel.Event
}

func (j *journal) Observe(e semel.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

func (j *journal) has(kind semel.EventKind) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.events {
		if e.Kind == kind {
			return true
		}
	}
	return false
}

func (j *journal) effect(result string) semel.Func {
	return func(context.Context, semel.Claim) ([]byte, error) {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.runs++
		return []byte(result), nil
	}
}

func newStore(t *testing.T, opts *memstore.Options) *memstore.Store {
	t.Helper()
	store, err := memstore.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func newGuard(t *testing.T, store semel.Store, opts semel.GuardOptions) *semel.Guard {
	t.Helper()
	g, err := semel.NewGuard(store, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

var orderKey = semel.Key{Scope: "orders", ID: "order-1"}

func TestDuplicateGetsTheStoredResultAndDoesNotRun(t *testing.T) {
	for name, result := range map[string][]byte{"text": []byte("receipt"), "empty": {}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
			runs := 0
			for i := range 3 {
				out, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) {
					runs++
					return result, nil
				})
				if err != nil {
					t.Fatal(err)
				}
				want := semel.Duplicate
				if i == 0 {
					want = semel.Fresh
				}
				if out.Decision != want || string(out.Result.Data) != string(result) || (out.Result.Kind == semel.NoResult) != (result == nil) {
					t.Errorf("delivery %d: got %v %v %q, want %v %q", i, out.Decision, out.Result.Kind, out.Result.Data, want, result)
				}
			}
			if runs != 1 {
				t.Errorf("the effect ran %d times", runs)
			}
		})
	}
}

func TestErrorReleasesTheKey(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	broken := errors.New("target is down")
	if _, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Fatalf("got %v, want the effect's error", err)
	}
	var j journal
	if out, err := g.Do(t.Context(), orderKey, j.effect("ok")); err != nil || out.Decision != semel.Fresh {
		t.Fatalf("after an error: got %v, %v, want fresh", out.Decision, err)
	}
}

func TestPermanentErrorIsNotRunAgain(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	for i := range 2 {
		_, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) {
			return nil, semel.Permanent(errors.New("card is expired"))
		})
		var permanent *semel.PermanentError
		if !errors.As(err, &permanent) || permanent.Replayed != (i == 1) || err.Error() != "card is expired" {
			t.Errorf("delivery %d: got %#v", i, err)
		}
	}
}

// TestPanicPropagatesAndReleasesOrHoldsTheKey: the effect may have happened. With ExpiryRetry, the
// next attempt gets the key immediately, and knows.
func TestPanicPropagatesAndReleasesOrHoldsTheKey(t *testing.T) {
	for policy, want := range map[semel.ExpiryPolicy]error{semel.ExpiryRetry: nil, semel.ExpiryHold: semel.ErrOutcomeUnknown} {
		store := newStore(t, nil)
		g := newGuard(t, store, semel.GuardOptions{OnLeaseExpired: policy, Wait: time.Minute})
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("policy %d: recovered %v", policy, got)
				}
			}()
			_, _ = g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { panic("boom") })
		}()
		var j journal
		if out, err := g.Do(t.Context(), orderKey, j.effect("")); !errors.Is(err, want) || want == nil && out.Attempt != 2 {
			t.Errorf("policy %d: the next attempt is number %d, %v, want %v", policy, out.Attempt, err, want)
		}
		if state := look(t, store, orderKey).State; want != nil && state != semel.Unknown {
			t.Errorf("policy %d: the record is %v", policy, state)
		}
	}
}

func look(t *testing.T, store semel.Inspector, key semel.Key) semel.Record {
	t.Helper()
	records := make([]semel.Record, 1)
	if err := store.Look(t.Context(), []semel.Key{key}, records); err != nil {
		t.Fatal(err)
	}
	return records[0]
}

func TestDoubtfulErrorHoldsTheKey(t *testing.T) {
	store := newStore(t, nil)
	g := newGuard(t, store, semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
	_, err := g.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
		return nil, context.DeadlineExceeded
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	var j journal
	if _, err := g.Do(t.Context(), orderKey, j.effect("")); !errors.Is(err, semel.ErrOutcomeUnknown) || j.runs != 0 {
		t.Fatalf("got %v after %d runs, want an unknown outcome and no run", err, j.runs)
	}
	if err := store.Resolve(t.Context(), semel.ResolveRequest{Key: orderKey, As: semel.Done, Result: semel.Result{Kind: semel.Value, Data: []byte("by hand")}, Window: time.Hour}); err != nil {
		t.Fatal(err)
	}
	out, err := g.Do(t.Context(), orderKey, j.effect(""))
	if err != nil || out.Decision != semel.Duplicate || string(out.Result.Data) != "by hand" {
		t.Fatalf("after the resolution: got %v %q, %v", out.Decision, out.Result.Data, err)
	}
}

func TestLostHolderIsRetriedWithAHigherAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, nil)
		// The first holder claims and dies.
		answers := make([]semel.ClaimAnswer, 1)
		err := store.Claim(t.Context(), []semel.ClaimRequest{{Key: orderKey, Owner: semel.Owner{Name: "dead", Nonce: 1}, Lease: time.Minute, Window: time.Hour}}, answers)
		if err != nil || answers[0].Decision != semel.Fresh {
			t.Fatal(answers[0], err)
		}
		var j journal
		g := newGuard(t, store, semel.GuardOptions{Wait: 2 * time.Minute, Observer: &j})
		start := time.Now()
		out, err := g.Do(t.Context(), orderKey, func(_ context.Context, c semel.Claim) ([]byte, error) {
			if c.Attempt != 2 || c.Token <= answers[0].Claim.Token {
				t.Errorf("got attempt %d token %d after token %d", c.Attempt, c.Token, answers[0].Claim.Token)
			}
			return nil, nil
		})
		if err != nil || out.Attempt != 2 {
			t.Fatalf("got %+v, %v", out, err)
		}
		if waited := time.Since(start); waited < time.Minute || waited > 62*time.Second {
			t.Errorf("took the key over after %v, its lease was a minute", waited)
		}
		if !j.has(semel.EventTookOver) {
			t.Error("the take-over was not reported")
		}
	})
}

// TestFailedTakeOverDoesNotHideTheAttemptBefore: the second attempt had no
// effect, which proves nothing about the first.
func TestFailedTakeOverDoesNotHideTheAttemptBefore(t *testing.T) {
	broken := errors.New("target is down")
	for name, do := range map[string]func(*testing.T, *semel.Guard) error{
		"single": func(t *testing.T, g *semel.Guard) error {
			_, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, broken })
			return err
		},
		"batch": func(t *testing.T, g *semel.Guard) error {
			return g.DoBatch(t.Context(), []semel.Call{{Key: orderKey}}, func(context.Context, []*semel.BatchItem) error { return broken })[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newStore(t, nil)
				answers := make([]semel.ClaimAnswer, 1)
				err := store.Claim(t.Context(), []semel.ClaimRequest{{Key: orderKey, Owner: semel.Owner{Name: "dead", Nonce: 1}, Lease: time.Minute, Window: time.Hour}}, answers)
				if err != nil || answers[0].Decision != semel.Fresh {
					t.Fatal(answers[0], err)
				}
				time.Sleep(time.Minute)
				g := newGuard(t, store, semel.GuardOptions{Wait: time.Second})
				if err := do(t, g); !errors.Is(err, broken) {
					t.Fatalf("got %v, want the effect's error", err)
				}
				var j journal
				if out, err := g.Do(t.Context(), orderKey, j.effect("ok")); err != nil || out.Attempt != 3 {
					t.Errorf("after a failed second attempt: got attempt %d, %v, want 3", out.Attempt, err)
				}
			})
		})
	}
}

func TestHeartbeatKeepsTheLeaseWhileTheEffectRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t, nil)
		g := newGuard(t, store, semel.GuardOptions{Lease: time.Second})
		other := newGuard(t, store, semel.GuardOptions{Lease: time.Second})
		out, err := g.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			for range 100 {
				time.Sleep(100 * time.Millisecond)
				var j journal
				if _, err := other.Do(ctx, orderKey, j.effect("")); !errors.Is(err, semel.ErrInFlight) {
					t.Errorf("another delivery got %v", err)
				}
			}
			return nil, ctx.Err()
		})
		if err != nil || out.Attempt != 1 {
			t.Fatalf("got %+v, %v", out, err)
		}
	})
}

func TestLostLeaseEndsTheEffectWithACause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		down := errors.New("no route to store")
		store.extend = func(context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error { return down }
		var j journal
		g := newGuard(t, store, semel.GuardOptions{Lease: time.Second, Observer: &j})
		start := time.Now()
		_, err := g.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		if !errors.Is(err, semel.ErrLeaseLost) || !errors.Is(err, down) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(start); took < 900*time.Millisecond || took > 1100*time.Millisecond {
			t.Errorf("the effect was ended after %v, the lease is a second", took)
		}
		if !j.has(semel.EventLeaseLost) {
			t.Error("the lost lease was not reported")
		}
	})
}

func TestALateCompletionIsRefusedAndReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		store.extend = func(_ context.Context, reqs []semel.ExtendRequest, _ []semel.ExtendAnswer) error {
			return semel.ErrStoreUnavailable
		}
		var j journal
		slow := newGuard(t, store, semel.GuardOptions{Lease: time.Second, Observer: &j})
		quick := newGuard(t, store, semel.GuardOptions{Lease: time.Second, Wait: time.Minute})
		out, err := slow.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			// The effect ignores its context, and another holder takes the key over.
			if out, err := quick.Do(t.Context(), orderKey, j.effect("second")); err != nil || out.Attempt != 2 {
				t.Errorf("take-over: %+v, %v", out, err)
			}
			return []byte("first"), nil
		})
		if !errors.Is(err, semel.ErrLeaseLost) || !errors.Is(err, semel.ErrStaleToken) || string(out.Result.Data) != "first" {
			t.Fatalf("got %+v, %v", out, err)
		}
		if !j.has(semel.EventCompletionRefused) {
			t.Error("the refused completion was not reported")
		}
		if out, err := quick.Do(t.Context(), orderKey, j.effect("")); err != nil || string(out.Result.Data) != "second" {
			t.Errorf("the record has %q, %v", out.Result.Data, err)
		}
	})
}

func TestCompletionIsTriedAgainAfterALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t, nil)
		store := &hooked{Store: inner}
		lost := 2
		store.complete = func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			err := inner.Complete(ctx, reqs, answers)
			if lost--; lost >= 0 {
				return errors.New("connection reset")
			}
			return err
		}
		var j journal
		g := newGuard(t, store, semel.GuardOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		out, err := g.Do(ctx, orderKey, func(ctx context.Context, c semel.Claim) ([]byte, error) {
			cancel() // the completion outlives its caller
			return j.effect("ok")(ctx, c)
		})
		if err != nil || out.Decision != semel.Fresh || lost >= 0 {
			t.Fatalf("got %+v, %v", out, err)
		}
		if got := look(t, inner, orderKey).State; got != semel.Done {
			t.Errorf("the record is %v", got)
		}
	})
}

func TestRepeatedClaimAfterALostAnswerIsFresh(t *testing.T) {
	inner := newStore(t, nil)
	store := &hooked{Store: inner}
	lost := false
	store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
		if !lost {
			lost = true
			if err := inner.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs))); err != nil {
				t.Error(err)
			}
			return errors.New("connection reset")
		}
		return inner.Claim(ctx, reqs, answers)
	}
	var j journal
	out, err := newGuard(t, store, semel.GuardOptions{}).Do(t.Context(), orderKey, j.effect("ok"))
	if err != nil || out.Decision != semel.Fresh || out.Attempt != 1 || j.runs != 1 {
		t.Fatalf("got %+v, %v after %d runs", out, err, j.runs)
	}
}

func TestDifferentPayloadUnderTheSameKeyIsAMismatch(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	var j journal
	call := semel.Call{Key: orderKey, Fingerprint: semel.Fingerprint{1}}
	if _, err := g.DoCall(t.Context(), call, j.effect("")); err != nil {
		t.Fatal(err)
	}
	call.Fingerprint = semel.Fingerprint{2}
	if _, err := g.DoCall(t.Context(), call, j.effect("")); !errors.Is(err, semel.ErrMismatch) || j.runs != 1 {
		t.Errorf("got %v after %d runs", err, j.runs)
	}
}

func TestRecordKeepsTheEndOfALongOrigin(t *testing.T) {
	s := newStore(t, nil)
	g := newGuard(t, s, semel.GuardOptions{})
	var j journal
	call := semel.Call{Key: orderKey, Origin: strings.Repeat("a long path ", semel.MaxOriginBytes) + "file, byte 7"}
	if _, err := g.DoCall(t.Context(), call, j.effect("")); err != nil {
		t.Fatal(err)
	}
	var records [1]semel.Record
	if err := s.Look(t.Context(), []semel.Key{orderKey}, records[:]); err != nil {
		t.Fatal(err)
	}
	if got := records[0].Origin; len(got) != semel.MaxOriginBytes || !strings.HasSuffix(got, "path file, byte 7") {
		t.Errorf("the origin is %q", got)
	}
}

func TestWindowOfACallReplacesTheGuards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, newStore(t, nil), semel.GuardOptions{Window: time.Hour})
		var j journal
		call := semel.Call{Key: orderKey, Window: 3 * time.Hour}
		for _, want := range []semel.Decision{semel.Fresh, semel.Duplicate, semel.Fresh} {
			if out, err := g.DoCall(t.Context(), call, j.effect("")); err != nil || out.Decision != want {
				t.Fatalf("got %v, %v, want %v", out.Decision, err, want)
			}
			time.Sleep(2 * time.Hour)
		}
	})
}

func TestResultThatIsTooLargeIsNotKeptAndTheEffectIsNotRepeated(t *testing.T) {
	g := newGuard(t, newStore(t, &memstore.Options{MaxResult: 4}), semel.GuardOptions{})
	var j journal
	if out, err := g.Do(t.Context(), orderKey, j.effect("too long")); err != nil || string(out.Result.Data) != "too long" {
		t.Fatalf("got %+v, %v", out, err)
	}
	if _, err := g.Do(t.Context(), orderKey, j.effect("")); !errors.Is(err, semel.ErrResultNotKept) || j.runs != 1 {
		t.Errorf("the duplicate got %v after %d runs", err, j.runs)
	}
}

func TestTypedResultIsReplayed(t *testing.T) {
	type receipt struct{ Total int }
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	runs := 0
	for _, want := range []bool{false, true} {
		got, duplicate, err := semel.Do(t.Context(), g, orderKey, func(context.Context) (receipt, error) {
			runs++
			return receipt{42}, nil
		})
		if err != nil || got.Total != 42 || duplicate != want {
			t.Fatalf("got %+v, duplicate: %t, %v; want duplicate: %t", got, duplicate, err, want)
		}
	}
	bad := semel.Key{ID: "cannot be encoded"}
	for _, want := range []bool{false, true} {
		_, duplicate, err := semel.Do(t.Context(), g, bad, func(context.Context) (func(), error) {
			runs++
			return func() {}, nil
		})
		if !errors.Is(err, semel.ErrResultNotKept) || duplicate != want {
			t.Errorf("got %v, duplicate: %t; want duplicate: %t", err, duplicate, want)
		}
	}
	if runs != 2 {
		t.Errorf("the effects ran %d times", runs)
	}
}

func TestRunRunsOnceUnderTheClaimInItsContext(t *testing.T) {
	t.Parallel()
	store := newStore(t, nil)
	g := newGuard(t, store, semel.GuardOptions{})
	var claims []semel.Claim
	failure := errors.New("not now")
	for _, want := range []error{failure, nil, nil} {
		err := g.Run(t.Context(), orderKey, func(ctx context.Context) error {
			claim, ok := semel.ClaimOf(ctx)
			if r, err := g.Look(ctx, orderKey); !ok || err != nil || r.State != semel.Claimed || r.Token != claim.Token {
				t.Errorf("the effect has the claim %+v, %t; the record is %+v, %v", claim, ok, r, err)
			}
			claims = append(claims, claim)
			return want
		})
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if len(claims) != 2 || claims[1].Token <= claims[0].Token {
		t.Errorf("the effect ran under the claims %+v, want two with growing tokens", claims)
	}
	if r, err := g.Look(t.Context(), orderKey); err != nil || r.State != semel.Done || r.Result.Kind != semel.NoResult {
		t.Errorf("the record is %+v, %v", r, err)
	}
	if claim, ok := semel.ClaimOf(t.Context()); ok {
		t.Errorf("a context without a claim has %+v", claim)
	}
}

func TestBadOptionsAreNamedAllAtOnce(t *testing.T) {
	_, err := semel.NewGuard(newStore(t, nil), &semel.GuardOptions{Lease: time.Microsecond, Window: -1, Wait: -1, OnLeaseExpired: 7})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("got %v", err)
	}
	for _, field := range []string{"Lease", "Window", "Wait", "OnLeaseExpired"} {
		if !strings.Contains(err.Error(), "GuardOptions."+field+":") {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	if _, err := semel.NewGuard(nil, nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("nil store: %v", err)
	}
	// The limits themselves.
	for _, c := range []struct {
		opts semel.GuardOptions
		ok   bool
	}{
		{semel.GuardOptions{Lease: time.Millisecond}, true},
		{semel.GuardOptions{Lease: time.Millisecond - 1}, false},
		{semel.GuardOptions{Lease: time.Second, Heartbeat: time.Second - 1}, true},
		{semel.GuardOptions{Lease: time.Second, Heartbeat: time.Second}, false},
		{semel.GuardOptions{Lease: time.Second, Heartbeat: -1}, false},
		{semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold}, true},
		{semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold + 1}, false},
		{semel.GuardOptions{MaxResult: 4}, true},
		{semel.GuardOptions{MaxResult: 5}, false}, // the store keeps 4 bytes
		{semel.GuardOptions{MaxResult: -1}, false},
	} {
		if _, err := semel.NewGuard(newStore(t, &memstore.Options{MaxResult: 4}), &c.opts); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.opts, err)
		}
	}
}

// promising is a store that has other traits than it shows.
type promising struct {
	semel.Store
	traits semel.Traits
}

func (p promising) Traits() semel.Traits { return p.traits }

func TestAStoreKeepsTheLargestResult(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		results   bool
		most      int64
		wants     int64
		ok        bool
		wrongText string
	}{
		{results: false, wants: 0, ok: true},
		{results: false, wants: 1, wrongText: "effects return up to 1 bytes, the store keeps 0"},
		{results: false, most: 10, wants: 1, wrongText: "effects return up to 1 bytes, the store keeps 10"},
		{results: true, wants: 1 << 40, ok: true}, // without a bound
		{results: true, most: 1, wants: 0, ok: true},
		{results: true, most: 1, wants: 1, ok: true},
		{results: true, most: 1, wants: 2, wrongText: "effects return up to 2 bytes, the store keeps 1"},
	} {
		_, err := semel.NewGuard(promising{newStore(t, nil), semel.Traits{Results: c.results, MaxResult: c.most}}, &semel.GuardOptions{MaxResult: c.wants})
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, semel.ErrResultTooLarge) || !strings.Contains(err.Error(), c.wrongText)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestACompletionIsRepeatedWithGrowingPauses until the lease is over, and only then is its
// outcome unknown. An error that cannot pass ends it immediately.
func TestACompletionIsRepeatedWithGrowingPauses(t *testing.T) {
	for _, cause := range []error{errors.New("connection reset"), semel.ErrStoreFailed} {
		synctest.Test(t, func(t *testing.T) {
			store := &hooked{Store: newStore(t, nil)}
			var calls []time.Time
			store.complete = func(_ context.Context, reqs []semel.CompleteRequest, answers []error) error {
				calls = append(calls, time.Now())
				if len(calls)%2 == 0 {
					answers[0] = cause // of the key, and not of the call
				}
				return cause
			}
			var j journal
			g := newGuard(t, store, semel.GuardOptions{Lease: 5 * time.Second, Heartbeat: 4 * time.Second, Observer: &j})
			began := time.Now()
			_, err := g.Do(t.Context(), orderKey, j.effect("ok"))
			if !errors.Is(err, semel.ErrOutcomeUnknown) || !errors.Is(err, cause) || j.runs != 1 {
				t.Fatalf("%v after %d runs", err, j.runs)
			}
			if errors.Is(cause, semel.ErrStoreFailed) {
				if len(calls) != 1 {
					t.Errorf("%d calls to a store that has failed", len(calls))
				}
				return
			}
			pause := time.Millisecond
			for i := 1; i < len(calls); i++ {
				if got := calls[i].Sub(calls[i-1]); got != pause {
					t.Errorf("pause %d is %v, want %v", i, got, pause)
				}
				pause = min(2*pause, time.Second)
			}
			if took := time.Since(began); took != 5*time.Second || len(calls) < 12 {
				t.Errorf("%d calls in %v", len(calls), took)
			}
		})
	}
}

func TestLateMessagesFollowThePolicy(t *testing.T) {
	t.Parallel()
	broken := errors.New("the dead-letter store is closed")
	for name, c := range map[string]struct {
		policy semel.LatePolicy
		parks  error
		want   error
		runs   bool
		parked bool
	}{
		"reject":               {policy: semel.LateReject, want: semel.ErrLate},
		"run":                  {policy: semel.LateRun, runs: true},
		"park":                 {policy: semel.LatePark, parked: true},
		"park, which may fail": {policy: semel.LatePark, parks: broken, want: broken, parked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var parked, ran bool
			opts := &semel.GuardOptions{OnLate: c.policy, Window: time.Hour}
			if c.policy == semel.LatePark {
				opts.Park = func(_ context.Context, call *semel.Call, reason error) error {
					parked = call.Key.ID == "old" && errors.Is(reason, semel.ErrLate)
					return c.parks
				}
			}
			guard, err := semel.NewGuard(newStore(t, nil), opts)
			if err != nil {
				t.Fatal(err)
			}
			call := semel.Call{Key: semel.Key{ID: "old"}, Time: time.Now().Add(-2 * time.Hour)}
			out, err := guard.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) {
				ran = true
				return nil, nil
			})
			if !errors.Is(err, c.want) || ran != c.runs || parked != c.parked {
				t.Errorf("got error %v, ran %t, parked %t; want %v, %t, %t", err, ran, parked, c.want, c.runs, c.parked)
			}
			if want := map[bool]semel.Decision{true: semel.Fresh, false: semel.Late}[c.runs]; out.Decision != want {
				t.Errorf("the decision is %s, want %s", out.Decision, want)
			}
		})
	}
}

func TestGuardRefusesLatePoliciesThatContradict(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*semel.GuardOptions{
		"a policy there is not":    {OnLate: 9},
		"park without a function":  {OnLate: semel.LatePark},
		"a function without park":  {Park: func(context.Context, *semel.Call, error) error { return nil }},
		"a negative result length": {MaxResult: -1},
	} {
		if _, err := semel.NewGuard(newStore(t, nil), opts); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%s: got %v, want an ErrInvalidRequest", name, err)
		}
	}
}

func TestGuardRefusesResultsTheStoreCannotKeepBeforeAnyEffect(t *testing.T) {
	t.Parallel()
	store := newStore(t, &memstore.Options{MaxResult: 100})
	if _, err := semel.NewGuard(store, &semel.GuardOptions{MaxResult: 101}); !errors.Is(err, semel.ErrResultTooLarge) {
		t.Errorf("results of 101 bytes: got %v, want an ErrResultTooLarge", err)
	}
	if _, err := semel.NewGuard(store, &semel.GuardOptions{MaxResult: 100}); err != nil {
		t.Errorf("results of 100 bytes: %v", err)
	}
}
