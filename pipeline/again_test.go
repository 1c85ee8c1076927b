package pipeline_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestAnotherMessageAtThePlaceOfOneThatIsParkedIsNotTakenForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		// A rotated file starts at offset 0 again. So does a topic that was created
		// again.
		for _, body := range []string{"first, without a key", "second, without a key", "second, without a key"} {
			r := newRig(t)
			r.letters, r.opts.DeadLetters = letters, letters
			r.add(0, "", "").Message.Body = []byte(body)
			r.run()
			r.wantAcked(1)
		}
		var bodies []string
		if err := letters.List(t.Context(), "", func(p *pipeline.Parked) bool {
			bodies = append(bodies, string(p.Message.Body))
			return true
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(bodies)
		if want := []string{"first, without a key", "second, without a key"}; !slices.Equal(bodies, want) {
			t.Errorf("parked: %q, want %q", bodies, want)
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

func (*unitSession) Abandon(context.Context, []*pipeline.Item)                 {}
func (*unitSession) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }
func (*unitSession) Close(context.Context) error                               { return nil }
func (*unitSession) Traits() pipeline.SinkTraits                               { return pipeline.SinkTraits{Ordered: true} }

func TestWhatStandsBeforeAKeyThatIsHeldGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		session := &unitSession{free: time.Now().Add(10 * time.Second)}
		r := newRig(t)
		for i, id := range []string{"before", "held", "behind"} {
			r.add(int64(i), id, "")
		}
		r.opts.Order = pipeline.OrderPartition
		runner, err := pipeline.New(r.source, session, &r.opts)
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

func TestCopiesInOneBatchHoldNobodyUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Order = pipeline.OrderPartition
		sink := &orderedSink{}
		r.sink = sink
		var want []int64
		for i := range int64(500) {
			id := i
			if i%5 == 4 {
				id = i - 1 - i%3
			} else {
				want = append(want, i)
			}
			r.add(i, strconv.FormatInt(id, 10), "")
		}
		began := time.Now()
		r.run()
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited for %v", took)
		}
		r.wantAcked(500)
		if !slices.Equal(sink.got, want) {
			t.Errorf("delivered: %v", sink.got)
		}
	})
}

func TestACopyInABatchWaitsForTheFirstToSucceed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Order = pipeline.OrderPartition
		r.opts.Failure = pipeline.Failure{Attempts: 100, From: time.Second, To: time.Second}
		sink := &orderedSink{until: time.Now().Add(10 * time.Second)}
		r.sink = sink
		for i, id := range []string{"a", "b", "a", "c"} {
			r.add(int64(i), id, "")
		}
		end := r.start(t.Context())
		time.Sleep(5 * time.Second)
		r.wantAcked(0)
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(4)
		if !slices.Equal(sink.got, []int64{0, 1, 3}) {
			t.Errorf("delivered: %v", sink.got)
		}
	})
}
