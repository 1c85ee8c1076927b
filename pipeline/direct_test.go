package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// directRig has a pipeline without a store, with many attempts.
func directRig(t *testing.T) *rig {
	r := newRig(t)
	r.session = func(sink pipeline.Sink) pipeline.Session { return pipeline.NewDirect(sink, nil) }
	r.opts.Failure = pipeline.Failure{Attempts: 3}
	return r
}

// order returns the ids of all deliveries.
func (r *rig) order() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.delivered {
		ids = append(ids, m.Key.ID)
	}
	return ids
}

func TestDirectDeliversDuplicates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := directRig(t)
		for i := range 3 {
			r.add(int64(i), "same", "g")
		}
		r.run()
		if got := r.attempts("same"); !slices.Equal(got, []int{1, 1, 1}) {
			t.Errorf("attempts %v", got)
		}
		r.wantAcked(3)
	})
}

func TestDirectUsesNoAttemptsWhileTheSinkIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := directRig(t)
		began := time.Now()
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			if time.Since(began) < time.Hour {
				return semel.Result{}, pipeline.Unavailable(errors.New("refused"), 0)
			}
			return semel.Result{}, nil
		}
		for i := range 5 {
			r.add(int64(i), string(rune('a'+i)), "g")
		}
		r.run()
		r.wantAcked(5)
		r.wantParked(nil)
		if got := r.order(); !slices.Equal(slices.Compact(got), []string{"a", "b", "c", "d", "e"}) {
			t.Errorf("order %v", got)
		}
	})
}

func TestDirectDelaysOnlyTheGroupOfAPoisonMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := directRig(t)
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			switch m.Key.ID {
			case "poison":
				return semel.Result{}, errors.New("too large")
			case "panics":
				panic("always")
			}
			return semel.Result{}, nil
		}
		r.add(1, "poison", "a")
		r.add(2, "behind", "a")
		r.add(3, "panics", "b")
		for i := range 20 {
			r.add(int64(4+i), "other", "c")
		}
		r.run()
		r.wantAcked(23)
		r.wantParked(map[string]string{"poison": "attempts", "panics": "attempts"})
		var delivered []string // what was delivered of the group
		for _, id := range r.order() {
			if id == "poison" || id == "behind" {
				delivered = append(delivered, id)
			}
		}
		if !slices.Equal(delivered, []string{"poison", "poison", "poison", "behind"}) {
			t.Errorf("the group was delivered as %v", delivered)
		}
		if got := r.order(); slices.Index(got, "behind") < 21 {
			t.Errorf("the other groups waited: %v", got)
		}
		if got := r.attempts("poison"); !slices.Equal(got, []int{1, 2, 3}) {
			t.Errorf("attempts of the poison message: %v", got)
		}
	})
}
