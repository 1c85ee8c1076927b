package semel_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// TestWhoWaitsDoesNotFailForGoodByAnothersError ends the context of one call with
// the error of another call, as errgroup does.
func TestWhoWaitsDoesNotFailForGoodByAnothersError(t *testing.T) {
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

// TestAClaimDoesNotFailForGoodByAnothersError uses a store that returns the cause
// that ended the context of the call.
func TestAClaimDoesNotFailForGoodByAnothersError(t *testing.T) {
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
