package brokertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// sinkEnv is what a case for sinks works with.
type sinkEnv struct {
	env
	harness SinkHarness
	target  SinkTarget
	queue   *memoryQueue
}

const sinkPartitions = 3

func newSinkEnv(tb testing.TB, h SinkHarness) *sinkEnv {
	tb.Helper()
	e := &sinkEnv{harness: h, target: h.New(tb), queue: newMemoryQueue(sinkPartitions)}
	e.env = newEnv(tb, h.patience, h.Messages, sinkPartitions)
	if (e.target.Sink == nil) == (e.target.Session == nil) {
		tb.Fatal("the harness must set one of Sink and Session")
	}
	e.ledger.commits = e.target.Session != nil
	return e
}

// number makes messages, about a fifth of them of keys that there are already,
// and puts them on the queue.
func (e *sinkEnv) number(n int) []Numbered {
	var list []Numbered
	for range n {
		e.ledger.mu.Lock()
		known := len(e.ledger.keys)
		e.ledger.mu.Unlock()
		number := known
		if known > 0 && e.random.IntN(5) == 0 {
			number = e.random.IntN(known)
		}
		partition := e.random.IntN(sinkPartitions)
		m := newNumbered(fmt.Sprintf("k-%d", number), partition, e.next[partition], e.random.IntN(300))
		e.next[partition]++
		e.ledger.expect([]Numbered{m})
		list = append(list, m)
	}
	return list
}

// session opens what is under test, with the script between it and the runner.
func (e *sinkEnv) session(ctx context.Context) pipeline.Session {
	e.Helper()
	if e.target.Session != nil {
		session, err := e.target.Session(ctx)
		if err != nil {
			e.Fatalf("open the session: %v", err)
		}
		return &scriptedSession{session, e}
	}
	sink, err := e.target.Sink(ctx)
	if err != nil {
		e.Fatalf("open the sink: %v", err)
	}
	session, err := pipeline.NewTwoPhase(e.store, &scriptedSink{sink, e}, nil)
	if err != nil {
		e.Fatal(err)
	}
	return session
}

// run runs a pipeline from the queue until ctx ends.
func (e *sinkEnv) run(ctx context.Context, opts pipeline.Options) {
	e.Helper()
	e.complete(&opts)
	opts.Failure.Attempts = 20 // a server that is restarted fails messages too
	source := &spy{Source: e.queue.open(), ledger: e.ledger, read: map[place]bool{}, last: map[int]int{}}
	runner, err := pipeline.New(source, e.session(ctx), &opts)
	if err != nil {
		e.Fatal(err)
	}
	if err := runner.Run(ctx); err != nil {
		e.Errorf("the pipeline: %v", err)
	}
}

// runUntilSettled runs a pipeline until all is acknowledged.
func (e *sinkEnv) runUntilSettled(opts pipeline.Options) {
	e.Helper()
	e.ledger.untilSettled(e.patience, func(ctx context.Context) { e.run(ctx, opts) })
}

// delivered notes what a sink says it has delivered: the ledger must know before
// the source is told.
func (e *sinkEnv) delivered(items []*pipeline.Item) {
	for _, it := range items {
		if it.Err != nil || it.Decision != semel.Fresh {
			continue
		}
		if m, ok := e.ledger.knows(it.Message.Body); ok {
			e.ledger.accept(m)
		}
	}
}

// split has the script refuse items before the sink gets them. What is behind one
// of its group that was refused is not delivered.
func (e *sinkEnv) split(ctx context.Context, items []*pipeline.Item) []*pipeline.Item {
	var pass []*pipeline.Item
	var refused uint64
	for _, it := range items {
		if refused != 0 && it.Group == refused {
			it.Err = pipeline.ErrBehind
			continue
		}
		if it.Err = e.attempt(ctx, it.Call.Key.ID); it.Err != nil {
			refused = it.Group
			continue
		}
		pass = append(pass, it)
	}
	return pass
}

func (e *sinkEnv) attempt(ctx context.Context, id string) (err error) {
	defer func() {
		if recover() != nil {
			err = errRetry
		}
	}()
	return e.script.attempt(ctx, id)
}

// scriptedSink is a sink behind the script.
type scriptedSink struct {
	pipeline.Sink
	env *sinkEnv
}

// Deliver implements pipeline.Sink.
func (s *scriptedSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	if pass := s.env.split(ctx, items); len(pass) > 0 {
		s.Sink.Deliver(ctx, pass)
		s.env.delivered(pass)
	}
}

// scriptedSession is a session behind the script.
type scriptedSession struct {
	pipeline.Session
	env *sinkEnv
}

// Process implements pipeline.Session. The script refuses keys that are known as
// well: they come again.
func (s *scriptedSession) Process(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Decision, it.Result = semel.Undecided, semel.Result{}
	}
	if pass := s.env.split(ctx, items); len(pass) > 0 {
		s.Session.Process(ctx, pass)
		s.env.delivered(pass)
	}
}

func sinkCases() []testCase[*sinkEnv] {
	return []testCase[*sinkEnv]{
		{"every message is settled, and each key has its effect once", (*sinkEnv).settlesAll},
		{"the order of a partition holds while messages fail", (*sinkEnv).keepsOrder},
		{"pipelines stop in the middle and restart", (*sinkEnv).beginsAgain},
		{"an ended context is no success", (*sinkEnv).endedContext},
		{"the server is restarted in the middle", (*sinkEnv).restarts},
	}
}

func (e *sinkEnv) settlesAll() {
	_ = e.queue.produce(e.Context(), e.number(e.messages))
	e.runUntilSettled(pipeline.Options{Workers: 8, MaxItems: 200, Batch: 32})
	e.check()
	e.allEnded()
}

func (e *sinkEnv) keepsOrder() {
	_ = e.queue.produce(e.Context(), e.number(e.messages))
	e.runUntilSettled(pipeline.Options{Workers: 8, MaxItems: 200, Batch: 32, Order: pipeline.OrderPartition})
	e.check()
	if e.harness.Unordered {
		return
	}
	e.ledger.check(true)
	last := map[int]int{}
	for _, data := range e.effects() {
		m, _ := e.ledger.knows(data)
		if before, begun := last[m.Partition]; begun && m.Place < before {
			e.Errorf("partition %d is out of order: %d behind %d", m.Partition, m.Place, before)
		}
		last[m.Partition] = m.Place
	}
}

// beginsAgain ends pipelines while messages are under way, and again.
func (e *sinkEnv) beginsAgain() {
	_ = e.queue.produce(e.Context(), e.number(e.messages))
	ctx, cancel := e.context()
	defer cancel()
	e.ledger.inParts(ctx, e.random, func(ctx context.Context) {
		e.run(ctx, pipeline.Options{Workers: 4, MaxItems: 40, Batch: 16})
	})
	e.check()
}

// endedContext delivers under a context that has ended, and under one that ends.
// What is reported as done must be there.
func (e *sinkEnv) endedContext() {
	list := e.number(40)
	process, abandon, closing := e.direct()
	partition := pipeline.NewPartition("queue")
	for i, m := range list {
		ctx, cancel := context.WithCancel(e.Context())
		if i%2 == 0 {
			cancel()
		} else {
			time.AfterFunc(time.Duration(e.random.IntN(2000))*time.Microsecond, cancel)
		}
		it := &pipeline.Item{Partition: partition}
		it.Message.Body = m.Body
		it.Call.Key = semel.Key{Scope: "ledger", ID: m.ID}
		it.Decision = semel.Fresh
		process(ctx, []*pipeline.Item{it})
		e.delivered([]*pipeline.Item{it})
		if it.Err != nil {
			abandon(e.Context(), []*pipeline.Item{it})
		}
		cancel()
	}
	if err := closing(e.Context()); err != nil {
		e.Errorf("close: %v", err)
	}
	e.compare(true)
}

// direct opens what is under test with nothing between. A sink has no keys.
func (e *sinkEnv) direct() (process, abandon func(context.Context, []*pipeline.Item), closing func(context.Context) error) {
	e.Helper()
	if e.target.Session != nil {
		session, err := e.target.Session(e.Context())
		if err != nil {
			e.Fatalf("open the session: %v", err)
		}
		return session.Process, session.Abandon, session.Close
	}
	sink, err := e.target.Sink(e.Context())
	if err != nil {
		e.Fatalf("open the sink: %v", err)
	}
	known := map[string]bool{}
	deliver := func(ctx context.Context, items []*pipeline.Item) {
		if id := items[0].Call.Key.ID; known[id] {
			items[0].Decision = semel.Duplicate
			return
		}
		sink.Deliver(ctx, items)
		known[items[0].Call.Key.ID] = items[0].Err == nil
	}
	return deliver, func(context.Context, []*pipeline.Item) {}, sink.Close
}

// restarts has the server restarted three times, with -short once, while messages are under way.
func (e *sinkEnv) restarts() {
	if e.target.Restart == nil {
		e.Log("there is no server")
		return
	}
	ctx, cancel := e.context()
	defer cancel()
	defer e.restarting(ctx, e.number(e.messages), e.target.Restart, func(part []Numbered) func() {
		_ = e.queue.produce(ctx, part)
		return func() {}
	})()
	e.runUntilSettled(pipeline.Options{Workers: 4, MaxItems: 60, Batch: 16})
	e.check()
}

func (e *sinkEnv) effects() [][]byte {
	e.Helper()
	effects, err := e.target.Effects(e.Context())
	if err != nil {
		e.Fatalf("ask the target for its effects: %v", err)
	}
	return effects
}

// check compares the target's effects with the ledger.
func (e *sinkEnv) check() {
	e.Helper()
	e.learn()
	e.ledger.check(false)
	e.compare(e.harness.AtLeastOnce)
}

// learn takes from the target what became of keys whose session did not report
// it: where the answer to a commit is lost it finds the key done when the
// message comes again, and calls it a duplicate.
func (e *sinkEnv) learn() {
	if !e.ledger.commits {
		return
	}
	for _, data := range e.effects() {
		m, ok := e.ledger.knows(data)
		e.ledger.mu.Lock()
		if ok && e.ledger.accepted[m.ID] == 0 {
			e.ledger.accepted[m.ID] = 1
		}
		e.ledger.mu.Unlock()
	}
}

// compare compares the target's effects with what the sink reported. With repeats
// an effect may come twice, and one whose outcome was unknown may be there.
func (e *sinkEnv) compare(repeats bool) {
	e.Helper()
	times := map[string]int{}
	for _, data := range e.effects() {
		if m, ok := e.ledger.knows(data); ok {
			times[m.ID]++
		}
	}
	e.ledger.mu.Lock()
	defer e.ledger.mu.Unlock()
	for id := range e.ledger.keys {
		n, said := times[id], e.ledger.accepted[id]
		switch {
		case said > 0 && n == 0:
			e.Errorf("the effect of key %s was reported and is not there", id)
		case n > 1 && !repeats:
			e.Errorf("key %s had its effect %d times at the target", id, n)
		case said == 0 && n > 0 && !repeats:
			e.Errorf("the effect of key %s is there and was never reported", id)
		}
	}
}
