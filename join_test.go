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

func TestLoneCallerDoesNotWait(t *testing.T) {
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

func TestCallerWhoGivesUpHarmsNobodyAndHoldsNothing(t *testing.T) {
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

func TestCallThatNobodyWaitsForIsCancelled(t *testing.T) {
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

func TestSecondCallBeginsWhenItCarriesHalfOfTheFirst(t *testing.T) {
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

func TestNoAnswerIsLostOrMixedUpWhenCallersGiveUp(t *testing.T) {
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
