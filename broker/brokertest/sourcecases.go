package brokertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/semel-dev/semel/pipeline"
)

func sourceCases() []testCase[*sourceEnv] {
	return []testCase[*sourceEnv]{
		{"every message is settled, and each key has its effect once", (*sourceEnv).settlesAll},
		{"the order of a partition holds while messages fail", (*sourceEnv).keepsOrder},
		{"pipelines stop in the middle and restart", (*sourceEnv).beginsAgain},
		{"settled messages are not redelivered, unsettled ones are", (*sourceEnv).remembersAcks},
		{"returned messages are redelivered", (*sourceEnv).returns},
		{"each parked message has its own entry", (*sourceEnv).parksEach},
		{"no message is lost in an outage of the target with many restarts", (*sourceEnv).outlastsOutage},
		{"a position is a key, or there are no positions", (*sourceEnv).positions},
		{"Read ends with its context, and Close ends everything", (*sourceEnv).ends},
		{"the server is restarted in the middle", (*sourceEnv).restarts},
	}
}

func (e *sourceEnv) settlesAll() {
	ctx, cancel := e.context()
	defer cancel()
	defer e.produce(ctx, e.number(e.messages))()
	e.runUntilSettled(pipeline.Options{Workers: 8, MaxItems: 100})
	e.ledger.check(false)
	e.nothingComesAgain()
	e.allEnded()
}

func (e *sourceEnv) keepsOrder() {
	ctx, cancel := e.context()
	defer cancel()
	defer e.produce(ctx, e.number(e.messages))()
	e.runUntilSettled(pipeline.Options{Workers: 8, MaxItems: 64, Order: pipeline.OrderPartition})
	e.ledger.check(!e.harness.Unordered)
	e.allEnded()
}

// beginsAgain ends pipelines while messages are under way, and again. The store
// is the same throughout.
func (e *sourceEnv) beginsAgain() {
	ctx, cancel := e.context()
	defer cancel()
	defer e.produce(ctx, e.number(e.messages))()
	opts := pipeline.Options{Workers: 4, MaxItems: 50}
	e.ledger.inParts(ctx, e.random, func(ctx context.Context) { e.run(ctx, opts) })
	e.settleRest(opts)
	e.ledger.check(false)
	e.nothingComesAgain()
}

// nothingComesAgain opens the source after all was acknowledged and it was
// closed. Only what is produced now may come.
func (e *sourceEnv) nothingComesAgain() {
	e.Helper()
	if e.Failed() {
		return
	}
	ctx, cancel := e.context()
	defer cancel()
	marks := e.number(1)
	wait := e.produce(ctx, marks)
	source := e.open(ctx)
	items := source.readAll(ctx, marks, e.patience)
	items = append(items, source.readRest(ctx, quiet)...)
	if source.again > 0 || len(items) != 1 {
		e.Errorf("after a clean close %d messages came, %d of them settled before; want the new one alone", len(items), source.again)
	}
	e.settle(ctx, source, items)
	e.close(ctx, source)
	wait()
}

// accept notes the effects of messages that were read without a pipeline.
func (e *sourceEnv) accept(items []*pipeline.Item) {
	for _, it := range items {
		if m, ok := e.ledger.knows(it.Message.Body); ok && !e.ledger.has(m.ID) {
			e.ledger.accept(m)
		}
	}
}

// settle notes the effects of messages and acknowledges them.
func (e *sourceEnv) settle(ctx context.Context, s *spy, items []*pipeline.Item) {
	e.Helper()
	e.accept(items)
	if err := s.Ack(ctx, items); err != nil {
		e.Errorf("acknowledge: %v", err)
	}
}

// has reports whether a key is settled.
func (l *ledger) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted[id] > 0 || l.parked[id] != ""
}

func (e *sourceEnv) close(ctx context.Context, s *spy) {
	e.Helper()
	if err := s.Close(ctx); err != nil {
		e.Errorf("close the source: %v", err)
	}
}

// remembersAcks acknowledges some messages, in any order and by many at once.
// After the source is opened again all others must come; those before the first
// of them must not.
func (e *sourceEnv) remembersAcks() {
	e.apart = e.harness.Blocking
	ctx, cancel := e.context()
	defer cancel()
	list := e.number(e.messages / 4)
	wait := e.produce(ctx, list)
	source := e.open(ctx)
	items := e.readAll(ctx, source, list)
	wait()
	chosen := slices.Clone(items)
	e.random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:len(chosen)*2/3]
	e.accept(chosen)
	var acking sync.WaitGroup
	for part := range slices.Chunk(chosen, max(len(chosen)/8, 1)) {
		acking.Go(func() {
			for some := range slices.Chunk(part, 5) {
				if err := source.Ack(ctx, some); err != nil {
					e.Errorf("acknowledge: %v", err)
				}
			}
		})
	}
	acking.Wait()
	e.close(ctx, source)

	acked := map[place]bool{}
	for _, it := range chosen {
		m, _ := e.ledger.knows(it.Message.Body)
		acked[place{m.Partition, m.Place}] = true
	}
	firstOpen := map[int]int{}
	awaited := e.marks()
	wait = e.produce(ctx, awaited)
	for _, m := range list {
		if acked[place{m.Partition, m.Place}] {
			continue
		}
		awaited = append(awaited, m)
		if first, ok := firstOpen[m.Partition]; !ok || m.Place < first {
			firstOpen[m.Partition] = m.Place
		}
	}
	source = e.open(ctx)
	items = source.readAll(ctx, awaited, e.patience)
	items = append(items, source.readRest(ctx, quiet)...)
	came := map[place]bool{}
	for _, it := range items {
		m, _ := e.ledger.knows(it.Message.Body)
		came[place{m.Partition, m.Place}] = true
	}
	repeated := 0
	for _, m := range list {
		at := place{m.Partition, m.Place}
		first, open := firstOpen[m.Partition]
		switch {
		case acked[at] && came[at] && e.harness.Joint:
			repeated++
		case !acked[at] && !came[at]:
			e.Errorf("message %d of partition %d was not acknowledged, and does not come again", m.Place, m.Partition)
		case acked[at] && came[at] && (!open || m.Place < first):
			e.Errorf("message %d of partition %d was acknowledged like all before it, and comes again", m.Place, m.Partition)
		}
	}
	if e.harness.Joint && repeated == 0 {
		e.Error("no acknowledged message comes again together with others: Joint is not needed")
	}
	e.settle(ctx, source, items)
	e.close(ctx, source)
	wait()
	e.nothingComesAgain()
}

// readAll reads until all of these messages have come.
func (e *sourceEnv) readAll(ctx context.Context, s *spy, list []Numbered) []*pipeline.Item {
	e.Helper()
	items := s.readAll(ctx, list, e.patience)
	if n := s.lacks(list); n > 0 {
		e.Errorf("%d of %d messages did not come", n, len(list))
	}
	return items
}

// returns gives messages back, which must then come again: from the same source
// if it can, or when it is opened again.
func (e *sourceEnv) returns() {
	e.apart = e.harness.Blocking
	ctx, cancel := e.context()
	defer cancel()
	list := e.number(20)
	wait := e.produce(ctx, list)
	source := e.open(ctx)
	items := e.readAll(ctx, source, list)
	wait()
	returned := items[:len(items)/2]
	if err := source.Return(ctx, returned, time.Millisecond); err != nil {
		e.Errorf("return: %v", err)
	}
	rest := slices.Clone(items[len(items)/2:])
	e.settle(ctx, source, rest)
	if !source.Traits().CanReturn {
		e.close(ctx, source)
		source = e.open(ctx)
	}
	clear(source.read)
	clear(source.last)
	source.ordered = false // what is returned lost its place
	awaited := e.marks()
	wait = e.produce(ctx, awaited)
	for _, it := range returned {
		m, _ := e.ledger.knows(it.Message.Body)
		awaited = append(awaited, m)
	}
	back := e.readAll(ctx, source, awaited)
	back = append(back, source.readRest(ctx, quiet)...)
	e.settle(ctx, source, back)
	e.close(ctx, source)
	wait()
	e.ledger.mustBeSettled()
	e.nothingComesAgain()
}

// ends checks that a source without messages can be left.
func (e *sourceEnv) ends() {
	ctx, cancel := e.context()
	defer cancel()
	source := e.open(ctx)
	reading, stop := context.WithCancel(ctx)
	time.AfterFunc(quiet/4, stop)
	items, err := source.Read(reading)
	if len(items) > 0 || err == nil || reading.Err() == nil && !errors.Is(err, context.Canceled) {
		e.Errorf("an empty source gave %d messages and the error %v, want that of the context", len(items), err)
	}
	if err := source.Ack(ctx, nil); err != nil {
		e.Errorf("acknowledge nothing: %v", err)
	}
	if err := source.Return(ctx, nil, 0); err != nil {
		e.Errorf("return nothing: %v", err)
	}
	e.close(ctx, source)
	e.allEnded()
}

// restarts has the server restarted three times, with -short once, while messages are produced and
// under way.
func (e *sourceEnv) restarts() {
	if e.place.Restart == nil {
		e.Log("there is no server")
		return
	}
	ctx, cancel := e.context()
	defer cancel()
	wait := e.restarting(ctx, e.number(e.messages), e.place.Restart, func(part []Numbered) func() { return e.produce(ctx, part) })
	defer wait()
	opts := pipeline.Options{Workers: 4, MaxItems: 60}
	e.runUntilSettled(opts)
	wait()
	e.settleRest(opts)
	e.ledger.check(false)
	if !e.harness.ForgetsAcks {
		e.nothingComesAgain()
	}
}
