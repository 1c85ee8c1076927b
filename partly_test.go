package semel_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

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

// TestOthersTroubleIsNotOnesOwn joins the requests of callers with some that
// fail. Some effects end before the first beat; others outlast their leases.
func TestOthersTroubleIsNotOnesOwn(t *testing.T) {
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

// TestJoinedAnswerComesWithoutTheErrorOfOthers checks for each method what a
// joined caller gets from a call that failed for another caller.
func TestJoinedAnswerComesWithoutTheErrorOfOthers(t *testing.T) {
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
					t.Errorf("extend of what is down: %v", err)
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
					t.Errorf("complete of what is down: %v", err)
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

// TestAnswerCountsThoughItsCallFailed uses a store that fills the answers and
// returns an error for the call.
func TestAnswerCountsThoughItsCallFailed(t *testing.T) {
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
