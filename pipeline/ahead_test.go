package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// worldAhead is a PipelinedSession with the effects of a world. A batch has its effects
// some time after Begin. The session may lose a batch instead, together with the batches
// behind it.
type worldAhead struct{ *world }

func (s worldAhead) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Ordered: true, MaxBatch: 20, Parallel: 4}
}
func (s worldAhead) Prepare(items []*pipeline.Item) {
	for _, it := range items {
		it.Digest = semel.Digest{1}
	}
}
func (s worldAhead) Abandon(context.Context, []*pipeline.Item)               {}
func (worldAhead) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }
func (s worldAhead) Close(context.Context) error                             { return nil }

func (s worldAhead) Process(ctx context.Context, items []*pipeline.Item) {
	s.Begin(ctx, items, nil).Wait()
}

// aheadFlight is a batch of a worldAhead.
type aheadFlight struct {
	world *world
	items []*pipeline.Item
	after *aheadFlight
	bad   bool // an item failed
	lost  bool
	until time.Time
}

func (s worldAhead) Begin(_ context.Context, items []*pipeline.Item, after pipeline.Batch) pipeline.Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &aheadFlight{world: s.world, items: items, until: time.Now().Add(time.Duration(s.random.IntN(400)) * time.Millisecond)}
	if after != nil {
		f.after = after.(*aheadFlight)
		f.bad = f.after.bad
		s.ahead++
	}
	for _, it := range items {
		if it.Digest != (semel.Digest{1}) {
			s.t.Error("an item was not prepared")
		}
		it.Decision, it.Err = semel.Undecided, nil
		switch n := s.random.IntN(100); {
		case f.bad:
			it.Err = pipeline.ErrBehind
		case it.Call.Key.ID[0] == 'x':
			it.Err = semel.Permanent(errors.New("never"))
		case n == 0:
			f.bad, it.Err = true, pipeline.Unavailable(errors.New("nobody there"), 0)
		case n < 3:
			f.bad, it.Err = true, errors.New("try again")
		}
	}
	return f
}

func (f *aheadFlight) Done() bool { return !time.Now().Before(f.until) }

func (f *aheadFlight) Wait() {
	nap(context.Background(), time.Until(f.until))
	w := f.world
	w.mu.Lock()
	defer w.mu.Unlock()
	f.lost = f.after != nil && f.after.lost || w.random.IntN(30) == 0
	for _, it := range f.items {
		id := it.Call.Key.ID
		switch {
		case it.Err != nil:
		case f.lost:
			it.Err = &pipeline.StoreError{Err: semel.ErrStoreUnavailable}
		case w.effects[id] > 0:
			it.Decision = semel.Duplicate
		default:
			it.Decision = semel.Fresh
			w.hasEffect(it)
		}
	}
}

// TestPartitionCloseWaitsForStartedBatches closes a partition while it has pending batches.
// Close returns after the last of them, and no further batch of it starts.
func TestPartitionCloseWaitsForStartedBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless = true
		r.opts.Order, r.opts.Batch = pipeline.OrderPartition, 2
		session := &slow{}
		runner, err := pipeline.NewRunner(r.source, session, &r.opts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(6) { // before the start, so that one read returns all of them
			r.add(i, string(rune('a'+i)), "")
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- runner.Run(ctx) }()
		synctest.Wait()
		if session.begun != 3 {
			t.Errorf("%d batches are begun, want 3 before the first has landed", session.begun)
		}
		began := time.Now()
		if err := r.partition.Close(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the partition was given up after %v, want 3s", took)
		}
		r.wantAcked(6)
		r.add(6, "g", "")
		synctest.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if session.begun != 3 {
			t.Errorf("%d batches were begun, want 3", session.begun)
		}
		r.wantAcked(6)
	})
}

// TestWorkerProcessesOtherPartitionsBetweenPipelinedBatches: a partition that always has more messages does not
// keep the only worker from an item whose next try is due.
func TestWorkerProcessesOtherPartitionsBetweenPipelinedBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Order, r.opts.Batch, r.opts.Workers = pipeline.OrderPartition, 2, 1
		r.source.todo = append(r.source.todo, message(pipeline.NewPartition("other"), 1, "held", ""))
		for i := range int64(5000) {
			r.add(i, fmt.Sprint("k", i), "")
		}
		s := &holding{began: time.Now()}
		runner, err := pipeline.NewRunner(r.source, s, &r.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := runner.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if s.came > 100*time.Millisecond {
			t.Errorf("what had to wait some milliseconds came after %v", s.came)
		}
	})
}

// holding is a slow session for which the key "held" is in flight once.
type holding struct {
	slow
	began time.Time
	seen  bool
	came  time.Duration // when the key was free
}

func (s *holding) Process(ctx context.Context, items []*pipeline.Item) {
	s.Begin(ctx, items, nil).Wait()
}

func (s *holding) Begin(_ context.Context, items []*pipeline.Item, _ pipeline.Batch) pipeline.Batch {
	nap(context.Background(), time.Millisecond)
	for _, it := range items {
		it.Decision, it.Err = semel.Fresh, nil
		switch {
		case it.Call.Key.ID != "held":
		case !s.seen:
			s.seen = true
			it.Decision, it.Err = semel.InFlight, &semel.InFlightError{Key: it.Call.Key}
		default:
			s.came = time.Since(s.began)
		}
	}
	return holdingFlight(time.Now().Add(5 * time.Millisecond))
}

// holdingFlight is the time when a batch of a holding is durable.
type holdingFlight time.Time

func (f holdingFlight) Done() bool { return !time.Now().Before(time.Time(f)) }
func (f holdingFlight) Wait()      { nap(context.Background(), time.Until(time.Time(f))) }

// slow is a session whose batches take a second each.
type slow struct{ begun int }

type slowFlight struct{}

func (slowFlight) Done() bool { return false }
func (slowFlight) Wait()      { nap(context.Background(), time.Second) }

func (s *slow) Traits() pipeline.SinkTraits                             { return pipeline.SinkTraits{Ordered: true} }
func (s *slow) Prepare([]*pipeline.Item)                                {}
func (s *slow) Abandon(context.Context, []*pipeline.Item)               {}
func (*slow) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }
func (s *slow) Close(context.Context) error                             { return nil }
func (s *slow) Process(ctx context.Context, it []*pipeline.Item)        { s.Begin(ctx, it, nil).Wait() }

func (s *slow) Begin(context.Context, []*pipeline.Item, pipeline.Batch) pipeline.Batch {
	s.begun++
	return slowFlight{}
}
