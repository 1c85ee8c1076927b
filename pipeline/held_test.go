package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/eventreason"
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
	if e.Kind == pipeline.EventRetried && e.Reason == eventreason.Held {
		w.list = append(w.list, e)
	}
}

func (w *waits) told() []pipeline.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.list
}

func TestALongWaitForAHeldKeyIsReported(t *testing.T) {
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

func TestAReturnedMessageIsNotReportedAsWaiting(t *testing.T) {
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

// unitSession commits a whole batch, or nothing if another holder has a key. A session
// whose keys and effects are one transaction does the same.
type unitSession struct {
	mu    sync.Mutex
	free  time.Time // until when the key "held" is in flight
	calls int
}

func (s *unitSession) Process(_ context.Context, items []*pipeline.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	held := -1
	if time.Now().Before(s.free) && s.calls < 10_000 { // more calls mean a busy loop, in which no time passes in the bubble
		held = slices.IndexFunc(items, func(it *pipeline.Item) bool { return it.Call.Key.ID == "held" })
	}
	for i, it := range items {
		switch {
		case held < 0:
			it.Decision, it.Err = semel.Fresh, nil
		case i == held:
			it.Decision, it.Err = semel.InFlight, &semel.InFlightError{Key: it.Call.Key, LeaseEnd: s.free}
		default:
			it.Err = pipeline.ErrBehind
		}
	}
}

func (*unitSession) Abandon(context.Context, []*pipeline.Item) {}

func (*unitSession) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }

func (*unitSession) Close(context.Context) error { return nil }

func (*unitSession) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Ordered: true} }

func TestMessagesBeforeAHeldKeyAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session := &unitSession{free: time.Now().Add(10 * time.Second)}
		r := newRig(t)
		for i, id := range []string{"before", "held", "behind"} {
			r.add(int64(i), id, "")
		}
		r.opts.Order = pipeline.OrderPartition
		runner, err := pipeline.NewRunner(r.source, session, &r.opts)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- runner.Run(t.Context()) }()
		time.Sleep(5 * time.Second)
		if got := r.acked(); got != 1 {
			t.Errorf("%d messages are acknowledged while the second waits, want the first", got)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		r.wantAcked(3)
		session.mu.Lock()
		defer session.mu.Unlock()
		if session.calls > 100 {
			t.Errorf("%d batches were tried: the pipeline spins", session.calls)
		}
	})
}
