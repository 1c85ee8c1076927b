package pipeline_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// waits is an observer that keeps the events of messages that wait for another holder of
// their key.
type waits struct {
	mu   sync.Mutex
	list []pipeline.Event
}

func (*waits) Observe(semel.Event) {}

func (w *waits) ObservePipeline(e pipeline.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Kind == pipeline.EventRetried && e.Reason == pipeline.HeldReason {
		w.list = append(w.list, e)
	}
}

func (w *waits) told() []pipeline.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.list
}

func TestWhoWaitsLongForAKeyThatAnotherHoldsIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := newRig(t), &waits{}
		r.opts.Observer = w
		another := r.claim("a", 24*time.Hour) // like a process that hangs while its heartbeat runs
		r.add(1, "a", "")
		r.add(2, "b", "")
		end := r.start(t.Context())
		time.Sleep(4900 * time.Millisecond)
		if list := w.told(); len(list) != 0 {
			t.Errorf("an event before the wait is over: %+v", list)
		}
		time.Sleep(time.Hour)
		list := w.told()
		if len(list) != 1 {
			t.Fatalf("%d events, want one", len(list))
		}
		var flight *semel.InFlightError
		if e := list[0]; !errors.As(e.Err, &flight) || flight.Holder != "another" || flight.Key.ID != "a" || e.Count != 1 || e.Item == nil || e.Elapsed < 5*time.Second || e.Elapsed > 6*time.Second {
			t.Errorf("%+v", e)
		}
		r.wantAcked(1)
		r.wantParked(nil)

		var answer [1]error
		err := r.store.Complete(t.Context(), []semel.CompleteRequest{{Key: semel.Key{ID: "a"}, Token: another.Claim.Token, Window: time.Hour}}, answer[:])
		if err = errors.Join(err, answer[0]); err != nil {
			t.Fatal(err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(2)
		if got := r.attempts("a"); len(got) != 0 || len(w.told()) != 1 {
			t.Errorf("attempts %v, told %d times", got, len(w.told()))
		}
	})
}

func TestWhatGoesBackToItsSourceIsNotToldToWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := newRig(t), &waits{}
		r.opts.Observer, r.source.returns = w, true
		r.claim("a", time.Hour)
		r.add(1, "a", "")
		r.run()
		if list := w.told(); r.source.returned != 1 || len(list) != 0 {
			t.Errorf("%d went back, and %d are reported to wait", r.source.returned, len(list))
		}
	})
}
