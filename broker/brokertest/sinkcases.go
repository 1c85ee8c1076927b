package brokertest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/pipeline"
)

// nothingDelivered reports whether an error of a sink says that nothing was delivered.
func nothingDelivered(err error) bool {
	if errors.Is(err, semel.ErrOutcomeUnknown) || errors.Is(err, semel.ErrLeaseLost) {
		return false
	}
	if _, away := errors.AsType[*pipeline.UnavailableError](err); away {
		return true
	}
	return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

// isUnavailable reports whether an error has the pipeline pause.
func isUnavailable(err error) bool {
	_, away := errors.AsType[*pipeline.UnavailableError](err)
	_, noStore := errors.AsType[*pipeline.StoreError](err)
	return away || noStore
}

func isPermanent(err error) bool {
	_, permanent := errors.AsType[*semel.PermanentError](err)
	return permanent
}

// ordersGroups delivers groups of messages in as few calls as the sink takes.
func (e *sinkEnv) ordersGroups() {
	d := e.direct("")
	if d.traits.Ordered && e.harness.Unordered {
		e.Error("the sink has the trait Ordered, and the harness says Unordered: nothing proves the order of a group. Leave out one of the two")
	}
	ctx, cancel := e.context()
	defer cancel()
	var list []Numbered
	for range 20 {
		list = append(list, e.fresh("ordered"))
	}
	const tries = 10
	for n := 1; len(list) > 0; n++ { // the runner tries again from the first that failed
		errs := d.deliver(ctx, 1, list...)
		first := slices.IndexFunc(errs, func(err error) bool { return err != nil })
		if first < 0 {
			break
		}
		if n == tries {
			e.Fatalf("%d messages of a group are not delivered after %d tries: %v", len(list)-first, tries, errs[first])
		}
		list = list[first:]
	}
	d.close()
	e.inOrder()
	e.compare(e.harness.AtLeastOnce)
}

// inOrder checks the order of the effects of each partition, if they show one.
func (e *sinkEnv) inOrder() {
	e.Helper()
	if e.harness.Unordered {
		return
	}
	last := map[int]int{}
	for _, effect := range e.effects() {
		m, _ := e.ledger.knows(effect.Body)
		if before, begun := last[m.Partition]; begun && m.Place < before {
			e.Errorf("partition %d is out of order: %d behind %d", m.Partition, m.Place, before)
		}
		last[m.Partition] = m.Place
	}
}

// passesHeaders looks for the headers of a message and for its key at the target.
func (e *sinkEnv) passesHeaders() {
	ctx, cancel := e.context()
	defer cancel()
	m, sent := e.fresh("headers"), semel.Header{Name: "suite-text", Value: []byte("a: b, c")}
	d := e.direct("")
	const tries = 10
	for n := 1; ; n++ {
		it := &pipeline.Item{Partition: d.partition, Group: 1, Decision: semel.Fresh, Attempt: 1}
		it.Message.Body, it.Message.Headers = slices.Clone(m.Body), []semel.Header{sent}
		it.Message.Origin = semel.Origin{Source: "queue", Identity: "direct", Partition: int32(m.Partition), Offset: int64(m.Place)}
		it.Call.Key = semel.Key{Scope: "ledger", ID: m.ID}
		d.process(ctx, []*pipeline.Item{it})
		if it.Err == nil {
			break
		}
		d.abandon(ctx, []*pipeline.Item{it})
		if n == tries {
			e.Fatalf("a message with a header is not delivered after %d tries: %v", tries, it.Err)
		}
	}
	d.close()
	effects := e.effects()
	at := slices.IndexFunc(effects, func(effect Effect) bool { return bytes.Equal(effect.Body, m.Body) })
	if at < 0 {
		e.Fatalf("the effect of %s was reported, and Effects has not got it", m.ID)
	}
	got := semel.Message{Headers: effects[at].Headers}
	if e.harness.NoHeaders {
		if len(got.Headers) > 0 {
			e.Errorf("the harness says NoHeaders, and an effect has the headers %q", got.Headers)
		}
		return
	}
	if value, _ := got.Header(sent.Name); !bytes.Equal(value, sent.Value) {
		e.Errorf("a message had the header %s: %q, and its effect has %q: deliver those of header.Output", sent.Name, sent.Value, value)
	}
	if id, ok := header.KeyOf(&got); !ok || id != m.ID {
		e.Errorf("the effect of key %s has headers that name the key %q: deliver those of header.Output", m.ID, id)
	}
}

// refused delivers a message that the target refuses between two that it takes.
func (e *sinkEnv) refused() {
	if e.target.Refused == nil {
		e.Log("the target takes every message")
		return
	}
	ctx, cancel := e.context()
	defer cancel()
	for _, group := range []uint64{0, 1} {
		d := e.direct("")
		before, bad, behind := e.fresh("before"), e.fresh("refused"), e.fresh("behind")
		bad.Body = e.target.Refused
		errs := d.deliver(ctx, group, before, bad, behind)
		d.close()
		if errs[0] != nil {
			e.Errorf("a message before one that the target refuses: %v, want no error", errs[0])
		}
		if !isPermanent(errs[1]) {
			e.Errorf("a message that the target refuses has the error %v, want a semel.Permanent: it would be tried again", errs[1])
		}
		switch n := e.times(behind); {
		case group != 0 && d.traits.Ordered && (n > 0 || !errors.Is(errs[2], pipeline.ErrBehind)):
			e.Errorf("a message behind one of its group that failed has the error %v and %d effects; the trait Ordered asks for pipeline.ErrBehind and none", errs[2], n)
		case isPermanent(errs[2]):
			e.Errorf("another message in the call has the error %v: it would be parked", errs[2])
		case n > 0 && errs[2] != nil && nothingDelivered(errs[2]), n == 0 && errs[2] == nil:
			e.Errorf("another message in the call has the error %v and %d effects", errs[2], n)
		}
		if e.times(before) == 0 {
			e.Error("the effect before that of a refused message was reported, and is not there")
		}
	}
}

// behindRelay reports whether the case can stand between the sink and its server.
func (e *sinkEnv) behindRelay() bool {
	e.Helper()
	has := e.target.Server != "" && (e.target.SinkAt != nil || e.target.SessionAt != nil)
	if !has && (e.target.Restart != nil || e.target.Server != "") {
		e.Error("the target has a server, and the suite cannot lose its answers: set Server, and SinkAt or SessionAt")
	} else if !has {
		e.Log("there is no server")
	}
	return has
}

// unreachable takes the server away from a sink that has delivered to it.
func (e *sinkEnv) unreachable() {
	if !e.behindRelay() {
		return
	}
	relay := newRelay(e, e.target.Server)
	d := e.direct(relay.address)
	ctx, cancel := e.context()
	defer cancel()
	if err := d.deliver(ctx, 1, e.fresh("first"))[0]; err != nil {
		e.Fatalf("deliver: %v", err)
	}
	relay.disconnect()
	for range 2 { // the first finds a connection that ends
		m := e.fresh("unreachable")
		short, end := context.WithTimeout(ctx, min(e.patience/3, 10*time.Second))
		err := d.deliver(short, 1, m)[0]
		ended := short.Err() != nil
		end()
		switch {
		case isPermanent(err):
			e.Errorf("the server cannot be reached, and the sink reports %v: the message would be parked", err)
		case !isUnavailable(err) && !ended:
			e.Errorf("the server cannot be reached, and the sink reports %v, want a pipeline.Unavailable: each try would count as an attempt", err)
		}
		if n := e.times(m); n > 0 {
			e.Errorf("a message had %d effects at a server that could not be reached", n)
		}
	}
	short, end := context.WithTimeout(ctx, quiet)
	defer end()
	_ = d.end(short) // it may fail: the server is gone
}

// losesAnswer has the target do an effect, and loses one of its answers: the first behind
// the request, the second, and so on, until the call needs no more. One of them tells that
// the effect lasts.
func (e *sinkEnv) losesAnswer() {
	if !e.behindRelay() {
		return
	}
	ctx, cancel := e.context()
	defer cancel()
	relay := newRelay(e, e.target.Server)
	for n := 1; n <= 8 && ctx.Err() == nil; n++ {
		d := e.direct(relay.address)
		if err := d.deliver(ctx, 1, e.fresh("first"))[0]; err != nil {
			e.Fatalf("deliver: %v", err)
		}
		m := e.fresh("lost")
		lost := relay.lose(m.ID, n)
		short, end := context.WithTimeout(ctx, min(e.patience/3, 10*time.Second))
		err := d.deliver(short, 1, m)[0]
		end()
		select {
		case <-lost:
		default:
			if n == 1 {
				e.Errorf("no connection had %s and then an answer: the case proves nothing. Is the connection encrypted or compressed?", m.ID)
			}
			n = 8 // there are no further answers
		}
		d.close()
		effects := e.times(m)
		switch {
		case err == nil && effects == 0:
			e.Errorf("answer %d behind the request was lost, and the sink reports an effect that is not there", n)
		case err != nil && effects > 0 && nothingDelivered(err):
			e.Errorf("the effect is there, and its answer was lost (number %d behind the request). The sink reports %v, which says that nothing was delivered: wrap semel.ErrOutcomeUnknown", n, err)
		case isPermanent(err):
			e.Errorf("answer %d behind the request was lost, and the sink reports %v: the message would be parked", n, err)
		case effects > 1 && !e.harness.AtLeastOnce:
			e.Errorf("answer %d behind the request was lost, and the effect is there %d times", n, effects)
		}
	}
}
