package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/tiered"
)

func TestDeadCacheCostsOneTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.cache.is(hangs)
		start := time.Now()
		for i := range 100 {
			b.done(fmt.Sprint(i))
		}
		if took := time.Since(start); took != tiered.DefaultTimeout {
			t.Errorf("100 keys took %v, want one time-out of %v", took, tiered.DefaultTimeout)
		}
		b.told("cache down")
		st := b.Status().Layers[0]
		if !st.Down || st.Failures != 1 || !errors.Is(st.Err, errFault) {
			t.Errorf("the status is %+v", st)
		}
		time.Sleep(tiered.DefaultRetry)
		start = time.Now()
		for i := range 100 {
			b.want(semel.Duplicate, fmt.Sprint(i))
		}
		if took := time.Since(start); took != tiered.DefaultTimeout {
			t.Errorf("after the pause 100 keys took %v, want one time-out more", took)
		}
		b.cache.is(healthy)
		time.Sleep(tiered.DefaultRetry)
		b.want(semel.Duplicate, "7") // was copied
		b.told("cache up")
		b.spared("a duplicate after the cache is back", func() { b.want(semel.Duplicate, "7") })
	})
}

// TestHangingCacheLeavesTimeForTheDurableStore claims with deadlines that are
// shorter than the timeout of the cache.
func TestHangingCacheLeavesTimeForTheDurableStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.cache.is(hangs)
		var waited time.Duration
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			answers := make([]semel.ClaimAnswer, 1)
			start := time.Now()
			err := b.Claim(ctx, []semel.ClaimRequest{b.request(fmt.Sprint(i))}, answers)
			waited += time.Since(start)
			cancel()
			if err != nil || answers[0].Decision != semel.Fresh {
				t.Fatalf("claim under a short deadline: %s, %v", answers[0].Decision, err)
			}
		}
		if waited < tiered.DefaultTimeout || waited > tiered.DefaultTimeout+50*time.Millisecond {
			t.Errorf("the calls waited for %v together, want about %v", waited, tiered.DefaultTimeout)
		}
		b.told("cache down")
	})
}

func TestCancelledCallDoesNotMarkACacheAsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := b.Claim(ctx, []semel.ClaimRequest{b.request("b")}, make([]semel.ClaimAnswer, 1)); err == nil {
				t.Error("a cancelled claim is answered without an error")
			}
		}
		b.spared("a duplicate", func() { b.want(semel.Duplicate, "a") })
		if b.Status().Layers[0].Down {
			t.Error("the cache is down")
		}
	})
}

func TestFilterThatFailsIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := tiered.NewMemoryFilter(nil)
		if err != nil {
			t.Fatal(err)
		}
		filter := &faultyFilter{memory, newFaulty(nil)}
		b := &bundle{TB: t, cache: newFaulty(newMemory(t, nil)), durable: newFaulty(newMemory(t, nil)), events: new([]tiered.Event)}
		b.Store, err = tiered.New(b.durable, &tiered.Options{
			Layers:  []tiered.Layer{{Name: "bloom", Filter: filter}, {Cache: b.cache}},
			Observe: func(e tiered.Event) { *b.events = append(*b.events, e) },
		})
		if err != nil {
			t.Fatal(err)
		}
		filter.faults.is(hangs)
		for _, id := range []string{"a", "b", "c"} {
			b.done(id)
		}
		b.told("bloom down")
		filter.faults.is(healthy)
		time.Sleep(tiered.DefaultRetry)
		b.done("d")
		b.told("bloom up")
		// The durable store answers a key that the filter missed. The filter
		// knows it afterwards.
		b.want(semel.Duplicate, "a")
		b.spared("a duplicate", func() { b.want(semel.Duplicate, "a") })
	})
}

func TestStopReturnsTheErrorAndAnswersFromTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		b.durable.is(refuses)
		b.want(semel.Duplicate, "a")
		answers := make([]semel.ClaimAnswer, 3)
		err := b.Claim(t.Context(), []semel.ClaimRequest{b.request("new"), b.request("a"), b.request("newer")}, answers)
		if !errors.Is(err, semel.ErrStoreUnavailable) || answers[0].Decision != semel.Undecided ||
			answers[1].Decision != semel.Duplicate || answers[2].Decision != semel.Undecided {
			t.Errorf("a claim during the outage is answered %+v, %v", answers, err)
		}
		b.told("durable down")
		if !b.Status().Durable.Down {
			t.Error("the status says that the durable store is up")
		}
		b.durable.is(healthy)
		b.done("new")
		b.told("durable up")
	})
}

func TestWaitAsksUntilTheDurableStoreAnswers(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuses, "loses answers": mute} {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, tiered.Options{OnOutage: tiered.Wait})
			b.durable.is(f)
			back := time.AfterFunc(time.Minute, func() { b.durable.is(healthy) })
			defer back.Stop()
			start := time.Now()
			c := b.want(semel.Fresh, "a").Claim
			if took := time.Since(start); took < time.Minute || took > time.Minute+2*time.Second {
				t.Errorf("a store that %s for a minute: the claim took %v", name, took)
			}
			if n := b.durable.count("claim"); n > 80 {
				t.Errorf("the store was asked %d times in a minute", n)
			}
			b.told("durable down", "durable up")

			b.durable.is(f)
			again := time.AfterFunc(time.Second, func() { b.durable.is(healthy) })
			defer again.Stop()
			if err := b.tryComplete("a", c.Token); err != nil {
				t.Errorf("complete: %v", err)
			}
			b.want(semel.Duplicate, "a")
		})
	}
}

func TestWaitEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{OnOutage: tiered.Wait})
		// The first answer was lost, and the later calls were never executed.
		// It stays unknown what the first call changed.
		first := true
		b.durable.setFaults(func(string) fault {
			if first {
				first = false
				return mute
			}
			return refuses
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req := b.request("a")
		err := b.Claim(ctx, []semel.ClaimRequest{req}, make([]semel.ClaimAnswer, 1))
		if semel.Classify(err) != semel.ClassUnknown || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the claim that waited for its whole time: %v, %s", err, semel.Classify(err))
		}
		b.durable.is(healthy)
		if a, err := b.tryClaim(req); err != nil || a.Decision != semel.Fresh {
			t.Errorf("the claim does not recognise itself: %s, %v", a.Decision, err)
		}
	})
}

func TestPassRunsEffectsWithoutRecordingThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{OnOutage: tiered.Pass})
		b.done("a")
		held := b.want(semel.Fresh, "held").Claim
		b.durable.is(refuses)
		guard, err := semel.NewGuard(b.Store, nil)
		if err != nil {
			t.Fatal(err)
		}
		effects := make(map[string]int)
		deliver := func(id string) error {
			_, err := guard.Do(t.Context(), key(id), func(context.Context, semel.Claim) ([]byte, error) {
				effects[id]++
				time.Sleep(time.Minute) // with heartbeats
				return nil, nil
			})
			return err
		}
		for range 2 {
			if err := errors.Join(deliver("a"), deliver("b")); err != nil {
				t.Errorf("a delivery during the outage: %v", err)
			}
		}
		if effects["a"] != 0 || effects["b"] != 2 {
			t.Errorf("the effects are %v, want none of a, which the cache knows, and two of b", effects)
		}
		if n := b.Status().Passed; n != 2 {
			t.Errorf("%d claims are counted as passed, want 2", n)
		}
		b.told("durable down", "durable passed", "durable passed")
		answers := make([]semel.ClaimAnswer, 1)
		if err := b.Claim(t.Context(), []semel.ClaimRequest{{}}, answers); err != nil || !errors.Is(answers[0].Err, semel.ErrInvalidKey) {
			t.Errorf("an invalid request is passed: %+v, %v", answers[0], err)
		}
		// A claim from before the outage did not pass.
		if err := b.tryComplete("held", held.Token); !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Errorf("a completion during the outage: %v", err)
		}

		b.durable.is(healthy)
		time.Sleep(tiered.DefaultRetry)
		b.done("b")
		b.want(semel.Duplicate, "b")
		if err := b.tryComplete("held", held.Token); err != nil {
			t.Errorf("a completion after the outage: %v", err)
		}
		b.told("durable up")
	})
}

func TestPassRetriesADeadStoreOncePerRetryInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{OnOutage: tiered.Pass})
		b.durable.setFaults(func(string) fault {
			time.Sleep(100 * time.Millisecond)
			return mute
		})
		start := time.Now()
		for i := range 1000 {
			b.want(semel.Fresh, fmt.Sprint(i))
		}
		if took := time.Since(start); took != 100*time.Millisecond {
			t.Errorf("1000 claims took %v, want the time of one call", took)
		}
		if n := b.durable.count("claim"); n != 1 {
			t.Errorf("the store was asked %d times", n)
		}
	})
}
