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

// TestABatchFuncMaySortItsItems has an effect sort its items, for example to lock rows in one order.
func TestABatchFuncMaySortItsItems(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	calls := []semel.Call{{Key: semel.Key{ID: "z"}}, {Key: semel.Key{ID: "a"}}}
	outs := g.DoBatch(t.Context(), calls, func(_ context.Context, items []*semel.BatchItem) error {
		slices.SortFunc(items, func(x, y *semel.BatchItem) int { return strings.Compare(x.Call.Key.ID, y.Call.Key.ID) })
		for _, it := range items {
			if it.Call.Key.ID == "z" {
				it.Err = errors.New("z failed")
			}
		}
		return nil
	})
	for i, o := range outs {
		t.Logf("%s: %v %v", calls[i].Key.ID, o.Decision, o.Err)
	}
	if outs[0].Err == nil || outs[1].Err != nil {
		t.Errorf("outcomes are swapped: z: %v, a: %v", outs[0].Err, outs[1].Err)
	}
	ran := false
	out, err := g.Do(t.Context(), calls[0].Key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
	if !ran {
		t.Errorf("LOST: z is %v (%v) without an effect", out.Decision, err)
	}
	ran = false
	_, _ = g.Do(t.Context(), calls[1].Key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
	if ran {
		t.Errorf("TWICE: a")
	}
}

// TestThePermanentErrorOfAnotherMessageIsNotItsOwn ends the context of a call with the permanent error of another message, which wraps ErrLeaseLost.
func TestThePermanentErrorOfAnotherMessageIsNotItsOwn(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	key := semel.Key{ID: "a"}
	_, err := g.Do(ctx, key, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
		cancel(semel.Permanent(fmt.Errorf("another message: %w", semel.ErrLeaseLost)))
		<-ctx.Done()
		return nil, errors.New("broken")
	})
	var p *semel.PermanentError
	if errors.As(err, &p) {
		t.Errorf("the caller would acknowledge: %v", err)
	}
	ran := false
	out, err := g.Do(t.Context(), key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
	if !ran {
		t.Errorf("LOST: %v %v", out.Decision, err)
	}
}

// TestThePermanentErrorOfAnotherMessageParksNothing is the same with a session.
func TestThePermanentErrorOfAnotherMessageParksNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := pipeline.NewTwoPhase(newStore(t, nil), &eachSink{do: func(_ context.Context, it *pipeline.Item) {
		cancel(semel.Permanent(fmt.Errorf("another message: %w", semel.ErrLeaseLost)))
		it.Err = errors.New("broken")
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	it := &pipeline.Item{Group: 1, Call: semel.Call{Key: semel.Key{ID: "a"}}}
	s.Process(ctx, []*pipeline.Item{it})
	var p *semel.PermanentError
	if errors.As(it.Err, &p) {
		t.Errorf("the runner would park: %v", it.Err)
	}
}

// TestALostLeaseOfAnOuterCallIsNotItsOwn loses the lease of a call whose effect is a call of another guard.
func TestALostLeaseOfAnOuterCallIsNotItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := &hooked{Store: newStore(t, nil)}
		outer.extend = func(_ context.Context, r []semel.ExtendRequest, a []semel.ExtendAnswer) error {
			a[0].Err = &semel.StaleTokenError{}
			return nil
		}
		g, in := newGuard(t, outer, semel.GuardOptions{}), newGuard(t, newStore(t, nil), semel.GuardOptions{})
		_, _ = g.Do(t.Context(), semel.Key{ID: "outer"}, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			_, err := in.Do(ctx, semel.Key{ID: "inner"}, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
				<-ctx.Done()
				return nil, semel.ErrStoreUnavailable // nothing happened
			})
			if errors.Is(err, semel.ErrLeaseLost) {
				t.Errorf("the inner lease was not lost: %v: %v", semel.Classify(err), err)
			}
			return nil, err
		})
	})
}

// TestALostLeaseOfAnotherItemIsNotItsOwn loses one of the leases of a batch.
func TestALostLeaseOfAnotherItemIsNotItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: newStore(t, nil)}
		store.extend = func(_ context.Context, r []semel.ExtendRequest, a []semel.ExtendAnswer) error {
			for i := range r {
				if r[i].Key.ID == "a" {
					a[i].Err = &semel.StaleTokenError{}
				} else {
					a[i].LeaseEnd = time.Now().Add(r[i].Lease)
				}
			}
			return nil
		}
		g := newGuard(t, store, semel.GuardOptions{})
		outs := g.DoBatch(t.Context(), []semel.Call{{Key: semel.Key{ID: "a"}}, {Key: semel.Key{ID: "b"}}}, func(ctx context.Context, items []*semel.BatchItem) error {
			<-ctx.Done()
			items[0].Err = ctx.Err()
			items[1].Err = semel.ErrStoreUnavailable // not begun
			return nil
		})
		t.Log(outs[1].Err)
		if errors.Is(outs[1].Err, semel.ErrLeaseLost) {
			t.Errorf("b kept its lease, but its error is %v: %v", semel.Classify(outs[1].Err), outs[1].Err)
		}
	})
}

// TestARecoveredClaimStopsNoRenewals keeps a claim that Complete found with one that was granted.
func TestARecoveredClaimStopsNoRenewals(t *testing.T) {
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

// TestAMessageThatPassedStopsNoRenewals is the same with a session.
func TestAMessageThatPassedStopsNoRenewals(t *testing.T) {
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

// TestALostClaimDoesNotHoldUpOthers has one shard of a store hang, and another work.
func TestALostClaimDoesNotHoldUpOthers(t *testing.T) {
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

// TestAnOrphanIsNotTheClaimThatIsAskedForAgain has a caller leave a joint call and claim again, before the claim that it left is released.
func TestAnOrphanIsNotTheClaimThatIsAskedForAgain(t *testing.T) {
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

// TestAnItemThatWaitsKeepsNoOtherInMemory processes a hundred items, of which one fails.
func TestAnItemThatWaitsKeepsNoOtherInMemory(t *testing.T) {
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
