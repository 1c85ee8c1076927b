package semel_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestARecoveredClaimKeepsOtherRenewalsRunning keeps a claim that Complete found with one that was granted.
func TestARecoveredClaimKeepsOtherRenewalsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t, nil)
		store := &hooked{Store: inner}
		g := newGuard(t, store, semel.GuardOptions{})
		b, tasks := g.NewBatch(), tasksOf("a", "b")
		store.claim = func(ctx context.Context, r []semel.ClaimRequest, a []semel.ClaimAnswer) error { return errReset }
		b.Claim(t.Context(), tasks[1:])
		store.claim = nil
		store.complete = func(context.Context, []semel.CompleteRequest, []error) error { return semel.ErrStoreFailed }
		b.Complete(t.Context(), tasks[1:]) // it passed without a claim and was delivered
		if !tasks[1].Held() || !tasks[1].Delivered() {
			t.Fatal("not recovered")
		}
		store.complete = nil
		b.Claim(t.Context(), tasks[:1])
		effect := b.Keep(t.Context(), tasks)
		time.Sleep(100 * time.Second) // the effect of a
		if effect.Err() != nil {
			t.Log(context.Cause(effect))
		}
		other := newGuard(t, inner, semel.GuardOptions{})
		ran := false
		_, err := other.Do(t.Context(), tasks[0].Call.Key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
		if ran {
			t.Errorf("TWICE: another holder ran a while its effect ran under the engine (%v)", err)
		}
		b.Stop()
	})
}

// TestDeliveryWithoutAClaimKeepsLeaseRenewalsRunning is the same with a session.
func TestDeliveryWithoutAClaimKeepsLeaseRenewalsRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t, nil)
		store := &hooked{Store: inner}
		sink := &eachSink{do: func(ctx context.Context, it *pipeline.Item) {}}
		s, err := pipeline.NewTwoPhase(store, sink, &pipeline.TwoPhaseOptions{Pass: true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		b := &pipeline.Item{Group: 1, Call: semel.Call{Key: semel.Key{ID: "b"}}}
		n := 0
		store.claim = func(ctx context.Context, r []semel.ClaimRequest, a []semel.ClaimAnswer) error {
			if n++; n <= 2 {
				return errReset
			}
			return inner.Claim(ctx, r, a)
		}
		store.complete = func(context.Context, []semel.CompleteRequest, []error) error { return semel.ErrStoreFailed }
		s.Process(t.Context(), []*pipeline.Item{b})
		t.Logf("b: %v held %v", b.Err, b.Held != nil)
		store.complete = nil
		b.Tries++
		a := &pipeline.Item{Group: 2, Call: semel.Call{Key: semel.Key{ID: "a"}}}
		other := newGuard(t, inner, semel.GuardOptions{})
		sink.do = func(ctx context.Context, it *pipeline.Item) {
			time.Sleep(100 * time.Second)
			ran := false
			_, _ = other.Do(t.Context(), it.Call.Key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
			if ran {
				t.Errorf("TWICE: another holder ran %s during its effect", it.Call.Key.ID)
			}
		}
		s.Process(t.Context(), []*pipeline.Item{a, b})
		t.Logf("a: %v, b: %v", a.Err, b.Err)
	})
}

// TestTasksThatComeOneByOneAreRenewedTogether keeps a thousand tasks, and one more every 100 ms.
func TestTasksThatComeOneByOneAreRenewedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newStore(t, nil)
		store := &hooked{Store: inner}
		var calls, leases atomic.Int64
		store.extend = func(ctx context.Context, r []semel.ExtendRequest, a []semel.ExtendAnswer) error {
			calls.Add(1)
			leases.Add(int64(len(r)))
			return inner.Extend(ctx, r, a)
		}
		g := newGuard(t, store, semel.GuardOptions{})
		w := g.NewRenewer()
		defer w.Stop()
		// A thousand wait. Every 100 ms one more comes, 9.9 s after its claim.
		base := make([]string, 1000)
		for i := range base {
			base[i] = fmt.Sprint("w", i)
		}
		wt := tasksOf(base...)
		g.NewBatch().Claim(t.Context(), wt)
		w.Keep(wt...)
		for i := range 300 {
			time.Sleep(100 * time.Millisecond)
			go func() {
				x := tasksOf(fmt.Sprint("n", i))
				g.NewBatch().Claim(t.Context(), x)
				time.Sleep(9900 * time.Millisecond)
				w.Keep(x...)
			}()
		}
		time.Sleep(10 * time.Second)
		if calls, leases := calls.Load(), leases.Load(); calls > 20 || leases > 20_000 {
			t.Errorf("%d calls renewed %d leases in 40 s, with a heartbeat of 10 s", calls, leases)
		}
	})
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
				t.Error("the context of the effects does not end")
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

// TestLaterTaskDoesNotDelayRenewalOfAnEarlierOne: the renewer has one timer for all.
func TestLaterTaskDoesNotDelayRenewalOfAnEarlierOne(t *testing.T) {
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

// TestALateRenewalAffectsNoLaterAttempt: its answer no longer counts when the
// task has left. A task that is still there loses its lease by it.
func TestALateRenewalAffectsNoLaterAttempt(t *testing.T) {
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
