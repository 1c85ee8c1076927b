package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// listSource returns numbered messages, and delivers returned ones again.
type listSource struct {
	mu       sync.Mutex
	todo     []*pipeline.Item
	acked    map[int64]int
	closed   bool
	more     chan struct{}
	endless  bool
	returned int
	returns  bool
	repeats  bool
	waits    atomic.Pointer[string] // what WaitsFor returns, or nil
	unready  atomic.Pointer[error]  // what Ready returns, or nil
	// exhausted are messages that the server may not deliver again. Nil: none ever are.
	exhausted chan []*pipeline.Item
	deaf      time.Time // until when Ack fails
}

// Ready implements doctor.Readier.
func (s *listSource) Ready(context.Context) error {
	if err := s.unready.Load(); err != nil {
		return *err
	}
	return nil
}

// WaitsFor implements pipeline.Waiter.
func (s *listSource) WaitsFor(context.Context) (what string, ends bool) {
	if what := s.waits.Load(); what != nil {
		return *what, false
	}
	return "", false
}

func newListSource(items ...*pipeline.Item) *listSource {
	return &listSource{todo: items, acked: map[int64]int{}, more: make(chan struct{}, 1)}
}

func (s *listSource) Traits() pipeline.SourceTraits {
	traits := pipeline.SourceTraits{Positions: !s.repeats, CanReturn: s.returns, Repeats: s.repeats, OfAttempt: func(header string) bool { return header == "attempt" }}
	if s.exhausted != nil {
		traits.Exhausted = func(ctx context.Context) ([]*pipeline.Item, error) {
			select {
			case items := <-s.exhausted:
				return items, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	return traits
}

func (s *listSource) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for {
		s.mu.Lock()
		n := min(len(s.todo), 10)
		items := slices.Clone(s.todo[:n])
		s.todo = s.todo[n:]
		s.mu.Unlock()
		if n > 0 {
			return items, nil
		}
		if !s.endless {
			return nil, io.EOF
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *listSource) Ack(_ context.Context, items []*pipeline.Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.deaf) {
		return errors.New("no answer")
	}
	for _, it := range items {
		s.acked[it.Message.Origin.Offset]++
	}
	return nil
}

func (s *listSource) Return(_ context.Context, items []*pipeline.Item, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.returned += len(items)
	return nil
}

func (s *listSource) Close(context.Context) error {
	s.closed = true
	return nil
}

func message(partition *pipeline.Partition, offset int64, id, group string) *pipeline.Item {
	it := &pipeline.Item{Partition: partition}
	it.Message = semel.Message{Body: fmt.Appendf(nil, `{"id":%q,"n":%d}`, id, offset), Origin: semel.Origin{Source: partition.Name(), Identity: partition.Name(), Offset: offset}}
	if group != "" {
		it.Message.RecordKey = []byte(group)
	}
	return it
}

func newStore(t *testing.T) semel.Store {
	t.Helper()
	s, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func rule(t testing.TB) *key.Rule {
	t.Helper()
	r, err := key.ParseRule(".id")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func run(t *testing.T, ctx context.Context, source pipeline.Source, store semel.Store, fn pipeline.Handler, opts pipeline.Options) error {
	t.Helper()
	session, err := pipeline.NewTwoPhase(store, pipeline.NewHandler(fn), nil)
	if err != nil {
		t.Fatal(err)
	}
	opts.Key = rule(t)
	r, err := pipeline.NewRunner(source, session, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return r.Run(ctx)
}

func TestEveryMessageIsSettledAndEachKeyDeliveredOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var items []*pipeline.Item
		partitions := []*pipeline.Partition{pipeline.NewPartition("a"), pipeline.NewPartition("b")}
		const n = 2000
		for i := range int64(n) {
			id := fmt.Sprint("id-", rng.IntN(n*3/4))
			items = append(items, message(partitions[i%2], i, id, fmt.Sprint("g", rng.IntN(20))))
		}
		source := newListSource(items...)
		letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		done := map[string]int{}
		order := map[string][]int64{}
		err = run(t, t.Context(), source, newStore(t), func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			mu.Lock()
			what := rng.IntN(20)
			mu.Unlock()
			switch what {
			case 0:
				return semel.Result{}, errors.New("try again")
			case 1:
				return semel.Result{}, semel.Permanent(errors.New("never"))
			case 2:
				panic("bad handler")
			case 3:
				time.Sleep(50 * time.Millisecond)
			case 4:
				return semel.Result{}, pipeline.Unavailable(errors.New("away"), 0)
			}
			mu.Lock()
			defer mu.Unlock()
			done[m.Key.ID]++
			group := m.Origin.Source + "/" + string(m.RecordKey)
			order[group] = append(order[group], m.Origin.Offset)
			return semel.Result{}, nil
		}, pipeline.Options{DeadLetters: letters, MaxItems: 100})
		if err != nil {
			t.Fatal(err)
		}
		parked := 0
		if err := letters.List(t.Context(), "", func(p *pipeline.Parked) bool { parked++; return true }); err != nil {
			t.Fatal(err)
		}
		if len(source.acked) != n || !source.closed {
			t.Errorf("%d of %d acknowledged, closed: %t", len(source.acked), n, source.closed)
		}
		for offset, times := range source.acked {
			if times != 1 {
				t.Errorf("offset %d acknowledged %d times", offset, times)
			}
		}
		for id, times := range done {
			if times != 1 {
				t.Errorf("%s delivered %d times", id, times)
			}
		}
		for group, offsets := range order {
			if !slices.IsSorted(offsets) {
				t.Errorf("group %s out of order: %v", group, offsets)
			}
		}
		if parked == 0 {
			t.Error("nothing was parked: the test shows nothing of it")
		}
	})
}
