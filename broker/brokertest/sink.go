package brokertest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
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

func newSinkEnv(w *watched, h SinkHarness) *sinkEnv {
	w.Helper()
	e := &sinkEnv{harness: h, target: h.New(w), queue: newMemoryQueue(sinkPartitions)}
	e.env = newEnv(w, h.Patience, h.Messages, sinkPartitions)
	e.target.Restart = e.byHarness(e.target.Restart)
	effects := e.target.Effects
	e.target.Effects = func(ctx context.Context) (list []Effect, err error) {
		err = e.byHarness(func(ctx context.Context) error { list, err = effects(ctx); return err })(ctx)
		return list, err
	}
	if (e.target.Sink == nil) == (e.target.Session == nil) {
		w.Fatal("the harness must set one of Sink and Session")
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
		return &scriptedSession{e.openSession(ctx, ""), e}
	}
	session, err := pipeline.NewTwoPhase(e.store, &scriptedSink{e.openSink(ctx, ""), e}, nil)
	if err != nil {
		e.Fatal(err)
	}
	return session
}

// openSession opens the session under test, with another address of its server if it is
// not empty.
func (e *sinkEnv) openSession(ctx context.Context, address string) pipeline.Session {
	e.Helper()
	end := e.begin(ctx, "opening the session")
	var session pipeline.Session
	var err error
	if address == "" {
		session, err = e.target.Session(ctx)
	} else {
		session, err = e.target.SessionAt(ctx, address)
	}
	end()
	if err != nil {
		e.Fatalf("open the session: %v", err)
	}
	return timedSession{session, e.watched}
}

// openSink is openSession for a sink.
func (e *sinkEnv) openSink(ctx context.Context, address string) pipeline.Sink {
	e.Helper()
	end := e.begin(ctx, "opening the sink")
	var sink pipeline.Sink
	var err error
	if address == "" {
		sink, err = e.target.Sink(ctx)
	} else {
		sink, err = e.target.SinkAt(ctx, address)
	}
	end()
	if err != nil {
		e.Fatalf("open the sink: %v", err)
	}
	return timedSink{sink, e.watched}
}

// run runs a pipeline from the queue until ctx ends.
func (e *sinkEnv) run(ctx context.Context, opts pipeline.Options) {
	e.Helper()
	e.complete(&opts)
	opts.Failure.Attempts = 20 // a server that is restarted fails messages too
	source := &spy{Source: e.queue.open(), ledger: e.ledger, read: map[place]bool{}, last: map[int]int{}}
	runner, err := pipeline.NewRunner(source, e.session(ctx), &opts)
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
	e.ledger.untilSettled(func(ctx context.Context) { e.run(ctx, opts) })
}

// delivered notes what a sink says it has delivered: the ledger must know before
// the source does.
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
		{"a group is delivered in its order", (*sinkEnv).ordersGroups},
		{"headers of a message and its key arrive", (*sinkEnv).passesHeaders},
		{"a message that the target refuses is permanent, and holds up its group alone", (*sinkEnv).refused},
		{"a target that cannot be reached is unavailable", (*sinkEnv).unreachable},
		{"after a lost answer the outcome is unknown", (*sinkEnv).losesAnswer},
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
	e.inOrder()
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
	d := e.direct("")
	known := map[string]bool{}
	for i, m := range list {
		if known[m.ID] && e.target.Sink != nil {
			continue // a sink has no keys
		}
		ctx, cancel := context.WithCancel(e.Context())
		if i%2 == 0 {
			cancel()
		} else {
			time.AfterFunc(time.Duration(e.random.IntN(2000))*time.Microsecond, cancel)
		}
		known[m.ID] = d.deliver(ctx, 1, m)[0] == nil
		cancel()
	}
	d.close()
	e.compare(true)
}

// direct is what is under test with nothing between it and the case.
type direct struct {
	env       *sinkEnv
	traits    pipeline.SinkTraits
	process   func(ctx context.Context, items []*pipeline.Item)
	abandon   func(ctx context.Context, items []*pipeline.Item)
	end       func(ctx context.Context) error
	partition *pipeline.Partition
}

// direct opens what is under test, with another address of its server if it is not empty.
func (e *sinkEnv) direct(address string) *direct {
	e.Helper()
	d := &direct{env: e, partition: pipeline.NewPartition("queue")}
	if e.target.Session != nil {
		session := e.openSession(e.Context(), address)
		d.traits, d.process, d.abandon, d.end = session.Traits(), session.Process, session.Abandon, session.Close
		return d
	}
	sink := e.openSink(e.Context(), address)
	d.traits, d.process, d.end = sink.Traits(), sink.Deliver, sink.Close
	d.abandon = func(context.Context, []*pipeline.Item) {}
	return d
}

// deliver delivers messages in one call, or in as many as the traits ask for, as one group
// or, with group 0, as one each. It notes what is reported as delivered, and returns the
// errors.
func (d *direct) deliver(ctx context.Context, group uint64, list ...Numbered) (errs []error) {
	var items []*pipeline.Item
	for i, m := range list {
		it := &pipeline.Item{Partition: d.partition, Group: cmp.Or(group, uint64(i+1)), Decision: semel.Fresh, Attempt: 1}
		it.Message.Body = slices.Clone(m.Body)
		it.Message.Origin = semel.Origin{Source: "queue", Identity: "direct", Partition: int32(m.Partition), Offset: int64(m.Place)}
		it.Call.Key = semel.Key{Scope: "ledger", ID: m.ID}
		items = append(items, it)
	}
	most := cmp.Or(d.traits.MaxBatch, len(items))
	if group != 0 && !d.traits.Ordered {
		most = 1
	}
	for some := range slices.Chunk(items, most) {
		d.process(ctx, slices.Clone(some))
		d.env.delivered(some)
	}
	for _, it := range items {
		errs = append(errs, it.Err)
		if it.Err != nil {
			d.abandon(d.env.Context(), []*pipeline.Item{it})
		}
		for i := range it.Message.Body { // the memory belongs to the suite again
			it.Message.Body[i] = '!'
		}
	}
	return errs
}

// close closes what is under test.
func (d *direct) close() {
	d.env.Helper()
	ctx, cancel := d.env.context()
	defer cancel()
	if err := d.end(ctx); err != nil {
		d.env.Errorf("close: %v", err)
	}
}

// fresh makes a message with a key of its own.
func (e *sinkEnv) fresh(id string) Numbered {
	partition := 0
	m := newNumbered(fmt.Sprintf("%s-%x", id, e.random.Uint64()), partition, e.next[partition], 10)
	e.next[partition]++
	e.ledger.expect([]Numbered{m})
	return m
}

// times counts the effects of a message at the target.
func (e *sinkEnv) times(m Numbered) (n int) {
	e.Helper()
	for _, effect := range e.effects() {
		if bytes.Equal(effect.Body, m.Body) {
			n++
		}
	}
	return n
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

func (e *sinkEnv) effects() []Effect {
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
// it. Where the answer to a commit is lost, the session finds the key done when the
// message comes again, and calls it a duplicate.
func (e *sinkEnv) learn() {
	if !e.ledger.commits {
		return
	}
	for _, effect := range e.effects() {
		m, ok := e.ledger.knows(effect.Body)
		e.ledger.mu.Lock()
		if ok && e.ledger.accepted[m.ID] == 0 {
			e.ledger.accepted[m.ID] = 1
		}
		e.ledger.mu.Unlock()
	}
}

// compare compares the target's effects with the deliveries that the sink reported. With repeats
// an effect may come twice, and one whose outcome was unknown may be there.
func (e *sinkEnv) compare(repeats bool) {
	e.Helper()
	times := map[string]int{}
	for _, effect := range e.effects() {
		if m, ok := e.ledger.knows(effect.Body); ok {
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
