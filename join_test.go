package semel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// gate is a store whose claims take a second each and are counted. It grants
// every claim and records each release.
type gate struct {
	semel.Store
	mu      sync.Mutex
	batches []int
	back    []semel.Token
	token   atomic.Uint64
}

// Traits implements semel.Store.
func (*gate) Traits() semel.Traits { return semel.Traits{} }

func (g *gate) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	g.mu.Lock()
	g.batches = append(g.batches, len(reqs))
	g.mu.Unlock()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range answers {
		answers[i] = semel.ClaimAnswer{Decision: semel.Fresh, Holder: reqs[i].Key.ID, Claim: semel.Claim{Token: semel.Token(g.token.Add(1))}}
	}
	return nil
}

func (g *gate) Release(_ context.Context, reqs []semel.ReleaseRequest, _ []error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range reqs {
		g.back = append(g.back, r.Token)
	}
	return nil
}

func claimOne(ctx context.Context, s semel.Store, id string) (semel.ClaimAnswer, error) {
	answers := make([]semel.ClaimAnswer, 1)
	err := s.Claim(ctx, []semel.ClaimRequest{{Key: semel.Key{ID: id}}}, answers)
	return answers[0], err
}

func TestCallsThatArriveDuringACallGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gate{}
		joined := semel.Join(store, 8)
		start := time.Now()
		var all sync.WaitGroup
		for i := range 21 {
			all.Go(func() {
				id := string(rune('a' + i))
				if a, err := claimOne(t.Context(), joined, id); err != nil || a.Holder != id {
					t.Errorf("caller %s got the answer of %q, %v", id, a.Holder, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("took %v", took)
		}
		if got := store.batches; len(got) != 4 || got[0] != 1 || got[1] != 8 || got[2] != 8 || got[3] != 4 {
			t.Errorf("the store saw batches of %v, want 1, 8, 8, 4", got)
		}
	})
}

func TestSingleCallerDoesNotWaitForABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		joined := semel.Join(&gate{}, 0)
		start := time.Now()
		for range 3 {
			if _, err := claimOne(t.Context(), joined, "x"); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("three calls of a second took %v", took)
		}
	})
}

func TestCancelledJoinedCallFailsNoOtherAndKeepsNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gate{}
		joined := semel.Join(store, 0)
		var all sync.WaitGroup
		all.Go(func() { // occupies the store for the first second
			if _, err := claimOne(t.Context(), joined, "first"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		early, cancelEarly := context.WithTimeout(t.Context(), 500*time.Millisecond)
		late, cancelLate := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancelEarly()
		defer cancelLate()
		var leaders atomic.Int32
		for _, ctx := range []context.Context{early, late, late} {
			all.Go(func() {
				a, err := claimOne(ctx, joined, "gone")
				if err == nil && a.Decision == semel.Fresh {
					leaders.Add(1) // the leader waits for the answer and gets it
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("who gave up got %v", err)
				}
			})
		}
		synctest.Wait()
		all.Go(func() {
			if a, err := claimOne(t.Context(), joined, "stays"); err != nil || a.Holder != "stays" {
				t.Errorf("who stayed got %q, %v", a.Holder, err)
			}
		})
		all.Wait()
		if _, err := claimOne(t.Context(), joined, "afterwards"); err != nil {
			t.Error(err)
		}
		if back, led := len(store.back), int(leaders.Load()); led > 1 || back+led != 3 {
			t.Errorf("%d claims were given back and %d led, want all three who gave up", back, led)
		}
	})
}

func TestJoinedCallIsCancelledWhenAllCallersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		joined := semel.Join(&gate{}, 0)
		var all sync.WaitGroup
		all.Go(func() { _, _ = claimOne(t.Context(), joined, "first") })
		synctest.Wait()
		start := time.Now()
		for range 3 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
				defer cancel()
				if _, err := claimOne(ctx, joined, "second"); err == nil {
					t.Error("a call that was given up by all succeeded")
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took != 1200*time.Millisecond {
			t.Errorf("took %v", took)
		}
	})
}

func TestRequestThatWasNotSentIsNotUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gate{}
		joined := semel.Join(store, 0)
		var all sync.WaitGroup
		all.Go(func() { _, _ = claimOne(t.Context(), joined, "first") })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := claimOne(ctx, joined, "second")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
		all.Wait()
		if len(store.batches) != 1 {
			t.Errorf("the store was called %d times", len(store.batches))
		}
	})
}

func TestWrongNumberOfAnswersIsRefused(t *testing.T) {
	err := semel.Join(&gate{}, 0).Claim(t.Context(), make([]semel.ClaimRequest, 2), make([]semel.ClaimAnswer, 1))
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("got %v", err)
	}
}

// quick is a store that joins calls itself.
type quick struct{ *gate }

func (quick) Traits() semel.Traits { return semel.Traits{Batching: semel.Batching{Off: true}} }

func TestCallsOfAStoreThatJoinsThemItselfDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := quick{&gate{}}
		joined := semel.Join(store, 8)
		start := time.Now()
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if a, err := claimOne(t.Context(), joined, "x"); err != nil || a.Decision != semel.Fresh {
					t.Errorf("a claim is answered %s, %v", a.Decision, err)
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took != time.Second || len(store.batches) != 5 {
			t.Errorf("five claims took %v in batches of %v, want a second and each alone", took, store.batches)
		}
	})
}

// broad is a store that accepts two concurrent calls.
type broad struct{ gate }

func (*broad) Traits() semel.Traits { return semel.Traits{Batching: semel.Batching{Calls: 2}} }

func TestSecondConcurrentBatchStartsAtHalfTheSizeOfTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &broad{}
		joined := semel.Join(store, 8)
		var all sync.WaitGroup
		arrive := func(callers int) {
			for range callers {
				all.Go(func() {
					if a, err := claimOne(t.Context(), joined, "x"); err != nil || a.Decision != semel.Fresh {
						t.Errorf("got %s, %v", a.Decision, err)
					}
				})
				synctest.Wait()
			}
		}
		begun := func(want ...int) {
			t.Helper()
			store.mu.Lock()
			defer store.mu.Unlock()
			if !slices.Equal(store.batches, want) {
				t.Errorf("the store saw batches of %v, want %v", store.batches, want)
			}
		}
		arrive(9)
		begun(1, 1) // the second caller starts a call of its own; the third waits
		time.Sleep(time.Second)
		synctest.Wait()
		begun(1, 1, 7)
		arrive(3)
		begun(1, 1, 7)
		arrive(1)
		begun(1, 1, 7, 4)
		arrive(8)
		begun(1, 1, 7, 4)
		all.Wait()
		begun(1, 1, 7, 4, 8)
	})
}

// measured is a store that accepts two concurrent calls of a certain size.
type measured struct{ broad }

func (*measured) Traits() semel.Traits {
	return semel.Traits{Batching: semel.Batching{Calls: 2, Least: 3, Most: 4}}
}

func TestFurtherCallHasTheSizeThatTheStoreWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &measured{}
		joined := semel.Join(store, 8)
		var all sync.WaitGroup
		for _, want := range [][]int{{1}, {1}, {1}, {1, 3}} {
			all.Go(func() {
				if a, err := claimOne(t.Context(), joined, "x"); err != nil || a.Decision != semel.Fresh {
					t.Errorf("got %s, %v", a.Decision, err)
				}
			})
			synctest.Wait()
			store.mu.Lock()
			if !slices.Equal(store.batches, want) {
				t.Errorf("the store saw batches of %v, want %v", store.batches, want)
			}
			store.mu.Unlock()
		}
		for range 10 {
			all.Go(func() { _, _ = claimOne(t.Context(), joined, "x") })
		}
		all.Wait()
		if want := []int{1, 3, 4, 4, 2}; !slices.Equal(store.batches, want) {
			t.Errorf("the store saw batches of %v, want %v", store.batches, want)
		}
	})
}

// hasty is a store whose calls take one of a few durations, so that many of them
// end at the same moment.
type hasty struct {
	broad
	granted atomic.Int64
}

func (h *hasty) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	work, cancel := context.WithTimeout(ctx, time.Duration(h.token.Add(1)%4))
	defer cancel()
	<-work.Done()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for i := range answers {
		answers[i] = semel.ClaimAnswer{Decision: semel.Fresh, Holder: reqs[i].Key.ID, Claim: semel.Claim{Token: semel.Token(h.token.Add(1))}}
	}
	h.granted.Add(int64(len(reqs)))
	return nil
}

func TestJoinGivesEachCallerItsAnswerWhileOthersCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		store := &hasty{}
		joined := semel.Join(store, 5)
		var held atomic.Int64
		var all sync.WaitGroup
		for caller := range 16 {
			random := rand.New(rand.NewPCG(seed, uint64(caller)))
			all.Go(func() {
				for n := range 1500 {
					id := fmt.Sprint(caller, "-", n)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(8)))
					a, err := claimOne(ctx, joined, id)
					cancel()
					switch {
					case err == nil && a.Holder == id:
						held.Add(1)
					case err == nil:
						t.Errorf("%s got the answer of %q", id, a.Holder)
					case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
						t.Errorf("%s got %v", id, err)
					}
				}
			})
		}
		all.Wait()
		if a, err := claimOne(t.Context(), joined, "last"); err != nil || a.Holder != "last" {
			t.Errorf("afterwards a caller got the answer of %q, %v", a.Holder, err)
		}
		held.Add(1)
		if granted := store.granted.Load(); granted != held.Load()+int64(len(store.back)) || held.Load() == 0 || len(store.back) == 0 {
			t.Errorf("%d claims were granted, %d are held and %d were given back", granted, held.Load(), len(store.back))
		}
	})
}

// half is a store of which one part does not answer. A call takes a second. Then
// the requests for keys that are down fail, and all others are done. The key
// "falls" goes down as soon as it is claimed.
type half struct{ semel.Store }

// part makes one request after the other and skips those that fail.
func part[Req, Ans any](ctx context.Context, reqs []Req, answers []Ans, down func(*Req) bool, call func([]Req, []Ans) error) (err error) {
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range reqs {
		if down(&reqs[i]) {
			err = semel.ErrStoreUnavailable
		} else if err := call(reqs[i:i+1], answers[i:i+1]); err != nil {
			return err
		}
	}
	return err
}

func (h half) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	down := func(r *semel.ClaimRequest) bool { return r.Key.ID == "down" }
	return part(ctx, reqs, answers, down, func(r []semel.ClaimRequest, a []semel.ClaimAnswer) error { return h.Store.Claim(ctx, r, a) })
}

func (h half) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	down := func(r *semel.CompleteRequest) bool { return r.Key.ID == "falls" }
	return part(ctx, reqs, answers, down, func(r []semel.CompleteRequest, a []error) error { return h.Store.Complete(ctx, r, a) })
}

func (h half) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	down := func(r *semel.ExtendRequest) bool { return r.Key.ID == "falls" }
	return part(ctx, reqs, answers, down, func(r []semel.ExtendRequest, a []semel.ExtendAnswer) error { return h.Store.Extend(ctx, r, a) })
}

// TestFailedRequestDoesNotFailItsBatch joins the requests of callers with some that
// fail. Some effects end before the first beat; others outlast their leases.
func TestFailedRequestDoesNotFailItsBatch(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"claims and completions": 0, "leases": 45 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(t, half{newStore(t, nil)}, semel.GuardOptions{})
				start := time.Now()
				do := func(id string) error {
					_, err := g.Do(t.Context(), semel.Key{ID: id}, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
						select {
						case <-time.After(lasts):
							return nil, nil
						case <-ctx.Done():
							return nil, context.Cause(ctx)
						}
					})
					return err
				}
				var all sync.WaitGroup
				for _, id := range []string{"a", "down", "b", "falls", "c", "d"} {
					all.Go(func() {
						switch err := do(id); id {
						case "down":
							if !errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) != semel.ClassRetryable {
								t.Errorf("who was refused got %v", err)
							}
						case "falls":
							if !errors.Is(err, semel.ErrOutcomeUnknown) && !errors.Is(err, semel.ErrLeaseLost) {
								t.Errorf("whose completion was refused got %v", err)
							}
						default:
							if took := time.Since(start) - lasts; err != nil || took > 10*time.Second {
								t.Errorf("%s, whose requests were all answered, got %v after %v", id, err, took)
							}
						}
					})
					synctest.Wait() // all but the first are joined
				}
				all.Wait()
			})
		})
	}
}

// TestJoinedCallerDoesNotGetTheErrorOfAnotherCaller checks for each method what a
// joined caller gets from a call that failed for another caller.
func TestJoinedCallerDoesNotGetTheErrorOfAnotherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		joined := semel.Join(half{newStore(t, nil)}, 0)
		key := func(id string) semel.Key { return semel.Key{ID: id} }
		claimed := func(id string) semel.Token {
			t.Helper()
			answer := make([]semel.ClaimAnswer, 1)
			req := semel.ClaimRequest{Key: key(id), Owner: semel.Owner{Name: id}, Lease: time.Hour, Window: time.Hour}
			if err := joined.Claim(t.Context(), []semel.ClaimRequest{req}, answer); err != nil || answer[0].Decision != semel.Fresh {
				t.Errorf("claim of %s: %s, %v", id, answer[0].Decision, err)
			}
			return answer[0].Claim.Token
		}
		complete := func(id string, token semel.Token) (answer, err error) {
			answers := make([]error, 1)
			err = joined.Complete(t.Context(), []semel.CompleteRequest{{Key: key(id), Token: token, Window: time.Hour}}, answers)
			return answers[0], err
		}
		extend := func(id string, token semel.Token) (answer semel.ExtendAnswer, err error) {
			answers := make([]semel.ExtendAnswer, 1)
			err = joined.Extend(t.Context(), []semel.ExtendRequest{{Key: key(id), Token: token, Lease: time.Hour}}, answers)
			return answers[0], err
		}
		first, falls, holds := claimed("first"), claimed("falls"), claimed("holds")
		// together makes the calls so that all but the first are joined.
		together := func(calls ...func()) {
			var all sync.WaitGroup
			for _, call := range calls {
				all.Go(call)
				synctest.Wait()
			}
			all.Wait()
		}
		together(
			func() { _, _ = extend("first", first) },
			func() {
				if _, err := extend("falls", falls); !errors.Is(err, semel.ErrStoreUnavailable) {
					t.Errorf("extend by a store that is down: %v", err)
				}
			},
			func() {
				if a, err := extend("holds", holds); err != nil || a.Err != nil || a.LeaseEnd.IsZero() {
					t.Errorf("extend: %v, %v", a, err)
				}
			},
			func() {
				if a, err := extend("holds", holds+1); err != nil || !errors.Is(a.Err, semel.ErrStaleToken) {
					t.Errorf("extend with a stale token: %v, %v", a, err)
				}
			},
		)
		together(
			func() { _, _ = complete("first", first) },
			func() {
				if _, err := complete("falls", falls); !errors.Is(err, semel.ErrStoreUnavailable) {
					t.Errorf("complete by a store that is down: %v", err)
				}
			},
			func() {
				if a, err := complete("holds", holds+1); err != nil || !errors.Is(a, semel.ErrStaleToken) {
					t.Errorf("complete with a stale token: %v, %v", a, err)
				}
			},
			func() {
				if a, err := complete("holds", holds); err != nil || a != nil {
					t.Errorf("complete: %v, %v", a, err)
				}
			},
		)
	})
}

// TestFilledAnswerCountsWhenTheStoreCallFails uses a store that fills the answers and
// returns an error for the call.
func TestFilledAnswerCountsWhenTheStoreCallFails(t *testing.T) {
	for name, failed := range map[string]error{"lost": semel.ErrOutcomeUnknown, "refused": semel.ErrStoreUnavailable} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := newStore(t, nil)
				store := &hooked{Store: inner}
				claims := 0
				store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
					claims++
					return errors.Join(inner.Claim(ctx, reqs, answers), failed)
				}
				store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
					return errors.Join(inner.Extend(ctx, reqs, answers), failed)
				}
				g := newGuard(t, store, semel.GuardOptions{Lease: time.Second})
				out, err := g.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
					select {
					case <-time.After(5 * time.Second):
						return nil, nil
					case <-ctx.Done():
						return nil, context.Cause(ctx)
					}
				})
				if err != nil || out.Decision != semel.Fresh || claims != 1 {
					t.Errorf("got %s, %v after %d claims", out.Decision, err, claims)
				}
			})
		})
	}
}
