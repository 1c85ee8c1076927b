package tiered_test

import (
	"context"
	"errors"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/tiered"
)

func TestAStackIsReadyIfItsDurableStoreIs(t *testing.T) {
	t.Parallel()
	s := newSite(t, tiered.Options{})
	passing, err := tiered.New(s.durable, &tiered.Options{OnOutage: tiered.Pass})
	s.must(err)
	ready, ok := semel.As[interface {
		Ready(ctx context.Context) error
	}](semel.Join(s.stack, 0))
	if !ok {
		t.Fatal("a joined stack does not say whether it is ready")
	}
	s.must(ready.Ready(t.Context()))
	s.must(s.redis.Kill())
	s.must(ready.Ready(t.Context()))
	s.must(s.postgres.Kill())
	if err := ready.Ready(t.Context()); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("without the durable server: %v", err)
	}
	if err := passing.Ready(t.Context()); err != nil {
		t.Errorf("a stack that passes claims without the durable server: %v", err)
	}
	s.must(s.postgres.Restart(t.Context()))
	s.eventually("the stack is ready again", func() bool { return ready.Ready(t.Context()) == nil })
	if err := newStack(t, newMemory(t, nil)).Ready(t.Context()); err != nil {
		t.Errorf("above a store that does not tell: %v", err)
	}
}

func newStack(t testing.TB, durable semel.Store) *tiered.Store {
	t.Helper()
	stack, err := tiered.New(durable, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stack
}
