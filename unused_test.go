package semel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// stalled is a store that may stop answering. While it is silent, claims are executed
// and their answers are lost; while it is deaf, they are executed later, by wake.
type stalled struct {
	semel.Store

	mu           sync.Mutex // guards the fields below; the guard asks from a timer
	silent, deaf bool
	muted        bool // releases are not executed, and not answered
	late         [][]semel.ClaimRequest
}

func (s *stalled) Unwrap() semel.Store { return s.Store }

func (s *stalled) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.deaf:
		s.late = append(s.late, append([]semel.ClaimRequest(nil), reqs...))
		return semel.ErrOutcomeUnknown
	case s.silent:
		if err := s.Store.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs))); err != nil {
			return err
		}
		return semel.ErrOutcomeUnknown
	}
	return s.Store.Claim(ctx, reqs, answers)
}

func (s *stalled) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf || s.silent {
		return semel.ErrStoreUnavailable
	}
	inspector, _ := semel.As[semel.Inspector](s.Store)
	return inspector.Look(ctx, keys, records)
}

func (s *stalled) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.muted {
		return semel.ErrOutcomeUnknown
	}
	return s.Store.Release(ctx, reqs, answers)
}

// mute loses releases until speak.
func (s *stalled) mute() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.muted = true
}

func (s *stalled) speak() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.muted = false
}

// answer lets the store answer again.
func (s *stalled) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.deaf = false, false
}

// wake executes what came while the store was deaf.
func (s *stalled) wake(t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, reqs := range s.late {
		if err := s.Store.Claim(t.Context(), reqs, make([]semel.ClaimAnswer, len(reqs))); err != nil {
			t.Error(err)
		}
	}
	s.late = nil
}

// inspected is a stalled store that is an Inspector.
type inspected struct {
	*stalled
	semel.Inspector
}

func (s inspected) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return s.stalled.Look(ctx, keys, records)
}

// ways are those in which a caller loses the answer to a claim that it does not use.
var ways = map[string]func(t *testing.T, g *semel.Guard, call semel.Call) error{
	"Do": func(t *testing.T, g *semel.Guard, call semel.Call) error {
		_, err := g.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) {
			t.Error("the effect ran")
			return nil, nil
		})
		return err
	},
	"DoBatch": func(t *testing.T, g *semel.Guard, call semel.Call) error {
		return g.DoBatch(t.Context(), []semel.Call{call}, func(context.Context, []*semel.BatchItem) error {
			t.Error("the effect ran")
			return nil
		})[0].Err
	},
	"Batch": func(t *testing.T, g *semel.Guard, call semel.Call) error {
		b, tasks := g.NewBatch(), []*semel.Task{{Call: &call}}
		b.Claim(t.Context(), tasks)
		err := tasks[0].Err
		b.GiveBack(t.Context(), tasks)
		return err
	},
}

// TestClaimWithALostAnswerDoesNotBlockItsKey loses the answers of a store that has
// executed the claim, or executes it when it continues, long after its caller gave up.
func TestClaimWithALostAnswerDoesNotBlockItsKey(t *testing.T) {
	stalls := map[string]struct {
		silent bool
		woken  time.Duration // when the store executes what it got; before it answers others if 0
	}{
		"the answer is lost":              {silent: true},
		"the store was stopped":           {},
		"a claim arrives after all":       {woken: 3 * time.Second},
		"a claim arrives much later":      {woken: 25 * time.Second},
		"the caller does not come before": {woken: 6 * time.Second},
	}
	for how, lose := range ways {
		for name, stall := range stalls {
			for _, policy := range []semel.ExpiryPolicy{semel.ExpiryRetry, semel.ExpiryHold} {
				t.Run(how+"/"+name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						below := newStore(t, nil)
						inspector, _ := semel.As[semel.Inspector](below)
						store := &stalled{Store: below, silent: stall.silent, deaf: !stall.silent}
						g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{OnLeaseExpired: policy})
						call := semel.Call{Key: semel.Key{Scope: "s", ID: "k"}, Fingerprint: semel.Fingerprint{1}}
						if err := lose(t, g, call); !errors.Is(err, semel.ErrOutcomeUnknown) {
							t.Fatalf("error %v", err)
						}
						time.Sleep(4 * time.Second) // the store is silent
						if stall.woken == 0 {
							store.wake(t)
						}
						store.answer()
						time.Sleep(stall.woken)
						store.wake(t)
						time.Sleep(semel.DefaultLease) // the caller comes as late as this
						var records [1]semel.Record
						if err := inspector.Look(t.Context(), []semel.Key{call.Key}, records[:]); err != nil || records[0].State != semel.Absent {
							t.Errorf("the key is %v: %v", records[0].State, err)
						}
						out, err := g.DoCall(t.Context(), call, func(_ context.Context, c semel.Claim) ([]byte, error) {
							return nil, nil
						})
						if err != nil || out.Decision != semel.Fresh || out.Attempt != 1 {
							t.Errorf("the next call: %+v, %v", out, err)
						}
					})
				})
			}
		}
	}
}

// TestNextCallTakesOverAClaimWithALostAnswer: it neither waits for the claim to be
// given back, nor does another call get it.
func TestNextCallTakesOverAClaimWithALostAnswer(t *testing.T) {
	for how, lose := range ways {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stalled{Store: newStore(t, nil), silent: true}
				g := newGuard(t, store, semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
				call := semel.Call{Key: semel.Key{ID: "k"}}
				for range 3 {
					if err := lose(t, g, call); !errors.Is(err, semel.ErrOutcomeUnknown) {
						t.Fatalf("error %v", err)
					}
				}
				store.answer()
				ran := 0
				out, err := g.DoCall(t.Context(), call, func(ctx context.Context, c semel.Claim) ([]byte, error) {
					ran++
					if _, err := g.DoCall(ctx, call, func(context.Context, semel.Claim) ([]byte, error) { ran++; return nil, nil }); !errors.Is(err, semel.ErrInFlight) {
						t.Errorf("a call while it runs: %v", err)
					}
					time.Sleep(2 * semel.DefaultLease) // whatever asks for the claim in this time must not give it back
					return []byte("done"), nil
				})
				if err != nil || out.Decision != semel.Fresh || out.Attempt != 1 || ran != 1 {
					t.Errorf("%+v, %v, %d runs", out, err, ran)
				}
				if out, err = g.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) { ran++; return nil, nil }); err != nil || out.Decision != semel.Duplicate || ran != 1 {
					t.Errorf("afterwards: %+v, %v, %d runs", out, err, ran)
				}
			})
		})
	}
}

// TestAnEffectThatRanIsNeverGivenBackAsUnused passes a task on without its claim, as a
// pipeline does that fails open: its key must not be free again as if nothing had run.
func TestAnEffectThatRanIsNeverGivenBackAsUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := newStore(t, nil)
		inspector, _ := semel.As[semel.Inspector](below)
		store := &stalled{Store: below, silent: true}
		g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
		call := semel.Call{Key: semel.Key{ID: "k"}}
		b, tasks := g.NewBatch(), []*semel.Task{{Call: &call}}
		b.Claim(t.Context(), tasks)
		if !tasks[0].Lost() {
			t.Fatal("the answer is not lost")
		}
		tasks[0].Err = nil
		b.Keep(t.Context(), tasks)
		b.Stop()
		b.Complete(t.Context(), tasks)
		store.answer()
		time.Sleep(2 * semel.DefaultLease)
		var records [1]semel.Record
		if err := inspector.Look(t.Context(), []semel.Key{call.Key}, records[:]); err != nil || records[0].State != semel.Unknown {
			t.Errorf("the key is %v, want unknown: %v", records[0].State, err)
		}
	})
}

// TestClaimWithALostReleaseDoesNotBlockItsKey gives a claim back while the store does
// not answer.
func TestClaimWithALostReleaseDoesNotBlockItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := newStore(t, nil)
		inspector, _ := semel.As[semel.Inspector](below)
		store := &stalled{Store: below}
		g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
		call := semel.Call{Key: semel.Key{ID: "k"}}
		b, tasks := g.NewBatch(), []*semel.Task{{Call: &call}}
		if b.Claim(t.Context(), tasks); !tasks[0].Held() {
			t.Fatal(tasks[0].Err)
		}
		store.mute()
		b.GiveBack(t.Context(), tasks)
		store.speak()
		time.Sleep(2 * semel.DefaultLease)
		var records [1]semel.Record
		if err := inspector.Look(t.Context(), []semel.Key{call.Key}, records[:]); err != nil || records[0].State != semel.Absent {
			t.Errorf("the key is %v, want absent: %v", records[0].State, err)
		}
	})
}

// TestAClaimThatIsBeingReleasedIsNotTakenOver: the store executes a release after its
// caller has given up. A call that had the claim by then would run without one.
func TestAClaimThatIsBeingReleasedIsNotTakenOver(t *testing.T) {
	for name, lose := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				below := newStore(t, nil)
				inspector, _ := semel.As[semel.Inspector](below)
				store := &stalled{Store: below, silent: true}
				g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
				call := semel.Call{Key: semel.Key{ID: "k"}}
				if err := lose(t, g, call); err == nil {
					t.Fatal("the answer is not lost")
				}
				store.mute()
				store.answer()
				time.Sleep(3 * time.Second) // the guard has asked, and its release is lost
				_, err := g.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
				if !errors.Is(err, semel.ErrInFlight) {
					t.Errorf("the call ends with %v", err)
				}
				store.speak()
				time.Sleep(semel.DefaultLease)
				if _, err := g.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil {
					t.Errorf("after the release: %v", err)
				}
			})
		})
	}
}

// TestAClaimThatArrivesAfterItsReleaseIsGivenBack: packets of a connection that was given up
// may arrive after those of the next one.
func TestAClaimThatArrivesAfterItsReleaseIsGivenBack(t *testing.T) {
	for name, again := range map[string]bool{"asked for by the release": false, "claimed again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				below := newStore(t, nil)
				inspector, _ := semel.As[semel.Inspector](below)
				store := &stalled{Store: below, deaf: true}
				g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
				call := semel.Call{Key: semel.Key{ID: "k"}}
				b, tasks := g.NewBatch(), []*semel.Task{{Call: &call}}
				if b.Claim(t.Context(), tasks); !tasks[0].Lost() {
					t.Fatal("the answer is not lost")
				}
				store.answer()
				if again {
					if b.Claim(t.Context(), tasks); !tasks[0].Held() {
						t.Fatal(tasks[0].Err)
					}
				}
				b.GiveBack(t.Context(), tasks)
				time.Sleep(semel.DefaultLease / 4)
				store.wake(t)
				time.Sleep(2 * semel.DefaultLease)
				var records [1]semel.Record
				if err := inspector.Look(t.Context(), []semel.Key{call.Key}, records[:]); err != nil || records[0].State != semel.Absent {
					t.Errorf("the key is %v, want absent: %v", records[0].State, err)
				}
			})
		})
	}
}

// TestReleaseOfALostClaimKeepsTheClaimOfAnotherTask has a task lose the answer to a claim that another
// task of the guard has, whose lease ends while the store does not answer. To give back the
// lost claim must not take over the key: the completion of the other task would be refused.
func TestReleaseOfALostClaimKeepsTheClaimOfAnotherTask(t *testing.T) {
	for how, lose := range ways {
		for _, policy := range []semel.ExpiryPolicy{semel.ExpiryRetry, semel.ExpiryHold} {
			t.Run(fmt.Sprint(how, " ", policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					below := newStore(t, nil)
					inspector, _ := semel.As[semel.Inspector](below)
					store := &stalled{Store: below}
					g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{OnLeaseExpired: policy})
					call := semel.Call{Key: semel.Key{ID: "k"}}
					holder, tasks := g.NewBatch(), []*semel.Task{{Call: &call}}
					if holder.Claim(t.Context(), tasks); !tasks[0].Held() {
						t.Fatal(tasks[0].Err)
					}
					store.mu.Lock()
					store.silent = true
					store.mu.Unlock()
					if err := lose(t, g, call); !errors.Is(err, semel.ErrOutcomeUnknown) {
						t.Fatalf("error %v", err)
					}
					time.Sleep(semel.DefaultLease)
					store.answer()
					time.Sleep(3 * semel.DefaultLease) // the guard asks as long as it wants to
					if holder.Complete(t.Context(), tasks); tasks[0].Err != nil {
						t.Errorf("the holder's completion: %v", tasks[0].Err)
					}
				})
			})
		}
	}
}

// TestClaimWithALostAnswerDoesNotBlockTheKeyForTheNextAttempt: a task of the guard has ended its lease, because
// its effect may have happened, while another task lost the answer to a claim of the key.
// The next attempt waits for a lease at most.
func TestClaimWithALostAnswerDoesNotBlockTheKeyForTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := newStore(t, nil)
		inspector, _ := semel.As[semel.Inspector](below)
		store := &stalled{Store: below}
		g := newGuard(t, inspected{store, inspector}, semel.GuardOptions{})
		call := semel.Call{Key: semel.Key{ID: "k"}}
		holder, tasks := g.NewBatch(), []*semel.Task{{Call: &call}}
		if holder.Claim(t.Context(), tasks); !tasks[0].Held() {
			t.Fatal(tasks[0].Err)
		}
		store.mu.Lock()
		store.silent = true
		store.mu.Unlock()
		if err := ways["Do"](t, g, call); !errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Fatalf("error %v", err)
		}
		store.answer()
		holder.Keep(t.Context(), tasks)
		tasks[0].Err = context.DeadlineExceeded
		holder.Stop()
		holder.GiveBack(t.Context(), tasks)
		time.Sleep(semel.DefaultLease + time.Second)
		other := newGuard(t, below, semel.GuardOptions{})
		if out, err := other.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil || out.Attempt != 2 {
			t.Errorf("the next attempt: %+v, %v", out, err)
		}
	})
}

// questions is a store that does not answer: each look lasts as long as its context.
type questions struct {
	semel.Store
	mu             sync.Mutex // guards the fields below
	now, most, all int
	closed         bool
}

func (q *questions) Unwrap() semel.Store { return q.Store }

func (q *questions) Claim(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error {
	return semel.ErrOutcomeUnknown
}

func (q *questions) Look(ctx context.Context, _ []semel.Key, _ []semel.Record) error {
	q.mu.Lock()
	q.now++
	q.all++
	q.most = max(q.most, q.now)
	q.mu.Unlock()
	<-ctx.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now--
	if q.closed {
		return semel.ErrClosed
	}
	return semel.ErrStoreUnavailable
}

// asked is a questions store that is an Inspector.
type asked struct {
	*questions
	semel.Inspector
}

func (s asked) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return s.questions.Look(ctx, keys, records)
}

// TestStoreThatDoesNotAnswerGetsOneLookupAtATime: the guard remembers a limited number of claims,
// and reports those above the limit.
func TestStoreThatDoesNotAnswerGetsOneLookupAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := newStore(t, nil)
		inspector, _ := semel.As[semel.Inspector](below)
		store := &questions{Store: below}
		var dropped atomic.Int64
		g := newGuard(t, asked{store, inspector}, semel.GuardOptions{Observer: semel.ObserverFunc(func(e semel.Event) {
			if e.Kind == semel.EventStoreError && strings.Contains(e.Err.Error(), "the guard remembers no more than 16384 claims") {
				dropped.Add(1)
			}
		})})
		const limit, more = 1 << 14, 3
		effect := func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }
		for i := range 10 {
			_, _ = g.DoCall(t.Context(), semel.Call{Key: semel.Key{ID: fmt.Sprint(i)}}, effect)
			time.Sleep(200 * time.Millisecond)
		}
		for i := 10; i < limit+more; i++ {
			_, _ = g.DoCall(t.Context(), semel.Call{Key: semel.Key{ID: fmt.Sprint(i)}}, effect)
		}
		time.Sleep(3 * semel.DefaultLease)
		store.mu.Lock()
		if store.most != 1 || store.all < 3 {
			t.Errorf("%d of %d questions concurrently", store.most, store.all)
		}
		store.closed = true
		store.mu.Unlock()
		time.Sleep(3 * semel.DefaultLease)
		if dropped.Load() != more {
			t.Errorf("%d claims were reported, want %d", dropped.Load(), more)
		}
	})
}

// TestClaimWithALostAnswerDoesNotDelayOtherClaims has one shard of a store hang, and another work.
func TestClaimWithALostAnswerDoesNotDelayOtherClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t, nil)
		store := &hooked{Store: inner}
		store.claim = func(ctx context.Context, r []semel.ClaimRequest, a []semel.ClaimAnswer) error {
			hang := false
			for i := range r {
				if r[i].Key.ID == "a" {
					hang = true
					continue
				}
				one := make([]semel.ClaimAnswer, 1)
				_ = inner.Claim(ctx, r[i:i+1], one)
				a[i] = one[0]
			}
			if hang {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(8 * time.Second):
					return fmt.Errorf("shard: read timeout: %w", semel.ErrOutcomeUnknown)
				}
			}
			return nil
		}
		var delivered time.Time
		other := newGuard(t, inner, semel.GuardOptions{})
		sink := &eachSink{do: func(ctx context.Context, it *pipeline.Item) { delivered = time.Now() }}
		lease := 12 * time.Second
		s, err := pipeline.NewTwoPhase(store, sink, &pipeline.TwoPhaseOptions{Pass: true, Guard: semel.GuardOptions{Lease: lease}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		a := &pipeline.Item{Group: 1, Call: semel.Call{Key: semel.Key{ID: "a"}}}
		b := &pipeline.Item{Group: 2, Call: semel.Call{Key: semel.Key{ID: "b"}}}
		twice := false
		go func() { // another consumer with a redelivery of b
			for range 400 {
				time.Sleep(100 * time.Millisecond)
				out, _ := other.Do(context.Background(), b.Call.Key, func(context.Context, semel.Claim) ([]byte, error) { twice = true; return nil, nil })
				if out.Decision == semel.Duplicate || twice {
					return
				}
			}
		}()
		began := time.Now()
		s.Process(t.Context(), []*pipeline.Item{a, b})
		t.Logf("delivered after %v, returned after %v; a: %v, b: %v", delivered.Sub(began), time.Since(began), a.Err, b.Err)
		time.Sleep(30 * time.Second)
		if twice || b.Err != nil {
			t.Errorf("TWICE: %t; b: %v", twice, b.Err)
		}
		if d := time.Since(delivered) - 30*time.Second; d > time.Second {
			t.Errorf("completion and acknowledgement of b waited %v for the claim of a", d)
		}
	})
}

// TestReleasingAnAbandonedClaimKeepsItsSuccessor has a caller leave a joint call and claim again, before the claim that it left is released.
func TestReleasingAnAbandonedClaimKeepsItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t, nil)
		store := &hooked{Store: inner}
		gate, entered := make(chan struct{}), make(chan struct{}, 10)
		store.claim = func(ctx context.Context, r []semel.ClaimRequest, a []semel.ClaimAnswer) error {
			err := inner.Claim(ctx, r, a)
			for i := range r {
				if r[i].Key.ID == "slow" || r[i].Key.ID == "lead" {
					entered <- struct{}{}
					<-gate
					break
				}
			}
			return err
		}
		g := newGuard(t, store, semel.GuardOptions{})
		var wg sync.WaitGroup
		wg.Go(func() { // occupies the lane
			b := g.NewBatch()
			b.Claim(context.Background(), tasksOf("slow"))
		})
		<-entered
		ctx, cancel := context.WithCancel(t.Context())
		x := tasksOf("x")
		b := g.NewBatch()
		done := make(chan struct{})
		wg.Go(func() { g.NewBatch().Claim(context.Background(), tasksOf("lead")) })
		synctest.Wait()
		go func() { b.Claim(ctx, x); close(done) }()
		synctest.Wait()
		gate <- struct{}{} // the first call ends, x and lead go together
		<-entered
		cancel()
		<-done
		t.Logf("x lost: %t, %v", x[0].Lost(), x[0].Err)
		// the owner asks again; two requests, so that it passes through
		again := append(x, tasksOf("y")...)
		b.Claim(t.Context(), again)
		t.Logf("x held: %t", x[0].Held())
		close(gate)
		wg.Wait()
		other := newGuard(t, inner, semel.GuardOptions{})
		out, err := other.Do(t.Context(), x[0].Call.Key, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
		if x[0].Held() && out.Decision == semel.Fresh {
			t.Errorf("TWICE: x is held, and another holder ran it (%v)", err)
		}
	})
}
