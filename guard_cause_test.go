package semel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestWaitingCallIsNotPermanentlyRefusedWhenAnotherCallCancelsTheContext ends the context of one call with
// the error of another call, as errgroup does.
func TestWaitingCallIsNotPermanentlyRefusedWhenAnotherCallCancelsTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, newStore(t, nil), semel.GuardOptions{Wait: time.Minute})
		ctx, cancel := context.WithCancelCause(t.Context())
		_, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) {
			time.AfterFunc(time.Second, func() { cancel(semel.Permanent(errors.New("another message is malformed"))) })
			_, err := g.Do(ctx, orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
			if !errors.Is(err, context.Canceled) || semel.Classify(err) == semel.ClassPermanent {
				t.Errorf("who waits for the key got %v", err)
			}
			return nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestClaimIsNotPermanentlyRefusedWhenAnotherCallCancelsTheContext uses a store that returns the cause
// that ended the context of the call.
func TestClaimIsNotPermanentlyRefusedWhenAnotherCallCancelsTheContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	store := &hooked{Store: newStore(t, nil)}
	store.claim = func(ctx context.Context, _ []semel.ClaimRequest, _ []semel.ClaimAnswer) error {
		cancel(semel.Permanent(errors.New("another message is malformed")))
		return fmt.Errorf("the store waited: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
	}
	g := newGuard(t, store, semel.GuardOptions{})
	_, err := g.Do(ctx, orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
	if !errors.Is(err, context.Canceled) || semel.Classify(err) == semel.ClassPermanent {
		t.Errorf("Do: %v", err)
	}
	for _, out := range g.DoBatch(ctx, []semel.Call{{Key: orderKey}}, func(context.Context, []*semel.BatchItem) error { return nil }) {
		if out.Err == nil || semel.Classify(out.Err) == semel.ClassPermanent {
			t.Errorf("DoBatch: %v", out.Err)
		}
	}
}

// TestAPermanentErrorOfAnotherMessageIsNotRecorded ends the context of a call with the permanent error of another message, which wraps ErrLeaseLost.
func TestAPermanentErrorOfAnotherMessageIsNotRecorded(t *testing.T) {
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

// TestPermanentErrorOfAnotherMessageDoesNotPark is the same with a session.
func TestPermanentErrorOfAnotherMessageDoesNotPark(t *testing.T) {
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

// TestALostLeaseOfAnOuterCallIsNotReportedForTheInnerCall loses the lease of a call whose effect is a call of another guard.
func TestALostLeaseOfAnOuterCallIsNotReportedForTheInnerCall(t *testing.T) {
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

// TestLostLeaseOfABatchItemIsNotReportedForAnotherItem loses one of the leases of a batch.
func TestLostLeaseOfABatchItemIsNotReportedForAnotherItem(t *testing.T) {
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
