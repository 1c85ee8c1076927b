package semel_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// tasksOf returns a task for each id.
func tasksOf(ids ...string) []*semel.Task {
	tasks := make([]*semel.Task, len(ids))
	for i, id := range ids {
		tasks[i] = &semel.Task{Call: &semel.Call{Key: semel.Key{ID: id}}}
	}
	return tasks
}

// TestABatchThatIsUsedAgainForgetsItsAnswers: an answer to the tasks before is not
// one to these.
func TestABatchThatIsUsedAgainForgetsItsAnswers(t *testing.T) {
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

// TestALostClaimIsAskedForOnce: GiveBack and Complete ask once more for a claim whose
// answer was lost.
func TestALostClaimIsAskedForOnce(t *testing.T) {
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

// TestATaskMovesBetweenRenewers: the lease of a task that is tried many times lasts
// all along, and the answer of a renewal that began before does not end it.
func TestATaskMovesBetweenRenewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		var extended atomic.Int64
		store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			extended.Add(1)
			return store.Store.Extend(ctx, reqs, answers)
		}
		var j journal
		g := newGuard(t, store, semel.GuardOptions{Observer: &j})
		b, waiting, tasks := g.NewBatch(), g.NewRenewer(), tasksOf("a", "b", "c")
		b.Claim(t.Context(), tasks)
		for range 10 {
			effect := b.Keep(t.Context(), tasks)
			<-time.After(9 * time.Second) // shorter than a heartbeat
			if effect.Err() != nil {
				t.Fatal(context.Cause(effect))
			}
			for _, task := range tasks {
				task.Err = errBroken
			}
			b.Stop()
			if effect.Err() == nil {
				t.Error("the context of the effects goes on")
			}
			waiting.Keep(tasks...)
			<-time.After(9 * time.Second)
			for _, task := range tasks {
				if !b.Lasts(task) {
					t.Fatalf("the lease of %s ends", task.Call.Key)
				}
				task.Err = nil
			}
		}
		synctest.Wait()
		asked := extended.Load()
		if asked < 15 || asked > 20 {
			t.Errorf("%d renewals in three minutes", asked)
		}
		b.GiveBack(t.Context(), tasks[:1])
		if extended.Load() != asked {
			t.Error("a first attempt without doubt is not released")
		}
		if !b.Lasts(tasks[1]) || !b.Lasts(tasks[2]) || b.Lasts(tasks[0]) {
			t.Error("another task than the one that was given back has no lease")
		}
		<-time.After(time.Minute)
		b.Complete(t.Context(), tasks[1:])
		for _, task := range tasks[1:] {
			if task.Err != nil || task.Held() || task.Delivered() {
				t.Errorf("%s: %v", task.Call.Key, task.Err)
			}
		}
		synctest.Wait()
		before := extended.Load()
		<-time.After(time.Minute)
		if extended.Load() != before {
			t.Error("nothing is held, and a renewal is sent")
		}
		if j.has(semel.EventLeaseLost) {
			t.Error("the lease of a task that was given back is renewed")
		}
		waiting.Stop()
	})
}

// TestALaterTaskPostponesNoRenewal: the renewer has one timer for all.
func TestALaterTaskPostponesNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
		b, waiting := g.NewBatch(), g.NewRenewer()
		first := tasksOf("first")
		b.Claim(t.Context(), first)
		waiting.Keep(first...)
		for range 5 {
			<-time.After(9 * time.Second)
			later := tasksOf(time.Now().String())
			b.Claim(t.Context(), later)
			waiting.Keep(later...)
		}
		if !b.Lasts(first[0]) {
			t.Error("the first lease ends")
		}
		waiting.Stop()
	})
}

// TestARenewalThatFailsIsRepeatedSoon: the store has a quarter of a heartbeat to
// recover, and may answer several times before the lease ends.
func TestARenewalThatFailsIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		began := time.Now()
		var asked []time.Duration
		store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			if asked = append(asked, time.Since(began).Round(100*time.Millisecond)); len(asked) < 4 {
				return semel.ErrStoreUnavailable
			}
			return store.Store.Extend(ctx, reqs, answers)
		}
		_, err := newGuard(t, store, semel.GuardOptions{}).Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			<-time.After(40 * time.Second)
			return nil, ctx.Err()
		})
		want := []time.Duration{10 * time.Second, 12500 * time.Millisecond, 15 * time.Second, 17500 * time.Millisecond, 27500 * time.Millisecond, 37500 * time.Millisecond}
		if err != nil || !slices.Equal(asked, want) {
			t.Errorf("%v; renewals at %v, want %v", err, asked, want)
		}
	})
}

// TestNoRenewalRunsAfterStop: Stop ends a renewal that does not return.
func TestNoRenewalRunsAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		var running, calls atomic.Int32
		store.extend = func(ctx context.Context, _ []semel.ExtendRequest, _ []semel.ExtendAnswer) error {
			calls.Add(1)
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}
		var j journal
		g := newGuard(t, store, semel.GuardOptions{Observer: &j})
		_, err := g.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			<-time.After(11 * time.Second)
			return nil, ctx.Err()
		})
		if err != nil || running.Load() != 0 || calls.Load() != 1 {
			t.Errorf("%v; %d of %d renewals run", err, running.Load(), calls.Load())
		}
		<-time.After(time.Minute)
		if calls.Load() != 1 || j.has(semel.EventLeaseLost) || j.has(semel.EventStoreError) {
			t.Errorf("%d renewals, %v", calls.Load(), j.events)
		}
	})
}

// TestARenewalThatIsLateSpoilsNoLaterAttempt: its answer no longer counts when the
// task has left. A task that is still there loses its lease by it.
func TestARenewalThatIsLateSpoilsNoLaterAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		var calls atomic.Int32
		store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			calls.Add(1)
			select {
			case <-time.After(8 * time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
			for i := range reqs {
				answers[i].Err = &semel.StaleTokenError{Key: reqs[i].Key, Token: reqs[i].Token}
			}
			return nil
		}
		var j journal
		g := newGuard(t, store, semel.GuardOptions{Observer: &j})
		b, waiting, tasks := g.NewBatch(), g.NewRenewer(), tasksOf("left", "stayed")
		b.Claim(t.Context(), tasks)
		waiting.Keep(tasks...)
		<-time.After(12 * time.Second)
		effect := b.Keep(t.Context(), tasks[:1])
		<-time.After(7 * time.Second)
		if effect.Err() != nil || !b.Lasts(tasks[0]) || b.Lasts(tasks[1]) {
			t.Errorf("lasts: %t and %t, %v", b.Lasts(tasks[0]), b.Lasts(tasks[1]), context.Cause(effect))
		}
		b.Stop()
		<-time.After(time.Minute)
		lost := 0
		for _, e := range j.events {
			if e.Kind == semel.EventLeaseLost && e.Key.ID == "stayed" {
				lost++
			}
		}
		if lost != 1 || calls.Load() > 2 {
			t.Errorf("%d leases were lost in %d renewals", lost, calls.Load())
		}
		waiting.Stop()
	})
}

// TestNoRenewalRunsAfterAPanic: the key is given back, and its lease must not be
// renewed any more.
func TestNoRenewalRunsAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		renewed := 0
		store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			if reqs[0].Lease == semel.DefaultLease {
				renewed++
			}
			return store.Store.Extend(ctx, reqs, answers)
		}
		g := newGuard(t, store, semel.GuardOptions{})
		var effect context.Context
		func() {
			defer func() { _ = recover() }()
			_, _ = g.Do(t.Context(), orderKey, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
				effect = ctx
				panic("boom")
			})
		}()
		<-time.After(time.Minute)
		if effect.Err() == nil || renewed != 0 {
			t.Errorf("%d renewals, and the effect's context ended with %v", renewed, effect.Err())
		}
	})
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

// TestEventsOfACall are all events of a call, in order.
func TestEventsOfACall(t *testing.T) {
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

// TestCallersThatLeaveAsTheirAnswersArrive: a caller that gives up while answers are
// handed out disturbs no caller that comes later.
func TestCallersThatLeaveAsTheirAnswersArrive(t *testing.T) {
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

// TestSettleReportsATakeOverOnlyAfterAnotherAttempt is for those who claim keys in a
// transaction of their own.
func TestSettleReportsATakeOverOnlyAfterAnotherAttempt(t *testing.T) {
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
