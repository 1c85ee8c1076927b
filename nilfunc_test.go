package semel_test

import (
	"context"
	"errors"
	"testing"

	"github.com/semel-dev/semel"
)

func TestNilFunctionIsRefusedBeforeTheClaim(t *testing.T) {
	t.Parallel()
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	ctx, key := t.Context(), semel.Key{Scope: "test", ID: "a"}
	_, err := g.Do(ctx, key, nil)
	_, _, typed := semel.Do[int](ctx, g, key, nil)
	batch := g.DoBatch(ctx, []semel.Call{{Key: key}}, nil)
	for call, err := range map[string]error{"Guard.Do": err, "Run": g.Run(ctx, key, nil), "Do": typed, "DoBatch": batch[0].Err} {
		if !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%s: %v", call, err)
		}
	}
	out, err := g.Do(ctx, key, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
	if err != nil || out.Decision != semel.Fresh {
		t.Errorf("afterwards: %s, %v", out.Decision, err)
	}
}
