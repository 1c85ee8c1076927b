package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestTheClaimIsKeptBetweenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure = pipeline.Failure{Attempts: 5, From: time.Minute, To: time.Minute}
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if a := r.claim("a", time.Second); a.Decision != semel.InFlight {
				t.Errorf("during attempt %d: %v", m.Attempt, a.Decision)
			}
			if m.Attempt < 4 {
				return semel.Result{}, errors.New("try again")
			}
			return semel.Result{}, nil
		}
		r.add(1, "a", "")
		r.run()
		if got := r.attempts("a"); !slices.Equal(got, []int{1, 2, 3, 4}) {
			t.Errorf("attempts: %v", got)
		}
		tokens := map[semel.Token]bool{}
		for _, m := range r.delivered {
			tokens[m.Token] = true
		}
		if len(tokens) != 1 {
			t.Errorf("%d tokens, want the one of a claim that was kept", len(tokens))
		}
		r.wantAcked(1)
	})
}

func TestALostCompletionIsRepeatedAndTheEffectIsNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		lost := 0
		r.store.complete = func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			if lost++; lost > 60 { // longer than a lease
				r.store.heal()
			}
			if lost%2 == 0 {
				_ = r.store.Store.Complete(ctx, reqs, answers) // done, and the answer is lost
				clear(answers)
			}
			return semel.ErrOutcomeUnknown
		}
		r.add(1, "a", "")
		r.add(2, "a", "")
		r.run()
		if got := r.attempts("a"); !slices.Equal(got, []int{1}) {
			t.Errorf("attempts: %v", got)
		}
		r.wantAcked(2)
		r.wantParked(nil)
	})
}

func TestClaimWithALostAnswerIsRecognised(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.phases.Guard.OnLeaseExpired = semel.ExpiryHold
		lost := 0
		r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			if lost++; lost > 10 {
				r.store.heal()
			}
			_ = r.store.Store.Claim(ctx, reqs, answers)
			clear(answers)
			return semel.ErrOutcomeUnknown
		}
		r.add(1, "a", "")
		r.run()
		if got := r.attempts("a"); len(got) != 1 {
			t.Errorf("attempts: %v", got)
		}
		r.wantParked(nil)
		r.wantAcked(1)
	})
}

// TestClaimWithALostAnswerIsRecognisedAfterARefusal: a refusal that comes later
// does not undo what may have been granted.
func TestClaimWithALostAnswerIsRecognisedAfterARefusal(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func([]semel.ClaimAnswer) error{
		"the call is refused": func([]semel.ClaimAnswer) error { return semel.ErrStoreUnavailable },
		"the key is refused": func(answers []semel.ClaimAnswer) error {
			for i := range answers {
				answers[i] = semel.ClaimAnswer{Err: semel.ErrStoreFull}
			}
			return nil
		},
	} {
		for _, policy := range []semel.ExpiryPolicy{semel.ExpiryRetry, semel.ExpiryHold} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.phases.Guard.OnLeaseExpired = policy
					calls := 0
					r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
						if calls++; calls == 1 {
							_ = r.store.Store.Claim(ctx, reqs, answers)
							clear(answers)
							return semel.ErrOutcomeUnknown
						}
						if calls == 4 { // the second and the third were not repeated
							r.store.heal()
						}
						return refuse(answers)
					}
					r.add(1, "a", "")
					began := time.Now()
					r.run()
					if got := r.attempts("a"); !slices.Equal(got, []int{1}) {
						t.Errorf("attempts: %v", got)
					}
					if took := time.Since(began); calls != 4 || took > semel.DefaultLease/2 {
						t.Errorf("it took %v and %d failed claims: its own claim stood in its way", took, calls)
					}
					r.wantParked(nil)
					r.wantAcked(1)
				})
			})
		}
	}
}

// TestExtendedLeaseLastsWhenAnotherExtensionFails has a store of which one
// part does not answer.
func TestExtendedLeaseLastsWhenAnotherExtensionFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			var refused error
			for i := range reqs {
				if reqs[i].Key.ID == "down" {
					refused = semel.ErrStoreUnavailable
				} else if err := r.store.Store.Extend(ctx, reqs[i:i+1], answers[i:i+1]); err != nil {
					return err
				}
			}
			return refused
		}
		r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Attempt > 1 {
				return semel.Result{}, nil
			}
			select {
			case <-ctx.Done():
				return semel.Result{}, ctx.Err()
			case <-time.After(2 * semel.DefaultLease):
				return semel.Result{}, nil
			}
		}
		r.add(1, "up", "")
		r.add(2, "down", "")
		r.run()
		if got := r.attempts("up"); !slices.Equal(got, []int{1}) {
			t.Errorf("attempts at the key that was extended: %v", got)
		}
		if got := r.attempts("down"); len(got) < 2 {
			t.Errorf("attempts at the key that was refused: %v", got)
		}
		r.wantAcked(2)
	})
}

func TestPipelineStopsWithoutLossWhileTheStoreIsDown(t *testing.T) {
	for _, down := range []error{semel.ErrStoreUnavailable, semel.ErrClosed, semel.ErrCorrupt, semel.ErrStoreFailed, semel.ErrInvalidRequest, errors.New("nobody knows")} {
		for _, pass := range []bool{false, true} {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.phases.Pass = pass
					r.opts.Failure.Then = pipeline.Drop
					r.store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error { return down }
					for i := range int64(20) {
						r.add(i, string(rune('a'+i)), "")
					}
					end := r.start(t.Context())
					time.Sleep(time.Minute)
					if pass {
						r.wantAcked(20)
					} else {
						r.wantAcked(0)
						if err := r.runner.Ready(t.Context()); !errors.Is(err, down) {
							t.Errorf("ready: %v", err)
						}
					}
					r.store.heal()
					if err := end(); err != nil {
						t.Error(err)
					}
					r.wantAcked(20)
					if len(r.delivered) != 20 {
						t.Errorf("%d deliveries, want 20", len(r.delivered))
					}
				})
			})
		}
	}
}

func TestMessageOfAHeldKeyWaitsOrReturnsToItsSource(t *testing.T) {
	for _, returns := range []bool{false, true} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.source.returns = returns
				r.claim("a", time.Minute)
				r.add(1, "a", "")
				r.add(2, "b", "")
				end := r.start(t.Context())
				time.Sleep(30 * time.Second)
				r.wantAcked(1)
				if err := end(); err != nil {
					t.Error(err)
				}
				if returns {
					r.wantAcked(1)
					if r.source.returned != 1 || len(r.attempts("a")) != 0 {
						t.Errorf("%d returned, attempts %v", r.source.returned, r.attempts("a"))
					}
					return
				}
				r.wantAcked(2)
				if got := r.attempts("a"); !slices.Equal(got, []int{2}) {
					t.Errorf("attempts: %v, want 2: a lease ended before", got)
				}
			})
		})
	}
}

func TestALostLeaseEndsTheEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.store.extend = func(context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error {
			return semel.ErrStoreUnavailable
		}
		var lasted time.Duration
		r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Attempt > 1 {
				return semel.Result{}, nil
			}
			began := time.Now()
			<-ctx.Done()
			lasted = time.Since(began)
			if !errors.Is(context.Cause(ctx), semel.ErrLeaseLost) {
				t.Errorf("the effect ended for %v", context.Cause(ctx))
			}
			return semel.Result{}, ctx.Err()
		}
		r.add(1, "a", "")
		r.run()
		if lasted > semel.DefaultLease {
			t.Errorf("the effect continued for %v, longer than its lease surely lasted", lasted)
		}
		if got := r.attempts("a"); !slices.Equal(got, []int{1, 2}) && !slices.Equal(got, []int{1, 3}) {
			t.Errorf("attempts: %v", got)
		}
		r.wantAcked(1)
	})
}

func TestHoldLeavesDoubtfulKeysToBeResolved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.phases.Guard.OnLeaseExpired = semel.ExpiryHold
		r.opts.Failure.Then = pipeline.Drop // which a key in doubt never is
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			switch m.Key.ID {
			case "doubt":
				return semel.Result{}, semel.ErrOutcomeUnknown
			case "panic":
				panic("in the middle")
			}
			return semel.Result{}, nil
		}
		r.add(1, "doubt", "")
		r.add(2, "panic", "")
		r.add(3, "fine", "")
		r.run()
		r.wantAcked(3)
		r.wantParked(map[string]string{"doubt": "unknown", "panic": "unknown"})
		for _, id := range []string{"doubt", "panic"} {
			if a := r.claim(id, time.Second); a.Decision != semel.OutcomeUnknown {
				t.Errorf("%s: %v, want in doubt", id, a.Decision)
			}
		}
	})
}

// orderedSink takes several of a group, and fails the first for a while.
type orderedSink struct {
	until time.Time
	got   []int64
}

func (s *orderedSink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Ordered: true, MaxBatch: 100}
}
func (s *orderedSink) Close(context.Context) error { return nil }
func (s *orderedSink) Deliver(_ context.Context, items []*pipeline.Item) {
	failed := map[uint64]bool{}
	for _, it := range items {
		switch {
		case failed[it.Group]:
			it.Err = pipeline.ErrBehind
		case it.Message.Origin.Offset%5 == 0 && time.Now().Before(s.until):
			it.Err = errors.New("not yet")
			failed[it.Group] = true
		default:
			s.got = append(s.got, it.Message.Origin.Offset)
		}
	}
}

func TestMessagesBehindAFailureKeepTheirOrderAndClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.phases.Guard.OnLeaseExpired = semel.ExpiryHold
		r.opts.Order = pipeline.OrderPartition
		r.opts.Failure.Attempts = 1000
		sink := &orderedSink{until: time.Now().Add(10 * time.Minute)} // many leases
		r.sink = sink
		for i := range int64(20) {
			r.add(i, string(rune('a'+i%18)), "") // the last two are duplicates
		}
		r.claim("h", 5*time.Minute) // of one in the middle, in flight elsewhere
		end := r.start(t.Context())
		time.Sleep(6 * time.Minute)
		r.claim("nothing", time.Second)
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(20)
		r.wantParked(nil)
		if len(sink.got) != 18 || !slices.IsSorted(sink.got) {
			t.Errorf("delivered: %v", sink.got)
		}
	})
}

func TestObserveDeliversEveryMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.phases.Observe = true
		r.opts.EventTime, r.opts.Window, r.opts.OnLate = true, time.Hour, pipeline.Drop
		failures := 3
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID == "late" && failures > 0 {
				failures--
				return semel.Result{}, errors.New("try again")
			}
			return semel.Result{}, nil
		}
		r.claim("elsewhere", time.Hour)
		for i, id := range []string{"a", "a", "a", "elsewhere", "late"} {
			it := r.add(int64(i), id, "")
			if it.Message.Time = time.Now(); id == "late" {
				it.Message.Time = time.Now().Add(-2 * time.Hour)
			}
		}
		r.run()
		r.wantAcked(5)
		r.wantParked(nil)
		if n := len(r.attempts("a")); n != 3 {
			t.Errorf("%d deliveries of a key that came three times", n)
		}
		if n := len(r.attempts("late")); n != 4 {
			t.Errorf("%d deliveries of what failed three times", n)
		}
		if n := len(r.attempts("elsewhere")); n != 1 {
			t.Errorf("%d deliveries of a message that is in flight elsewhere", n)
		}
		synctest.Wait()
	})
}

// TestClaimWithALostAnswerIsCompletedAfterTheDelivery: the store granted the claim, and only
// the answers were lost. The effect happened, so no other holder has to wait for the
// lease, and none repeats the effect.
func TestClaimWithALostAnswerIsCompletedAfterTheDelivery(t *testing.T) {
	for name, phases := range map[string]pipeline.TwoPhaseOptions{
		"pass":             {Pass: true},
		"observe":          {Observe: true},
		"pass, and hold":   {Pass: true, Guard: semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold}},
		"observe and pass": {Observe: true, Pass: true},
	} {
		for works, want := range map[bool]semel.Decision{true: semel.Duplicate, false: semel.InFlight} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					r.phases = phases
					lost := 0
					r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
						if lost++; lost == 3 && works {
							r.store.heal()
							return r.store.Store.Claim(ctx, reqs, answers)
						}
						_ = r.store.Store.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs)))
						return semel.ErrOutcomeUnknown
					}
					r.add(1, "a", "")
					r.run()
					r.wantAcked(1)
					if got := r.attempts("a"); !slices.Equal(got, []int{1}) {
						t.Errorf("attempts: %v", got)
					}
					if a := r.claim("a", time.Second); a.Decision != want {
						t.Errorf("the next delivery is %v, want %v", a.Decision, want)
					}
				})
			})
		}
	}
}
