package brokertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// sourceEnv is what a case for sources works with.
type sourceEnv struct {
	env
	harness SourceHarness
	place   SourcePlace
	ids     []string
	apart   bool // each message gets a partition of its own
	shared  bool // consumers give messages back to each other, and they come late
}

func newSourceEnv(w *watched, h SourceHarness) *sourceEnv {
	w.Helper()
	e := &sourceEnv{harness: h, place: h.New(w)}
	e.place.Partitions = max(e.place.Partitions, 1)
	e.env = newEnv(w, h.Patience, h.Messages, e.place.Partitions)
	e.place.Again, e.place.Restart = e.byHarness(e.place.Again), e.byHarness(e.place.Restart)
	produce := e.place.Produce
	e.place.Produce = func(ctx context.Context, list []Numbered) error {
		return e.byHarness(func(ctx context.Context) error { return produce(ctx, list) })(ctx)
	}
	return e
}

// number makes messages, about a fifth of them of keys that there are already.
func (e *sourceEnv) number(n int) []Numbered {
	partitions := make([]int, n)
	for i := range partitions {
		partitions[i] = e.partition()
	}
	return e.numberIn(partitions)
}

// partition returns where the next message goes.
func (e *sourceEnv) partition() int {
	if !e.apart {
		return e.random.IntN(e.place.Partitions)
	}
	e.next = append(e.next, 0)
	return len(e.next) - 1
}

// marks makes a message in each partition. Where partitions have an order, all earlier
// messages that come again have come when the marks have.
func (e *sourceEnv) marks() []Numbered {
	if e.apart {
		return e.number(1)
	}
	partitions := make([]int, e.place.Partitions)
	for i := range partitions {
		partitions[i] = i
	}
	return e.numberIn(partitions)
}

func (e *sourceEnv) numberIn(partitions []int) []Numbered {
	var list []Numbered
	for _, partition := range partitions {
		id := fmt.Sprintf("k-%d", len(e.ids))
		if len(e.ids) > 0 && e.random.IntN(5) == 0 {
			id = e.ids[e.random.IntN(len(e.ids))]
		} else {
			e.ids = append(e.ids, id)
		}
		list = append(list, newNumbered(id, partition, e.next[partition], e.random.IntN(300)))
		e.next[partition]++
	}
	e.ledger.expect(list)
	return list
}

// produce has messages produced a few at a time. wait waits for the end.
func (e *sourceEnv) produce(ctx context.Context, list []Numbered) (wait func()) {
	var producing sync.WaitGroup
	sizes := rand.New(rand.NewPCG(e.random.Uint64(), 2))
	producing.Go(func() {
		for len(list) > 0 && ctx.Err() == nil {
			n := min(1+sizes.IntN(40), len(list))
			if err := e.place.Produce(ctx, list[:n]); err != nil && ctx.Err() == nil {
				e.Errorf("produce: %v", err)
				return
			}
			list = list[n:]
		}
	})
	return producing.Wait
}

// open opens the source behind a spy.
func (e *sourceEnv) open(ctx context.Context) *spy {
	e.Helper()
	return e.spyOn(ctx, e.place.Open)
}

// spyOn opens a source behind a spy.
func (e *sourceEnv) spyOn(ctx context.Context, open func(ctx context.Context) (pipeline.Source, error)) *spy {
	e.Helper()
	end := e.begin(ctx, "Open of the source")
	source, err := open(ctx)
	end()
	if err != nil {
		e.Fatalf("open the source: %v", err)
	}
	return e.spy(source)
}

// spy puts a spy before a source.
func (e *sourceEnv) spy(source pipeline.Source) *spy {
	return &spy{Source: timed{source, e.watched}, ledger: e.ledger, ordered: !e.harness.Unordered && !e.shared, read: map[place]bool{}, last: map[int]int{}}
}

// effect is the handler of the suite's pipelines.
func (e *sourceEnv) effect(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
	n, ok := e.ledger.knows(m.Body)
	if !ok {
		return semel.Result{}, semel.Permanent(errPermanent)
	}
	if n.ID != m.Key.ID {
		e.Errorf("key %s has the body of %s", m.Key.ID, n.ID)
	}
	if err := e.script.attempt(ctx, n.ID); err != nil {
		return semel.Result{}, err
	}
	e.ledger.accept(n)
	return semel.Result{}, nil
}

// run runs a pipeline until ctx ends.
func (e *sourceEnv) run(ctx context.Context, opts pipeline.Options) {
	e.Helper()
	runner, _ := e.runner(ctx, opts)
	e.end(ctx, runner)
}

// settleRest runs a pipeline until nothing is under way and nothing comes any
// more: what was settled out of order before may have come once more.
func (e *sourceEnv) settleRest(opts pipeline.Options) {
	e.Helper()
	ctx, cancel := e.context()
	defer cancel()
	defer e.produce(ctx, e.marks())()
	runner, source := e.runner(ctx, opts)
	go func() {
		defer cancel()
		e.ledger.reach(ctx, e.ledger.total())
		for ctx.Err() == nil {
			before := source.reads.Load()
			_ = retry.Sleep(ctx, quiet) // its error is that of ctx
			if count, _ := runner.UnderWay(); count == 0 && source.reads.Load() == before {
				return
			}
		}
	}()
	e.end(ctx, runner)
}

// runner returns a pipeline, and its source.
func (e *sourceEnv) runner(ctx context.Context, opts pipeline.Options) (*pipeline.Runner, *spy) {
	e.Helper()
	session, err := pipeline.NewTwoPhase(e.store, pipeline.NewHandler(e.effect), nil)
	if err != nil {
		e.Fatal(err)
	}
	e.complete(&opts)
	source := e.open(ctx)
	runner, err := pipeline.NewRunner(source, session, &opts)
	if err != nil {
		e.Fatal(err)
	}
	return runner, source
}

// end runs a pipeline to its end.
func (e *sourceEnv) end(ctx context.Context, runner *pipeline.Runner) {
	e.Helper()
	if err := runner.Run(ctx); err != nil {
		e.Errorf("the pipeline: %v", err)
	}
	if count, _ := runner.UnderWay(); count != 0 {
		e.Errorf("the pipeline ended with %d messages under way", count)
	}
}

// runUntilSettled runs a pipeline until all that was produced is acknowledged.
func (e *sourceEnv) runUntilSettled(opts pipeline.Options) {
	e.Helper()
	e.ledger.untilSettled(func(ctx context.Context) { e.run(ctx, opts) })
}

// spy stands between runner and source, and tells the ledger what is
// acknowledged.
type spy struct {
	pipeline.Source
	*ledger
	ordered bool
	reads   atomic.Int64 // that had messages

	mu    sync.Mutex
	read  map[place]bool
	again int         // messages that came although they were acknowledged before
	last  map[int]int // of each partition, the last place that came for the first time
}

// Read implements pipeline.Source.
func (s *spy) Read(ctx context.Context) ([]*pipeline.Item, error) {
	items, err := s.Source.Read(ctx)
	if len(items) > 0 {
		s.reads.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		m, ok := s.knows(it.Message.Body)
		if !ok {
			continue
		}
		at := place{m.Partition, m.Place}
		s.ledger.mu.Lock()
		s.lastEvent = time.Now()
		if s.acked[at] {
			s.again++
		}
		s.ledger.mu.Unlock()
		if it.Partition == nil {
			s.tb.Errorf("message %d of partition %d has no partition", m.Place, m.Partition)
		}
		if s.read[at] {
			continue
		}
		s.read[at] = true
		if last, begun := s.last[m.Partition]; s.ordered && begun && m.Place < last {
			s.tb.Errorf("partition %d came out of order: %d behind %d", m.Partition, m.Place, last)
		}
		s.last[m.Partition] = m.Place
	}
	return items, err
}

// Ack implements pipeline.Source.
func (s *spy) Ack(ctx context.Context, items []*pipeline.Item) error {
	err := s.Source.Ack(ctx, items)
	if err != nil {
		return err
	}
	for _, it := range items {
		if m, ok := s.knows(it.Message.Body); ok {
			s.ack(m)
		}
	}
	return nil
}

// readAll reads until all of these messages have come, or nothing came for a
// while, and returns all that came.
func (s *spy) readAll(ctx context.Context, list []Numbered, wait time.Duration) []*pipeline.Item {
	return s.readUntil(ctx, wait, func() bool { return s.lacks(list) == 0 })
}

// readRest reads until nothing came for a while, and returns all that came.
func (s *spy) readRest(ctx context.Context, wait time.Duration) []*pipeline.Item {
	return s.readUntil(ctx, wait, func() bool { return false })
}

// lacks returns how many of these messages have not come.
func (s *spy) lacks(list []Numbered) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range list {
		if !s.read[place{m.Partition, m.Place}] {
			n++
		}
	}
	return n
}

func (s *spy) readUntil(ctx context.Context, wait time.Duration, enough func() bool) []*pipeline.Item {
	var all []*pipeline.Item
	for {
		if enough() {
			return all
		}
		reading, cancel := context.WithTimeout(ctx, wait)
		items, err := s.Read(reading)
		ended := reading.Err() != nil
		cancel()
		all = append(all, items...)
		if err != nil {
			if !ended && !errors.Is(err, context.DeadlineExceeded) {
				s.tb.Errorf("read: %v", err)
			}
			return all
		}
	}
}
