package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/services"
)

// broker is a server of queues that the benchmarks fill and read.
type broker struct {
	name, about string // about the queue and the client, for people
	module      string // of the plain client
	records     int    // in the queue when the measurement starts
	rate        int    // messages a second while latencies are measured
	batch       int    // of a plain publisher
	looksUp     bool   // the server looks up ids
	start       func(context.Context) (*brokerServer, error)
}

// brokerServer is a server with one empty queue.
type brokerServer struct {
	source func(context.Context) (pipeline.Source, error)
	// publisher returns what a Go program publishes with.
	publisher func(context.Context) (publication, error)
	// plain returns a publisher that uses nothing but the client library. It
	// publishes the messages of one call and then waits for all confirms. It is for
	// one goroutine.
	plain func(context.Context) (func(context.Context, [][]byte) error, error)
	// withIDs does the same with an id for each message, which the server looks up.
	// It is nil if the server looks up no ids.
	withIDs func(context.Context) (func(context.Context, [][]byte) error, error)
	url     string
	server  *services.Server
	close   func() error
}

// publishers is the number of goroutines that publish, as sinks have them.
const publishers = 2

// brokers lists the benchmarks of RabbitMQ, SQS and NATS.
func brokers(e Env) []Benchmark {
	var list []Benchmark
	for _, b := range []broker{natsBroker(e), rabbitBroker(e), sqsBroker(e)} {
		for _, store := range []struct {
			name, about string
			target      float64
			open        func(context.Context, *Env) (semel.Store, func() error, error)
		}{
			{"embedded", "an embedded store that syncs each batch", 0.7, openEmbedded},
			{"redis", "Redis over loopback with an append-only file synced every second", 0.6, openSharedRedis}, // a message needs two scripted writes
		} {
			consume := b.consume(e, b.name+"-"+store.name, store.about, store.target, store.open)
			if store.name == "redis" {
				consume.rivals = append(consume.rivals, b.consumePlainRedis(consume.Name))
			}
			list = append(list, consume)
		}
		list = append(list, b.publish())
	}
	return append(list, watermillAMQP(e))
}

func openEmbedded(_ context.Context, e *Env) (semel.Store, func() error, error) {
	dir, err := e.fresh("brokers")
	if err != nil {
		return nil, nil, err
	}
	store, err := logstore.Open(dir, nil)
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}

func openSharedRedis(ctx context.Context, _ *Env) (semel.Store, func() error, error) {
	server, err := startRedis(ctx)
	if err != nil {
		return nil, nil, err
	}
	store, end, err := openRedis(ctx, server.Addr(), nil)
	if err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	return store, func() error { return errors.Join(end(), server.Close()) }, nil
}

// consume is the benchmark of a consumer with this store.
func (b broker) consume(e Env, name, store string, target float64, open func(context.Context, *Env) (semel.Store, func() error, error)) Benchmark {
	ours := func(ctx context.Context) (_ map[string]float64, err error) {
		keys, end, err := open(ctx, &e)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end()) }()
		return b.measure(ctx, name, b.input(), true, func(sink pipeline.Sink) (pipeline.Session, error) {
			return pipeline.NewTwoPhase(keys, sink, nil)
		})
	}
	peer := func(ctx context.Context) (map[string]float64, error) {
		return b.measure(ctx, name, b.input(), false, func(sink pipeline.Sink) (pipeline.Session, error) { return pipeline.NewDirect(sink, nil), nil })
	}
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("%s: read %s messages of %d bytes, every tenth a duplicate, claim, give them to a sink that only counts, complete, acknowledge. Keys in %s. Messages a second until all are acknowledged; then, at %d messages a second for 5 s, the time from publishing a message to its acknowledgement. ",
			b.about, count(b.records), records.ValueBytes, store, b.rate),
		ours: ours,
		rivals: []rival{{
			work:        "Peer: the same source, runner and sink without keys, which counts the duplicates too",
			peerVersion: linked(b.module),
			peer:        peer,
			figures: []figure{
				{name: name, unit: "messages/s", target: target},
				{name: name + "-p50", unit: "ms", lessIsBetter: true},
				{name: name + "-p99", unit: "ms", lessIsBetter: true},
			},
		}},
	}
}

// input is what a consumer finds in the queue.
func (b broker) input() records.Input { return records.Input{Seed: inputSeed, Records: b.records} }

// measure measures the rate of a backlog, and then latencies, with a sink that counts.
func (b broker) measure(ctx context.Context, name string, in records.Input, distinct bool, open func(pipeline.Sink) (pipeline.Session, error)) (map[string]float64, error) {
	return b.measureInto(ctx, name, in, distinct, func(m *meter) (pipeline.Session, error) { return open(counter{m}) }, nil)
}

// measureInto is measure for any sink. If the sink does not count the messages that it
// handles, count does so at the end.
func (b broker) measureInto(ctx context.Context, name string, in records.Input, distinct bool, open func(*meter) (pipeline.Session, error), count func(context.Context, *meter) error) (_ map[string]float64, err error) {
	server, err := b.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	if err := fill(ctx, server, in, b.batch); err != nil {
		return nil, err
	}
	paced := records.Input{Seed: in.Seed, Records: in.Records + 5*b.rate} // the same ids, and more
	m := newMeter(paced)
	session, err := open(m)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	source, err := server.source(ctx)
	if err != nil {
		return nil, err
	}
	rule, err := key.ParseRule(".event_id")
	if err != nil {
		return nil, err
	}
	runner, err := pipeline.NewRunner(metered{source, m}, session, &pipeline.Options{
		Key: rule, OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop, Failure: pipeline.Failure{Then: pipeline.Stop},
	})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(running) }()
	if err := m.await(in.Records, ended); err != nil {
		return nil, err
	}
	rate := float64(in.Records) / time.Since(began).Seconds()
	if err := m.pace(ctx, server, in.Records, b.rate); err != nil {
		return nil, err
	}
	if err := m.await(paced.Records, ended); err != nil {
		return nil, err
	}
	stop()
	if err := <-ended; err != nil {
		return nil, err
	}
	if count != nil {
		if err := count(ctx, m); err != nil {
			return nil, err
		}
	}
	if b.rate == 0 {
		return map[string]float64{name: rate}, m.check(distinct)
	}
	latencies := slices.Sorted(slices.Values(m.took[in.Records:]))
	at := func(share float64) float64 {
		return latencies[int(share*float64(len(latencies)-1))].Seconds() * 1e3
	}
	return map[string]float64{name: rate, name + "-p50": at(0.5), name + "-p99": at(0.99)}, m.check(distinct)
}

// fill publishes the input with the plain client.
func fill(ctx context.Context, server *brokerServer, in records.Input, batch int) error {
	return inParallel(publishers, publishers, func(worker int) error {
		publish, err := server.plain(ctx)
		if err != nil {
			return err
		}
		for from := worker * batch; from < in.Records; from += publishers * batch {
			if err := publish(ctx, values(in, from, min(batch, in.Records-from))); err != nil {
				return err
			}
		}
		return nil
	})
}

// values returns n values of the input.
func values(in records.Input, from, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		_, list[i] = in.Append(nil, nil, from+i)
	}
	return list
}

// meter counts the messages that are handled and acknowledged, and measures times.
type meter struct {
	in        records.Input
	handled   []atomic.Int32
	published []atomic.Int64 // Unix nanoseconds
	acked     atomic.Int64

	mu   sync.Mutex
	took []time.Duration // guarded by mu
}

func newMeter(in records.Input) *meter {
	return &meter{in: in, handled: make([]atomic.Int32, in.Records), published: make([]atomic.Int64, in.Records), took: make([]time.Duration, in.Records)}
}

// seq returns the number of a record.
func (m *meter) seq(body []byte) (int, error) {
	_, rest, _ := bytes.Cut(body, []byte(`"seq":`))
	number, _, _ := bytes.Cut(rest, []byte(","))
	i, err := strconv.Atoi(string(number))
	if err != nil || i < 0 || i >= len(m.handled) {
		return 0, fmt.Errorf("suite: %.80q is not of the input", body)
	}
	return i, nil
}

// counter is a sink that counts the messages. It has the batches of the sinks of semel.
type counter struct{ m *meter }

func (counter) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 500, Parallel: 2} }

func (counter) Close(context.Context) error { return nil }

func (c counter) Deliver(_ context.Context, items []*pipeline.Item) {
	for _, it := range items {
		var i int
		if i, it.Err = c.m.seq(it.Message.Body); it.Err == nil {
			c.m.handled[i].Add(1)
		}
	}
}

// metered is a source that reports acknowledgements.
type metered struct {
	pipeline.Source
	m *meter
}

func (s metered) Ack(ctx context.Context, items []*pipeline.Item) error {
	err := s.Source.Ack(ctx, items)
	if err != nil {
		return err
	}
	now := time.Now().UnixNano()
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	for _, it := range items {
		i, err := s.m.seq(it.Message.Body)
		if err != nil {
			return err
		}
		s.m.took[i] = time.Duration(now - s.m.published[i].Load())
	}
	s.m.acked.Add(int64(len(items)))
	return nil
}

// await blocks until n messages are acknowledged.
func (m *meter) await(n int, ended <-chan error) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for m.acked.Load() < int64(n) {
		select {
		case <-tick.C:
		case err := <-ended:
			return fmt.Errorf("suite: the consumer has ended after %d of %d messages: %w", m.acked.Load(), n, err)
		}
	}
	return nil
}

// pace publishes the messages behind the first n, at this rate a second.
func (m *meter) pace(ctx context.Context, server *brokerServer, n, rate int) error {
	publish, err := server.plain(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for next := n; next < m.in.Records; {
		<-tick.C
		due := min(n+int(time.Since(began).Seconds()*float64(rate)), m.in.Records)
		for i := next; i < due; i++ {
			m.published[i].Store(time.Now().UnixNano())
		}
		if err := publish(ctx, values(m.in, next, due-next)); err != nil {
			return err
		}
		next = due
	}
	return nil
}

// check returns an error unless each key, or each message, was handled once.
func (m *meter) check(distinct bool) error {
	keys := map[string]int32{}
	for i := range m.handled {
		id, _ := m.in.Append(nil, nil, i)
		keys[string(id)] += m.handled[i].Load()
		if n := m.handled[i].Load(); !distinct && n != 1 {
			return fmt.Errorf("suite: message %d was handled %d times", i, n)
		}
	}
	for id, n := range keys {
		if distinct && n != 1 {
			return fmt.Errorf("suite: the key %s was handled %d times", id, n)
		}
	}
	return nil
}

// publication publishes the messages of the input from this number on.
type publication func(ctx context.Context, from int, bodies [][]byte) error

// publish is the benchmark of a publisher.
func (b broker) publish() Benchmark {
	name := b.name + "-publish"
	in := b.input()
	through := func(open func(context.Context, *brokerServer) (publication, error)) side {
		return func(ctx context.Context) (map[string]float64, error) {
			rate, err := b.publishAll(ctx, in, open)
			return map[string]float64{"rate": rate}, err
		}
	}
	peer := func(ids bool) side {
		return through(func(ctx context.Context, server *brokerServer) (publication, error) {
			open := server.plain
			if ids {
				open = server.withIDs
			}
			plain, err := open(ctx)
			return func(ctx context.Context, _ int, bodies [][]byte) error { return plain(ctx, bodies) }, err
		})
	}
	rivals := []rival{{
		work: "without ids", peerVersion: linked(b.module), peer: peer(false),
		figures: []figure{{name: name, value: "rate", unit: "messages/s", target: 0.9}},
	}}
	if b.looksUp {
		rivals[0].figures[0].target = 0 // the server does less for the peer
		rivals = append(rivals, rival{
			work: "with ids", peerVersion: linked(b.module), peer: peer(true),
			figures: []figure{{name: name + "-ids", value: "rate", unit: "messages/s", target: 0.9}},
		})
	}
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("%s: publish %s messages of %d bytes with an id from their key, and wait for all confirms, from %d goroutines in batches of %d. Peer: the plain client in batches of as many, ",
			b.about, count(in.Records), records.ValueBytes, publishers, b.batch),
		ours: through(func(ctx context.Context, server *brokerServer) (publication, error) {
			return server.publisher(ctx)
		}),
		rivals: rivals,
	}
}

// idOf is the id of a message. Each has one of its own, because a broker drops repeated ones.
func idOf(number int) string { return strconv.Itoa(number) }

// publishAll returns the messages a second of all publishers. The process ends soon
// after it, and their connections with it.
func (b broker) publishAll(ctx context.Context, in records.Input, open func(context.Context, *brokerServer) (publication, error)) (rate float64, err error) {
	server, err := b.start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	var publish [publishers]publication
	for i := range publish {
		if publish[i], err = open(ctx, server); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err = inParallel(publishers, publishers, func(worker int) error {
		for from := worker * b.batch; from < in.Records; from += publishers * b.batch {
			if err := publish[worker](ctx, from, values(in, from, min(b.batch, in.Records-from))); err != nil {
				return err
			}
		}
		return nil
	})
	return float64(in.Records) / time.Since(began).Seconds(), err
}
