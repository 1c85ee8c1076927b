package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

var errCut = pipeline.Unavailable(fmt.Errorf("the connection was cut: %w", semel.ErrOutcomeUnknown), time.Second)

// TestMessagesAreNotParkedWhileDeliveryOutcomesAreUnknown lets a sink lose every answer for an hour.
// Each delivery has another attempt number, and none counts towards the limit.
func TestMessagesAreNotParkedWhileDeliveryOutcomesAreUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure = pipeline.Failure{Attempts: 3}
		over := time.Now().Add(time.Hour)
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			if time.Now().Before(over) {
				return semel.Result{}, errCut
			}
			return semel.Result{}, nil
		}
		for i := range 5 {
			r.add(int64(i), fmt.Sprint(i), "")
		}
		r.run()
		r.wantAcked(5)
		r.wantParked(nil)
		total := 0
		for i := range 5 {
			list := r.attempts(fmt.Sprint(i))
			total += len(list)
			if !slices.IsSorted(list) || list[len(list)-1] != len(list) {
				t.Errorf("message %d had the attempts %v", i, list)
			}
		}
		if total < 50 {
			t.Errorf("%d deliveries in an hour", total)
		}
	})
}

// TestAMessageThatCutsTheConnectionIsParked has a message that looks like an outage,
// while the sink accepts others.
func TestAMessageThatCutsTheConnectionIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure = pipeline.Failure{Attempts: 3}
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID == "bad" {
				return semel.Result{}, errCut
			}
			return semel.Result{}, nil
		}
		r.add(0, "bad", "")
		r.source.endless = true
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		for i := range 100 {
			time.Sleep(10 * time.Second)
			r.add(int64(i+1), fmt.Sprint(i), "")
		}
		time.Sleep(time.Minute)
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(101)
		r.wantParked(map[string]string{"bad": string(pipeline.ReasonAttempts)})
	})
}
