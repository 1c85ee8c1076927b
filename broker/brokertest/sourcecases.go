package brokertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
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
		{"a message arrives with its time, its headers and its origin", (*sourceEnv).tellsAll},
		{"Read ends with its context, and Close ends everything", (*sourceEnv).ends},
		{"two consumers share the messages, or there is one", (*sourceEnv).sharesMessages},
		{"messages come again after a lost answer", (*sourceEnv).losesAnswer},
		{"an acknowledgement that fails is reported, or made good", (*sourceEnv).acksInOutage},
		{"another consumer gets the messages of one that vanished", (*sourceEnv).vanishes},
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
	came := map[place]bool{} // a lease may end on a slow machine: without an order, the new one may come twice until it is settled
	for _, it := range items {
		if m, ok := e.ledger.knows(it.Message.Body); ok {
			came[place{m.Partition, m.Place}] = true
		}
	}
	if source.again > 0 || len(came) != 1 || !e.harness.Unordered && len(items) != 1 {
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

// remembersAcks acknowledges some messages, in any order and many in one call.
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
		e.Errorf("in %v, %d of %d messages did not come", e.patience, n, len(list))
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
	var returned, rest []*pipeline.Item
	back := map[place]bool{} // all their deliveries are returned: a lease may end on a slow machine
	for _, it := range items {
		m, _ := e.ledger.knows(it.Message.Body)
		at := place{m.Partition, m.Place}
		if back[at] || len(back) < len(list)/2 {
			back[at] = true
			returned = append(returned, it)
		} else {
			rest = append(rest, it)
		}
	}
	if err := source.Return(ctx, returned, time.Millisecond); err != nil {
		e.Errorf("return: %v", err)
	}
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
	items = e.readAll(ctx, source, awaited)
	items = append(items, source.readRest(ctx, quiet)...)
	e.settle(ctx, source, items)
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

// tellsAll compares what a source tells about a message with the message that was produced.
func (e *sourceEnv) tellsAll() {
	e.apart = e.harness.Blocking
	ctx, cancel := e.context()
	defer cancel()
	n := 2
	if e.harness.Joint { // they have their headers in common
		n = 1
	}
	list := e.number(n)
	for i := range list {
		list[i].Headers = []semel.Header{{Name: "suite-number", Value: strconv.AppendInt(nil, int64(i), 10)}, {Name: "suite-text", Value: []byte("a: b, \"c\"")}}
	}
	const skew = time.Minute // between the clocks of two machines
	earliest := time.Now().Add(-skew)
	wait := e.produce(ctx, list)
	source := e.open(ctx)
	items := e.readAll(ctx, source, list)
	wait()
	for _, it := range items {
		n, ok := e.ledger.knows(it.Message.Body)
		i := slices.IndexFunc(list, func(m Numbered) bool { return m.Partition == n.Partition && m.Place == n.Place })
		if !ok || i < 0 {
			continue
		}
		if it.Message.Origin.Source == "" {
			e.Errorf("a message has no Origin.Source: name the topic, queue or file that it comes from")
		}
		switch at := it.Message.Time; {
		case e.harness.NoTime && !at.IsZero():
			e.Errorf("the harness says NoTime, and a message has the time %v", at)
		case !e.harness.NoTime && (at.Before(earliest) || at.After(time.Now().Add(skew))):
			e.Errorf("a message that was produced after %v has the time %v: a key would be late, or never", earliest.Add(skew), at)
		}
		for _, h := range list[i].Headers {
			value, has := it.Message.Header(h.Name)
			if e.harness.NoHeaders && has {
				e.Errorf("the harness says NoHeaders, and a message has the header %s", h.Name)
			} else if !e.harness.NoHeaders && string(value) != string(h.Value) {
				e.Errorf("a message was produced with the header %s: %q, and comes with %q (there is one: %t)", h.Name, h.Value, value, has)
			}
		}
	}
	e.settle(ctx, source, items)
	e.close(ctx, source)
}

// sharesMessages has two pipelines read concurrently. One of them ends in the middle.
func (e *sourceEnv) sharesMessages() {
	if e.harness.Alone {
		e.readsAlone()
		return
	}
	e.shared = true
	ctx, cancel := e.context()
	defer cancel()
	list := e.number(e.messages / 2)
	defer e.produce(ctx, list)()
	opts := pipeline.Options{Workers: 4, MaxItems: 20}
	e.ledger.untilSettled(func(ctx context.Context) {
		other, stop := context.WithCancel(ctx)
		defer stop()
		var running sync.WaitGroup
		defer running.Wait()
		running.Go(func() { e.run(other, opts) })
		running.Go(func() {
			e.ledger.reach(other, len(list)/2)
			stop()
		})
		e.run(ctx, opts)
	})
	e.ledger.check(false)
}

// readsAlone opens a second consumer while the first has a message.
func (e *sourceEnv) readsAlone() {
	e.shared = true
	ctx, cancel := e.context()
	defer cancel()
	first := e.open(ctx)
	list := e.number(1)
	wait := e.produce(ctx, list)
	items := e.readAll(ctx, first, list)
	wait()
	opening, end := context.WithTimeout(ctx, 5*quiet)
	source, err := e.place.Open(opening)
	end()
	if err != nil {
		e.settle(ctx, first, items)
		e.close(ctx, first)
		return
	}
	second, more := e.spy(source), e.number(1)
	e.produce(ctx, more)()
	reading, end := context.WithTimeout(ctx, 5*quiet)
	got, _ := second.Read(reading) // its error is that of its context, or says that it is not alone
	end()
	if len(got) == 0 { // it waits and the first continues, or it is slow
		e.eitherReads(ctx, more, first, second)
	}
	switch {
	case len(got) > 0 || second.lacks(more) == 0: // it has taken the place of the first
		if second.readAll(ctx, list, e.patience); second.lacks(list) > 0 {
			e.Error("the harness says Alone, and two consumers have messages: the second got one, and not the one that the first has and did not settle")
		}
	case first.lacks(more) > 0:
		e.Errorf("in %v, neither of two consumers got the next message", e.patience)
	}
	e.close(ctx, second)
	e.closeLate(ctx, first)
}

// eitherReads has consumers read concurrently until one of them has all of these messages.
// Another one may end with an error, which says that it is not alone.
func (e *sourceEnv) eitherReads(ctx context.Context, list []Numbered, of ...*spy) {
	reading, end := context.WithTimeout(ctx, e.patience)
	defer end()
	var all sync.WaitGroup
	for _, s := range of {
		all.Go(func() {
			for err := error(nil); err == nil && reading.Err() == nil && s.lacks(list) > 0; {
				_, err = s.Read(reading)
			}
			if s.lacks(list) == 0 {
				end()
			}
		})
	}
	all.Wait()
}

// closeLate closes a source that has lost its server or its place. It may fail.
func (e *sourceEnv) closeLate(ctx context.Context, s *spy) {
	closing, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	_ = s.Close(closing)
}

// behindRelay reports whether the case can stand between the source and its server.
func (e *sourceEnv) behindRelay() bool {
	e.Helper()
	has := e.place.Server != "" && e.place.OpenAt != nil
	if !has && (e.place.Restart != nil || e.place.Server != "" || e.place.OpenAt != nil) {
		e.Error("the place has a server, and the suite cannot lose its answers: set Server and OpenAt")
	} else if !has {
		e.Log("there is no server")
	}
	return has
}

// openAt opens the source behind a relay.
func (e *sourceEnv) openAt(ctx context.Context, r *relay) *spy {
	e.Helper()
	return e.spyOn(ctx, func(ctx context.Context) (pipeline.Source, error) { return e.place.OpenAt(ctx, r.address) })
}

// losesAnswer loses the answer that has a message, with its connection. The server may think
// that the message was delivered.
func (e *sourceEnv) losesAnswer() {
	if !e.behindRelay() {
		return
	}
	e.apart = e.harness.Blocking
	ctx, cancel := e.context()
	defer cancel()
	relay := newRelay(e, e.place.Server)
	source := e.openAt(ctx, relay)
	list := e.number(1)
	wait := e.produce(ctx, list)
	e.settle(ctx, source, e.readAll(ctx, source, list)) // so that it is connected
	wait()
	partition := e.partition()
	m := newNumbered(fmt.Sprintf("lost-%x", e.random.Uint64()), partition, e.next[partition], 10)
	e.next[partition]++
	e.ledger.expect([]Numbered{m})
	lost := relay.lose(m.ID, 0)
	wait = e.produce(ctx, []Numbered{m})
	items := source.readAll(ctx, []Numbered{m}, e.patience)
	wait()
	select {
	case <-lost:
	default:
		e.Errorf("no answer of the server had %s: the case proves nothing. Is the connection encrypted or compressed?", m.ID)
	}
	if source.lacks([]Numbered{m}) > 0 {
		e.Errorf("the answer with a message was lost, and the message did not come again in %v: ask again for what the server holds for this consumer", e.patience)
	}
	e.settle(ctx, source, items)
	e.close(ctx, source)
}

// acksInOutage acknowledges messages while the server cannot be reached, and again until Ack
// returns no error, as the runner does. A message whose acknowledgement did not arrive comes again
// while the source reads, and is acknowledged once more. After a clean end none may come.
func (e *sourceEnv) acksInOutage() {
	if !e.behindRelay() {
		return
	}
	e.apart = e.harness.Blocking
	ctx, cancel := e.context()
	defer cancel()
	relay := newRelay(e, e.place.Server)
	source := e.openAt(ctx, relay)
	const n = 8
	partitions := make([]int, n) // one: the last messages of a partition hold up no position
	for i := range partitions {
		if e.apart {
			partitions[i] = e.partition()
		}
	}
	list := e.numberIn(partitions)
	wait := e.produce(ctx, list)
	items := e.readAll(ctx, source, list)
	wait()
	held := list[n-2:] // which are not settled here: with them, all comes again that does
	mine := func(it *pipeline.Item) bool {
		m, ok := e.ledger.knows(it.Message.Body)
		return ok && !slices.ContainsFunc(held, func(h Numbered) bool { return h.Partition == m.Partition && h.Place == m.Place })
	}
	items = slices.DeleteFunc(items, func(it *pipeline.Item) bool { return !mine(it) })
	e.accept(items)
	knocked := relay.away()
	select {
	case <-knocked:
	case <-time.After(min(e.patience/2, 4*time.Second)): // it connects when it must
	}
	outage, end := context.WithTimeout(ctx, quiet)
	err := source.Ack(outage, items)
	end()
	relay.back()
	for err != nil && ctx.Err() == nil {
		if err = source.Ack(ctx, items); err != nil {
			_ = retry.Sleep(ctx, quiet/4) // its error is that of ctx
		}
	}
	if err != nil {
		e.Errorf("the server is back, and in %v no acknowledgement succeeded: %v", e.patience, err)
	}
	more := e.number(1) // which arrives when the source has its server back
	held = append(slices.Clone(held), more...)
	wait = e.produce(ctx, more)
	back := append(e.readAll(ctx, source, more), source.readRest(ctx, quiet)...)
	wait()
	e.settle(ctx, source, slices.DeleteFunc(back, func(it *pipeline.Item) bool { return !mine(it) }))
	e.close(ctx, source)

	next := e.open(ctx)
	rest := e.readAll(ctx, next, held)
	rest = append(rest, next.readRest(ctx, quiet)...)
	if next.again > 0 {
		e.Errorf("the server was away when messages were acknowledged, Ack and Close returned no error, and %d of %d came again to the next consumer: return the error of the server", next.again, len(items))
	}
	e.settle(ctx, next, rest)
	e.close(ctx, next)
}

// vanishes cuts a consumer off that has messages, without a word to the server. They must
// come to another one.
func (e *sourceEnv) vanishes() {
	if !e.behindRelay() {
		return
	}
	e.apart = e.harness.Blocking
	ctx, cancel := e.context()
	defer cancel()
	relay := newRelay(e, e.place.Server)
	first := e.openAt(ctx, relay)
	list := e.number(20)
	wait := e.produce(ctx, list)
	items := e.readAll(ctx, first, list)
	wait()
	e.settle(ctx, first, items[:len(items)/3])
	var second *spy
	if !e.harness.Alone {
		second = e.open(ctx)
	}
	relay.disconnect()
	if e.harness.Alone {
		second = e.open(ctx)
	}
	var stranded []Numbered
	for _, it := range items[len(items)/3:] {
		if m, ok := e.ledger.knows(it.Message.Body); ok {
			stranded = append(stranded, m)
		}
	}
	items = second.readAll(ctx, stranded, e.patience)
	if n := second.lacks(stranded); n > 0 {
		e.Errorf("a consumer vanished with %d messages, and %d of them did not come to another one in %v", len(stranded), n, e.patience)
	}
	e.closeLate(ctx, first)
	e.settle(ctx, second, items)
	e.close(ctx, second)
}
