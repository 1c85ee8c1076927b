package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/eventreason"
	"github.com/semel-dev/semel/pipeline"
)

// exactFilter is a filter without errors, except those that a test asks for.
type exactFilter struct {
	mu       sync.Mutex
	keys     map[semel.Key]bool
	ask, add error
}

func newExactFilter(mistaken ...string) *exactFilter {
	f := &exactFilter{keys: map[semel.Key]bool{}}
	for _, id := range mistaken {
		f.keys[semel.Key{ID: id}] = true
	}
	return f
}

func (f *exactFilter) Rate() float64 { return 0.1 }

func (f *exactFilter) MayContain(_ context.Context, keys []semel.Key, maybe []bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, k := range keys {
		maybe[i] = f.keys[k]
	}
	return f.ask
}

func (f *exactFilter) Add(_ context.Context, keys []semel.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range keys {
		f.keys[k] = true
	}
	return f.add
}

// told is an observer that counts.
type told struct {
	mu        sync.Mutex
	decisions map[string]int // by decision and reason
	events    map[pipeline.EventKind]int
}

func newTold() *told {
	return &told{decisions: map[string]int{}, events: map[pipeline.EventKind]int{}}
}

func (o *told) Observe(e semel.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Kind == semel.EventDecided {
		o.decisions[e.Decision.String()+" "+e.Reason]++
	}
}

func (o *told) ObservePipeline(e pipeline.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events[e.Kind] += e.Count
}

func lossyItems(ids ...string) []*pipeline.Item {
	items := make([]*pipeline.Item, len(ids))
	for i, id := range ids {
		items[i] = &pipeline.Item{Call: semel.Call{Key: semel.Key{ID: id}}}
	}
	return items
}

func outcomes(items []*pipeline.Item) (list []string) {
	for _, it := range items {
		text := it.Decision.String()
		if it.Err != nil {
			text = "failed"
		}
		list = append(list, text)
	}
	return list
}

func TestLossyDropsMessagesThatTheFilterMayContain(t *testing.T) {
	t.Parallel()
	var delivered []string
	broken := true
	sink := pipeline.NewHandler(func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
		if m.Key.ID == "bad" && broken {
			return semel.Result{}, errors.New("no")
		}
		delivered = append(delivered, m.Key.ID)
		return semel.Result{}, nil
	})

	seen := newTold()
	session := pipeline.NewLossy(newExactFilter("mistaken"), sink, &pipeline.LossyOptions{Observer: seen})
	items := lossyItems("a", "b", "a", "mistaken", "bad", "bad")
	session.Process(t.Context(), items)
	if got, want := outcomes(items), []string{"fresh", "fresh", "duplicate", "duplicate", "failed", "failed"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if !errors.Is(items[5].Err, pipeline.ErrBehind) {
		t.Errorf("behind one that failed: %v", items[5].Err)
	}
	broken = false
	session.Process(t.Context(), items[4:])
	session.Process(t.Context(), items[:2])
	if got, want := outcomes(items), []string{"duplicate", "duplicate", "duplicate", "duplicate", "fresh", "duplicate"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if want := []string{"a", "b", "bad"}; !slices.Equal(delivered, want) {
		t.Errorf("delivered %v, want %v", delivered, want)
	}
	if n := seen.decisions["duplicate "+eventreason.Maybe]; n != 3 {
		t.Errorf("%v, want 3 that may have been completed before", seen.decisions)
	}
}

func TestLossyFilterThatIsDown(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	n := 0
	sink := pipeline.NewHandler(func(context.Context, pipeline.Delivery) (semel.Result, error) { n++; return semel.Result{}, nil })
	filter := newExactFilter()
	filter.ask = down
	items := lossyItems("a")
	pipeline.NewLossy(filter, sink, nil).Process(t.Context(), items)
	var store *pipeline.StoreError
	if !errors.As(items[0].Err, &store) || n != 0 {
		t.Errorf("%v, %d delivered; want an error of the store and none", items[0].Err, n)
	}
	seen := newTold()
	passing := pipeline.NewLossy(filter, sink, &pipeline.LossyOptions{Pass: true, Observer: seen})
	passing.Process(t.Context(), items)
	if items[0].Err != nil || n != 1 || seen.events[pipeline.EventFailedOpen] != 1 {
		t.Errorf("%v, %d delivered, %v; want it let through", items[0].Err, n, seen.events)
	}
	// A message whose key cannot be added is delivered and reported.
	filter.ask, filter.add = nil, down
	passing.Process(t.Context(), lossyItems("b"))
	if n != 2 || seen.events[pipeline.EventFailedOpen] != 2 {
		t.Errorf("%d delivered, %v", n, seen.events)
	}
}

func TestLossyObservesAndDeliversAll(t *testing.T) {
	t.Parallel()
	n := 0
	sink := pipeline.NewHandler(func(context.Context, pipeline.Delivery) (semel.Result, error) { n++; return semel.Result{}, nil })
	session := pipeline.NewLossy(newExactFilter(), sink, &pipeline.LossyOptions{Observe: true})
	for i, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		items := lossyItems("a")
		session.Process(t.Context(), items)
		if items[0].Decision != want || items[0].Err != nil || n != i+1 {
			t.Errorf("%s, %v, %d delivered", items[0].Decision, items[0].Err, n)
		}
	}
}

// Partitions run concurrently. A key that is in all of them has one effect.
func TestLossyPipelineDeliversEachKeyOnceOverPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		count := map[string]int{}
		sink := pipeline.NewHandler(func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			count[m.Key.ID]++
			return semel.Result{}, nil
		})

		partitions := []*pipeline.Partition{pipeline.NewPartition("a"), pipeline.NewPartition("b"), pipeline.NewPartition("c")}
		for i := range 300 {
			r.partition = partitions[i%3]
			r.add(int64(i), "k"+strconv.Itoa(i/6), "")
		}
		runner, err := pipeline.NewRunner(r.source, pipeline.NewLossy(newExactFilter(), sink, nil), &r.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := runner.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.wantAcked(300)
		for id, n := range count {
			if n != 1 {
				t.Errorf("%s was delivered %d times", id, n)
			}
		}
		if len(count) != 50 {
			t.Errorf("%d keys were delivered, want 50", len(count))
		}
	})
}
