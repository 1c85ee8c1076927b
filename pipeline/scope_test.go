package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// bindingStore is a flaky store that binds scopes.
type bindingStore struct {
	*flaky
	bind func(ctx context.Context, scope, rule string) (string, error)
}

func (s bindingStore) BindScope(ctx context.Context, scope, rule string) (string, error) {
	return s.bind(ctx, scope, rule)
}

// runOne runs a pipeline over one message with an id.
func runOne(t *testing.T, store semel.Store, opts pipeline.Options, phases *pipeline.TwoPhaseOptions) (delivered int, err error) {
	t.Helper()
	r := newRig(t)
	r.add(1, "7", "")
	session, err := pipeline.NewTwoPhase(store, &tryingSink{func(*pipeline.Item) error { delivered++; return nil }}, phases)
	if err != nil {
		t.Fatal(err)
	}
	opts.DeadLetters = r.letters
	runner, err := pipeline.NewRunner(r.source, session, &opts)
	if err != nil {
		t.Fatal(err)
	}
	err = runner.Run(t.Context())
	return delivered, err
}

func itself(m semel.Message) (semel.Message, error) { return m, nil }

// TestAScopeBelongsToOneRule: order 7 and customer 7 are two messages.
func TestAScopeBelongsToOneRule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		orders, err := key.ParseRule(".id")
		if err != nil {
			t.Fatal(err)
		}
		customers, err := key.All(orders, orders)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := runOne(t, store, pipeline.Options{Key: orders, Scope: "s"}, nil); n != 1 || err != nil {
			t.Fatalf("the first rule: %d delivered, %v", n, err)
		}
		n, err := runOne(t, store, pipeline.Options{Key: customers, Scope: "s"}, nil)
		if bound, ok := errors.AsType[*semel.ScopeError](err); !ok || bound.Bound.Rule != ".id" || bound.Owner.Rule != customers.String() || !errors.Is(err, semel.ErrInvalidRequest) || n != 0 {
			t.Errorf("another rule: %d delivered, %v", n, err)
		}
		// The same rule finds other ids in the message inside.
		n, err = runOne(t, store, pipeline.Options{Key: orders, Scope: "s", Unwrap: opener(itself)}, nil)
		if bound, ok := errors.AsType[*semel.ScopeError](err); !ok || bound.Bound.Rule != ".id" || bound.Owner.Rule != ".id of the message inside (unwrap: in < and >)" || n != 0 {
			t.Errorf("with another unwrap: %d delivered, %v", n, err)
		}
		for _, opts := range []pipeline.Options{{Key: customers, Scope: "s", SameScope: true}, {Key: customers, Scope: "t"}, {Key: orders, Scope: "u", Unwrap: opener(itself)}} {
			if n, err := runOne(t, store, opts, nil); n != 1 || err != nil {
				t.Errorf("scope %s, same %t: %d delivered, %v", opts.Scope, opts.SameScope, n, err)
			}
		}
	})
}

// TestAScopeBelongsToOnePipeline: another pipeline has another effect, and would drop
// the message as a duplicate.
func TestAScopeBelongsToOnePipeline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		first, second pipeline.Options
		refused       bool
	}{
		{"another pipeline", pipeline.Options{Name: "a"}, pipeline.Options{Name: "b"}, true},
		{"the same pipeline", pipeline.Options{Name: "a"}, pipeline.Options{Name: "a"}, false},
		{"the second shares", pipeline.Options{Name: "a"}, pipeline.Options{Name: "b", SameScope: true}, false},
		{"the first shares", pipeline.Options{Name: "a", SameScope: true}, pipeline.Options{Name: "b"}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newStore(t)
			for i, opts := range []pipeline.Options{c.first, c.second} {
				opts.Key, opts.Scope = rule(t), "s"
				n, err := runOne(t, store, opts, nil)
				refused := i == 1 && c.refused
				if bound, ok := errors.AsType[*semel.ScopeError](err); ok != refused || ok && (bound.Bound.Pipeline != "a" || bound.Owner.Pipeline != "b") || err != nil && !ok || i == 0 && n != 1 || i == 1 && n != 0 {
					t.Errorf("%s: pipeline %s: %d delivered, %v", c.name, opts.Name, n, err)
				}
			}
		})
	}
}

// TestPipelineWaitsUntilTheStoreHasBoundItsScope: without the answer it could drop
// new messages.
func TestPipelineWaitsUntilTheStoreHasBoundItsScope(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		phases pipeline.TwoPhaseOptions
		waits  bool
	}{{waits: true}, {phases: pipeline.TwoPhaseOptions{Pass: true}}, {phases: pipeline.TwoPhaseOptions{Observe: true}}} {
		synctest.Test(t, func(t *testing.T) {
			calls, begin := 0, time.Now()
			store := bindingStore{&flaky{Store: newStore(t)}, func(_ context.Context, _, rule string) (string, error) {
				if calls++; calls < 4 {
					return "", semel.ErrStoreUnavailable
				}
				return rule, nil
			}}
			n, err := runOne(t, store, pipeline.Options{Key: rule(t)}, &c.phases)
			if n != 1 || err != nil || (calls == 4) != c.waits || (time.Since(begin) > 0) != c.waits {
				t.Errorf("%d delivered after %d calls and %v: %v", n, calls, time.Since(begin), err)
			}
		})
	}
}

// TestAPipelineThatWaitsForItsScopeCanBeStopped ends the context.
func TestAPipelineThatWaitsForItsScopeCanBeStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ctx, stop := context.WithCancel(t.Context())
		store := bindingStore{r.store, func(context.Context, string, string) (string, error) {
			stop()
			return "", semel.ErrStoreUnavailable
		}}
		session, err := pipeline.NewTwoPhase(store, &tryingSink{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		runner, err := pipeline.NewRunner(r.source, session, &r.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := runner.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestARuleThatFindsNoKeyDoesNotBindTheScope: a typing error must not keep the right
// rule out.
func TestARuleThatFindsNoKeyDoesNotBindTheScope(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newStore(t)
		wrong, err := key.ParseRule("header:absent")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := runOne(t, store, pipeline.Options{Key: wrong, Scope: "s"}, nil); n != 0 || err != nil {
			t.Fatalf("the wrong rule: %d delivered, %v", n, err)
		}
		if n, err := runOne(t, store, pipeline.Options{Key: rule(t), Scope: "s"}, nil); n != 1 || err != nil {
			t.Errorf("the right rule: %d delivered, %v", n, err)
		}
		want := semel.ScopeOwner{Rule: rule(t).String(), Pipeline: "pipeline"}
		if bound, err := store.(semel.ScopeBinder).BindScope(t.Context(), "s", "another"); err != nil || bound != want.String() {
			t.Errorf("the scope is bound to %q, %v", bound, err)
		}
	})
}
