package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestStopNamesTheMessageAndAcknowledgesNothingOfIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure.Then = pipeline.Stop
		r.source.endless = true
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID == "bad" {
				return semel.Result{}, semel.Permanent(errors.New("never"))
			}
			return semel.Result{}, nil
		}
		r.add(1, "a", "")
		r.add(42, "bad", "")
		err := r.start(t.Context())()
		const want = `stopped at a message of a, partition 0, offset 42, key ""/"bad", for "permanent": never: fix the cause and start again`
		if !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), want) || stoppedFor(err) != pipeline.ReasonPermanent {
			t.Errorf("%v", err)
		}
		if _, acked := r.source.acked[42]; acked {
			t.Error("the message was acknowledged")
		}
	})
}

// TestStopErrorNamesTheMessage has sources that set no origin.
func TestStopErrorNamesTheMessage(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(m *semel.Message){
		`stopped at a message of a, partition 0, offset 42, key ""/"bad", for "permanent": `: func(*semel.Message) {},
		`stopped at a message of a, partition 0, offset 42, key ""/"", for "key-missing": `:  func(m *semel.Message) { m.Body = []byte(`{}`) },
		`stopped at a message, key ""/"bad", for "permanent": `:                              func(m *semel.Message) { m.Origin = semel.Origin{Delivery: 2} },
		`stopped at a message with the id "m-1", key ""/"bad", for "permanent": `:            func(m *semel.Message) { m.Origin, m.ID = semel.Origin{}, "m-1" },
		`stopped at a message, key ""/"", for "key-missing": `:                               func(m *semel.Message) { m.Origin, m.Body = semel.Origin{}, []byte(`{}`) },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.opts.Failure.Then, r.opts.OnMissing = pipeline.Stop, pipeline.MissingStop
			r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
				return semel.Result{}, semel.Permanent(errors.New("never"))
			}
			change(&r.add(42, "bad", "").Message)
			if err := r.start(t.Context())(); !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nwant %s", err, want)
			}
		})
	}
}
