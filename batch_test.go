package semel_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// tasksOf returns a task for each id.
func tasksOf(ids ...string) []*semel.Task {
	tasks := make([]*semel.Task, len(ids))
	for i, id := range ids {
		tasks[i] = &semel.Task{Call: &semel.Call{Key: semel.Key{ID: id}}}
	}
	return tasks
}

// TestReusedBatchForgetsItsAnswers: an answer to the tasks before is not
// one to these.
func TestReusedBatchForgetsItsAnswers(t *testing.T) {
	store := &hooked{Store: newStore(t, nil)}
	b := newGuard(t, store, semel.GuardOptions{}).NewBatch()
	first := tasksOf("a")
	b.Claim(t.Context(), first)
	if first[0].Err != nil || !first[0].Held() || !b.Lasts(first[0]) {
		t.Fatalf("the first claim: %v", first[0].Err)
	}
	store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error {
		return semel.ErrStoreUnavailable
	}
	second := tasksOf("b")
	b.Claim(t.Context(), second)
	if err := second[0].Err; second[0].Held() || second[0].Lost() || second[0].Refused() || !errors.Is(err, semel.ErrStoreUnavailable) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("the second claim: held %t, %v", second[0].Held(), err)
	}
	store.complete = func(_ context.Context, _ []semel.CompleteRequest, answers []error) error {
		answers[0] = &semel.StaleTokenError{}
		return nil
	}
	b.Complete(t.Context(), first)
	if !errors.Is(first[0].Err, semel.ErrLeaseLost) || first[0].Held() || first[0].Delivered() {
		t.Errorf("a stale token: %v, held %t", first[0].Err, first[0].Held())
	}
}

// TestClaimWithALostAnswerIsRepeatedOnce: GiveBack and Complete ask once more for a claim whose
// answer was lost.
func TestClaimWithALostAnswerIsRepeatedOnce(t *testing.T) {
	for name, step := range map[string]func(*semel.Batch, context.Context, []*semel.Task){
		"give back": (*semel.Batch).GiveBack, "complete": (*semel.Batch).Complete,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in which no timer of the guard comes in between
				inner := newStore(t, nil)
				store := &hooked{Store: inner}
				claims := 0
				store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error {
					claims++
					return errReset
				}
				var j journal
				b := newGuard(t, store, semel.GuardOptions{Observer: &j}).NewBatch()
				tasks := tasksOf("a", "b")
				b.Claim(t.Context(), tasks[:1])
				if !tasks[0].Lost() || tasks[0].Refused() || claims != 2 {
					t.Fatalf("lost %t after %d claims", tasks[0].Lost(), claims)
				}
				store.claim = nil
				b.Claim(t.Context(), tasks[1:])
				store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error {
					claims++
					return errReset
				}
				before := len(j.events)
				step(b, t.Context(), tasks)
				step(b, t.Context(), tasks[:1])
				if tasks[0].Lost() || tasks[0].Held() || tasks[1].Held() || claims != 3 {
					t.Errorf("lost %t, held %t, %t, after %d claims", tasks[0].Lost(), tasks[0].Held(), tasks[1].Held(), claims)
				}
				now := j.events[before:]
				slices.SortFunc(now, func(x, y semel.Event) int { return strings.Compare(x.Key.ID, y.Key.ID) })
				if len(now) != 2 || now[0].Kind != semel.EventStoreError || now[0].Key.ID != "a" || now[1].Kind == semel.EventStoreError || now[1].Key.ID != "b" {
					t.Errorf("events: %v", now)
				}
			})
		})
	}
}

// TestGiveBackEndsAtTheDeadline: a pipeline that shuts down has no whole lease left.
func TestGiveBackEndsAtTheDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		limit, want time.Duration
		cancel      bool
	}{
		"a deadline":                    {limit: time.Second, want: time.Second},
		"a late deadline":               {limit: time.Hour, want: semel.DefaultLease},
		"none, and the context is over": {cancel: true, want: semel.DefaultLease},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &slowRelease{Store: newStore(t, nil)}
				b, tasks := newGuard(t, store, semel.GuardOptions{}).NewBatch(), tasksOf("a")
				b.Claim(t.Context(), tasks)
				ctx, cancel := context.WithCancel(t.Context())
				if c.limit > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), c.limit)
				}
				defer cancel()
				if c.cancel {
					cancel()
				}
				began := time.Now()
				b.GiveBack(ctx, tasks)
				if took := time.Since(began); took != c.want {
					t.Errorf("it took %v, want %v", took, c.want)
				}
			})
		})
	}
}

// slowRelease is a store that does not answer releases.
type slowRelease struct{ semel.Store }

func (s *slowRelease) Release(ctx context.Context, _ []semel.ReleaseRequest, _ []error) error {
	<-ctx.Done()
	return ctx.Err()
}

// slowClaims is a store that takes a second of its bubble for each claim and completion.
type slowClaims struct{ semel.Store }

func (s slowClaims) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	<-time.After(time.Second)
	return s.Store.Claim(ctx, reqs, answers)
}

func (s slowClaims) Complete(ctx context.Context, reqs []semel.CompleteRequest, errs []error) error {
	<-time.After(time.Second)
	return s.Store.Complete(ctx, reqs, errs)
}

// TestClaimAndEffectHaveTheirOwnTimes has a store that is slower than the effect.
func TestClaimAndEffectHaveTheirOwnTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		g := newGuard(t, slowClaims{newStore(t, nil)}, semel.GuardOptions{Observer: &j})
		const effect = 10 * time.Millisecond
		_, _ = g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) {
			time.Sleep(effect)
			return nil, nil
		})
		g.DoBatch(t.Context(), []semel.Call{{Key: semel.Key{Scope: "s", ID: "a"}}, {Key: semel.Key{Scope: "s", ID: "b"}}}, func(context.Context, []*semel.BatchItem) error {
			time.Sleep(effect)
			return nil
		})
		seen := 0
		for _, e := range j.events {
			switch want := map[semel.EventKind]time.Duration{semel.EventDecided: time.Second, semel.EventCompleted: effect}[e.Kind]; {
			case want == 0:
			case e.Elapsed != want:
				t.Errorf("%s took %v, want %v", e.Kind, e.Elapsed, want)
			default:
				seen++
			}
		}
		if seen != 4 {
			t.Errorf("%d events: %+v", seen, j.events)
		}
	})
}

// TestCallReportsItsEventsInOrder lists all events of a call.
func TestCallReportsItsEventsInOrder(t *testing.T) {
	var j journal
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{Observer: &j})
	_, _ = g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, errBroken })
	_, _ = g.Do(t.Context(), orderKey, j.effect("ok"))
	_, _ = g.Do(t.Context(), orderKey, j.effect("ok"))
	want := []semel.Event{
		{Kind: semel.EventDecided, Decision: semel.Fresh, Reason: "no record", Attempt: 1},
		{Kind: semel.EventReleased, Attempt: 1, Err: errBroken},
		{Kind: semel.EventDecided, Decision: semel.Fresh, Reason: "no record", Attempt: 1},
		{Kind: semel.EventCompleted},
		{Kind: semel.EventDecided, Decision: semel.Duplicate, Reason: "completed before"},
	}
	if len(j.events) != len(want) {
		t.Fatalf("%v", j.events)
	}
	for i, e := range j.events {
		want[i].Key = orderKey
		if (e.Kind == semel.EventDecided || e.Kind == semel.EventCompleted) && e.Elapsed <= 0 {
			t.Errorf("%s took %v", e.Kind, e.Elapsed)
		}
		if e.Elapsed = 0; e != want[i] {
			t.Errorf("event %d is %+v, want %+v", i, e, want[i])
		}
	}
}

// TestCallerCancelledWhileAnswersArriveDisturbsNoLaterCaller: a caller that gives up while answers are
// handed out disturbs no caller that comes later.
func TestCallerCancelledWhileAnswersArriveDisturbsNoLaterCaller(t *testing.T) {
	store := &hooked{Store: newStore(t, nil)}
	joined := semel.Join(store, 0)
	var callers sync.WaitGroup
	var nonce atomic.Uint64
	for range 16 {
		callers.Go(func() {
			for range 500 {
				n := nonce.Add(1)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%50)*time.Microsecond)
				req := semel.ClaimRequest{Key: semel.Key{ID: time.Duration(n).String()}, Owner: semel.Owner{Nonce: n}, Lease: time.Hour, Window: time.Hour}
				var answers [1]semel.ClaimAnswer
				err := joined.Claim(ctx, []semel.ClaimRequest{req}, answers[:])
				cancel()
				if err == nil && answers[0].Decision != semel.Fresh {
					t.Errorf("a claim without an error is %s", answers[0].Decision)
				}
			}
		})
	}
	callers.Wait()
}

// TestSettleReportsATakeoverOnlyForALaterAttempt is for those who claim keys in a
// transaction of their own.
func TestSettleReportsATakeoverOnlyForALaterAttempt(t *testing.T) {
	for _, c := range []struct {
		answer semel.ClaimAnswer
		want   bool
	}{
		{semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}, false},
		{semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 2}}, true},
		{semel.ClaimAnswer{Decision: semel.InFlight, Claim: semel.Claim{Attempt: 2}}, false},
	} {
		var j journal
		g := newGuard(t, newStore(t, nil), semel.GuardOptions{Observer: &j})
		_, _ = g.Settle(t.Context(), &semel.Call{Key: orderKey}, &c.answer, time.Second)
		if got := j.has(semel.EventTookOver); got != c.want {
			t.Errorf("%s, attempt %d: a take-over is reported: %t", c.answer.Decision, c.answer.Claim.Attempt, got)
		}
	}
}

// TestRefusalAfterALostAnswerIsUnknown: the first call may have made the claim. A
// refusal of the second call does not rule that out.
func TestRefusalAfterALostAnswerIsUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		call, key error
		want      semel.Class
	}{
		"the call is refused":            {call: semel.ErrStoreUnavailable, want: semel.ClassUnknown},
		"the store is closed":            {call: semel.ErrClosed, want: semel.ClassUnknown},
		"the key is refused":             {key: semel.ErrStoreFull, want: semel.ClassUnknown},
		"the key is refused permanently": {key: semel.ErrInvalidKey, want: semel.ClassPermanent},
	} {
		for how, do := range map[string]func(*testing.T, *semel.Guard) error{
			"single": func(t *testing.T, g *semel.Guard) error {
				_, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
				return err
			},
			"batch": func(t *testing.T, g *semel.Guard) error {
				return g.DoBatch(t.Context(), []semel.Call{{Key: orderKey}}, func(context.Context, []*semel.BatchItem) error { return nil })[0].Err
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // in which no timer of the guard comes in between
					inner := newStore(t, nil)
					store := &hooked{Store: inner}
					claims := 0
					store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
						if claims++; claims == 1 {
							_ = inner.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs)))
							return errors.New("connection reset")
						}
						answers[0].Err = c.key
						return c.call
					}
					err := do(t, newGuard(t, store, semel.GuardOptions{}))
					if got := semel.Classify(err); got != c.want || claims != 2 {
						t.Errorf("got %v of class %s after %d claims, want it %s", err, got, claims, c.want)
					}
					if got := look(t, inner, orderKey).State; got != semel.Claimed {
						t.Errorf("the record is %s", got)
					}
				})
			})
		}
	}
}

// TestWaitingMessageDoesNotKeepItsBatchInMemory processes a hundred items, of which one fails.
func TestWaitingMessageDoesNotKeepItsBatchInMemory(t *testing.T) {
	sink := &eachSink{do: func(_ context.Context, it *pipeline.Item) {
		if it.Call.Key.ID == "0" {
			it.Err = errors.New("later")
		}
	}}
	s, err := pipeline.NewTwoPhase(newStore(t, nil), sink, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	waiting, gone := func() (*pipeline.Item, []weak.Pointer[pipeline.Item]) {
		items := make([]*pipeline.Item, 100)
		var gone []weak.Pointer[pipeline.Item]
		for i := range items {
			items[i] = &pipeline.Item{Group: uint64(i), Call: semel.Call{Key: semel.Key{ID: fmt.Sprint(i)}}}
			if i > 0 {
				gone = append(gone, weak.Make(items[i]))
			}
		}
		s.Process(t.Context(), items)
		return items[0], gone
	}()
	for range 3 {
		runtime.GC()
	}
	alive := 0
	for _, w := range gone {
		if w.Value() != nil {
			alive++
		}
	}
	if alive > 0 {
		t.Errorf("%d of 99 settled items are kept in memory by the one that waits", alive)
	}
	runtime.KeepAlive(waiting)
}

// eachSink runs do for each item.
type eachSink struct {
	do func(context.Context, *pipeline.Item)
}

func (s *eachSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		s.do(ctx, it)
	}
}

func (*eachSink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{} }

func (*eachSink) Close(context.Context) error { return nil }
