package semel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/semel-dev/semel"
)

// steps is a Tracer that writes down the steps of a guard.
type steps struct {
	semel.ObserverFunc
	ended []string
}

type stepKey struct{}

func (s *steps) BeginStep(ctx context.Context, step semel.Step, keys int) (context.Context, func(semel.Decision, error)) {
	return context.WithValue(ctx, stepKey{}, step), func(decision semel.Decision, err error) {
		s.ended = append(s.ended, fmt.Sprint(step, " ", keys, " ", decision, " ", err != nil))
	}
}

func TestATracerFollowsEachStep(t *testing.T) {
	t.Parallel()
	s := &steps{ObserverFunc: func(semel.Event) {}}
	guard := newGuard(t, newStore(t, nil), semel.GuardOptions{Observer: s})
	broken := errors.New("broken")
	effect := func(result error) semel.Func {
		return func(ctx context.Context, _ semel.Claim) ([]byte, error) {
			if ctx.Value(stepKey{}) != semel.StepEffect {
				t.Error("the effect does not run under the context of its step")
			}
			return nil, result
		}
	}
	for _, result := range []error{broken, nil, nil} {
		if _, err := guard.Do(t.Context(), semel.Key{ID: "a"}, effect(result)); !errors.Is(err, result) {
			t.Error(err)
		}
	}
	calls := []semel.Call{{Key: semel.Key{ID: "a"}}, {Key: semel.Key{ID: "b"}}, {Key: semel.Key{ID: "c"}}}
	for _, out := range guard.DoBatch(t.Context(), calls, func(context.Context, []*semel.BatchItem) error { return nil }) {
		if out.Err != nil {
			t.Error(out.Err)
		}
	}
	want := []string{
		"claim 1 fresh false", "effect 1 fresh true",
		"claim 1 fresh false", "effect 1 fresh false", "complete 1 undecided false",
		"claim 1 duplicate false",
		"claim 3 undecided false", "effect 2 fresh false", "complete 2 undecided false",
	}
	if !slices.Equal(s.ended, want) {
		t.Errorf("got  %q\nwant %q", s.ended, want)
	}
}

// A panic ends the step with ErrPanic, and an observer learns of it.
func TestAPanicEndsItsStepWithAnError(t *testing.T) {
	t.Parallel()
	var released []error
	s := &steps{ObserverFunc: func(e semel.Event) {
		if e.Kind == semel.EventReleased {
			released = append(released, e.Err)
		}
	}}
	guard := newGuard(t, newStore(t, nil), semel.GuardOptions{Observer: s})
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not reach the caller")
			}
		}()
		_, _ = guard.Do(t.Context(), semel.Key{ID: "a"}, func(context.Context, semel.Claim) ([]byte, error) { panic("boom") })
	}()
	if want := []string{"claim 1 fresh false", "effect 1 fresh true"}; !slices.Equal(s.ended, want) {
		t.Errorf("got  %q\nwant %q", s.ended, want)
	}
	if len(released) != 1 || !errors.Is(released[0], semel.ErrPanic) {
		t.Errorf("reported were %v, want one ErrPanic", released)
	}
}

func TestStepsAllocateNothingWithoutATracer(t *testing.T) {
	ctx := t.Context()
	guard := newGuard(t, newStore(t, nil), semel.GuardOptions{Observer: semel.ObserverFunc(func(semel.Event) {})})
	if n := testing.AllocsPerRun(100, func() {
		_, end := guard.BeginStep(ctx, semel.StepEffect, 1)
		end(semel.Undecided, nil)
	}); n != 0 {
		t.Errorf("a step takes %v allocations", n)
	}
}
