package semel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel"
)

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
