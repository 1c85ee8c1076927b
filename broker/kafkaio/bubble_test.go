package kafkaio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// bubble is a broker and what a test does with it. All runs in a synctest bubble,
// so that waiting costs nothing.
type bubble struct {
	*testing.T
	cluster *kfake.Cluster
	dial    dialFunc
	client  *kgo.Client
	ends    map[string]int // records that end a reading, by topic
}

// inBubble runs fn with a broker that has the topics in, with the given number
// of partitions, and out and aside, with three.
func inBubble(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := &kfake.VirtualNetwork{}
		all := append([]kfake.Opt{kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen)}, opts...)
		onFake(t, partitions, network.DialContext, fn, all...)
	})
}

// inRealTime is inBubble without the bubble, for several members: their client
// waits for locks in ways that a bubble does not know.
func inRealTime(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	onFake(t, partitions, new(net.Dialer).DialContext, fn, append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func onFake(t *testing.T, partitions int32, dial dialFunc, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	b := &bubble{T: t, dial: dial, ends: map[string]int{}}
	cluster, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.SeedTopics(partitions, "in"), kfake.SeedTopics(3, "out", "aside"), kfake.GroupMinSessionTimeout(time.Second),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	b.cluster = cluster
	defer cluster.Close()
	b.client, err = kgo.NewClient(append(b.reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer b.client.Close()
	fn(b)
}

// reach returns the client options that lead to the broker.
func (b *bubble) reach() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(b.dial), kgo.DisableClientMetrics()}
}

// options returns options for the topics, with the record key as id.
func (b *bubble) options() TransactorOptions {
	rule, err := key.ParseRule("record-key")
	if err != nil {
		b.Fatal(err)
	}
	return TransactorOptions{
		Client: b.reach(), Group: "g", Inputs: []string{"in"}, Output: "out", Parked: "aside",
		Key: rule, Scope: "s", Sessions: 1, Window: time.Hour, SkipSample: true,
	}
}

// write writes records and waits for them.
func (b *bubble) write(records ...*kgo.Record) {
	b.Helper()
	if err := b.client.ProduceSync(b.Context(), records...).FirstErr(); err != nil {
		b.Fatal(err)
	}
}

func record(partition int32, key, value string) *kgo.Record {
	r := &kgo.Record{Topic: "in", Partition: partition, Value: []byte(value)}
	if key != "" {
		r.Key = []byte(key)
	}
	return r
}

// numbered returns n records with the keys from to from+n-1 spread over
// partitions by number.
func numbered(from, n, partitions int) []*kgo.Record {
	var list []*kgo.Record
	for i := from; i < from+n; i++ {
		list = append(list, record(int32(i%partitions), strconv.Itoa(i), fmt.Sprintf("value %d", i)))
	}
	return list
}

// line is a program's way to the broker, which a test may cut.
type line struct {
	dial dialFunc

	mu    sync.Mutex
	conns map[*lineConn]bool
	cut   bool
	// sent is called with the kind of each request, which was written when it
	// returns false and is not written when it returns true; then, and after
	// severed, all connections end.
	before, after func(kind kmsg.Key) (sever bool)
}

type lineConn struct {
	net.Conn
	line *line
}

var errCut = errors.New("the line is cut")

func (l *line) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		return nil, errCut
	}
	conn, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &lineConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return c, nil
}

// sever ends all connections, and lets no new ones be made if it stays so.
func (l *line) sever(stay bool) {
	l.mu.Lock()
	conns := l.conns
	l.conns = map[*lineConn]bool{}
	l.cut = stay
	l.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
	}
}

func (l *line) mend() { l.sever(false) }

// on sets what is done before and after requests are written.
func (l *line) on(before, after func(kind kmsg.Key) (sever bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.after = before, after
}

func (c *lineConn) Write(data []byte) (int, error) {
	kind := kmsg.Key(-1)
	if len(data) >= 6 {
		kind = kmsg.Key(binary.BigEndian.Uint16(data[4:]))
	}
	c.line.mu.Lock()
	before, after := c.line.before, c.line.after
	c.line.mu.Unlock()
	if before != nil && before(kind) {
		c.line.sever(true)
		return 0, errCut
	}
	n, err := c.Conn.Write(data)
	if after != nil && after(kind) {
		c.line.sever(true)
	}
	return n, err
}

// once returns a function that is true for the nth request of a kind.
func once(kind kmsg.Key, nth int) func(kmsg.Key) bool {
	var mu sync.Mutex
	return func(k kmsg.Key) bool {
		mu.Lock()
		defer mu.Unlock()
		if k != kind {
			return false
		}
		nth--
		return nth == 0
	}
}

// program is a Transactor that runs.
type program struct {
	b      *bubble
	tr     *Transactor
	line   *line
	events *events
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (b *bubble) start(opts TransactorOptions) *program {
	b.Helper()
	return b.startOn(&line{dial: b.dial, conns: map[*lineConn]bool{}}, opts)
}

// startOn starts a program whose way to the broker is a line.
func (b *bubble) startOn(l *line, opts TransactorOptions) *program {
	b.Helper()
	p := &program{b: b, line: l, events: &events{standby: -1}, done: make(chan struct{})}
	opts.Client = []kgo.Opt{kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.Dialer(p.line.Dial), kgo.DisableClientMetrics()}
	opts.Observer = p.events
	tr, err := NewTransactor(&opts)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	p.tr, p.cancel = tr, cancel
	b.Cleanup(func() {
		if b.Failed() {
			b.Log("events:\n" + strings.Join(p.events.log, "\n"))
		}
	})
	go func() {
		defer close(p.done)
		p.err = tr.Run(ctx)
	}()
	return p
}

// stop drains the program.
func (p *program) stop() {
	p.b.Helper()
	p.cancel()
	<-p.done
	if p.err != nil {
		p.b.Errorf("Run: %v", p.err)
	}
}

// kill ends the program as a crash does: nothing that it does any more is seen.
// It goes on in the background until it notices.
func (p *program) kill() {
	p.line.sever(true)
	p.cancel()
}

// wait waits until the program did something a number of times.
func (p *program) wait(n int, count func(*events) int) {
	p.b.Helper()
	if !within(3*time.Minute, func() bool { return count(p.events) >= n }) {
		p.b.Fatalf("after three minutes the count is %d, want %d", count(p.events), n)
	}
}

// within reports whether something comes true within a time.
func within(most time.Duration, so func() bool) bool {
	end := time.After(most)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
	return true
}

// settled counts messages that are done.
func settled(e *events) int { return e.count(pipeline.EventSettled) }

// events counts what a pipeline reports.
type events struct {
	mu      sync.Mutex
	decided map[semel.Decision]int
	counts  map[pipeline.EventKind]int
	log     []string
	asides  []string // what was said of records that were put aside or given up
	standby int      // records that the standby lacks; -1 before it said so
}

func (e *events) Observe(semel.Event) {}

func (e *events) ObservePipeline(v pipeline.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counts == nil {
		e.counts, e.decided = map[pipeline.EventKind]int{}, map[semel.Decision]int{}
	}
	e.counts[v.Kind] += max(v.Count, 1)
	if v.Kind == pipeline.EventStandby {
		e.standby = v.Count
	}
	if v.Kind == pipeline.EventParked || v.Kind == pipeline.EventDropped {
		e.asides = append(e.asides, aside(&v))
	}
	if v.Kind == pipeline.EventDecided {
		e.decided[v.Decision] += v.Count
	}
	e.log = append(e.log, fmt.Sprintf("%s %s %d %s %v %v", time.Now().Format("04:05.000"), v.Kind, v.Count, v.Reason, v.Decision, v.Err))
}

// aside says what an event tells of a record that was put aside or given up.
func aside(v *pipeline.Event) string {
	said := fmt.Sprintf("%s %d %s: %v", v.Kind, v.Count, v.Reason, v.Err)
	if it := v.Item; it != nil {
		o := it.Message.Origin
		said += fmt.Sprintf(", %s of %s/%d at %d, attempt %d", it.Call.Key, o.Source, o.Partition, o.Offset, it.Attempt)
	}
	return said
}

// told returns what was said of records that were put aside or given up.
func (e *events) told() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asides)
}

func (e *events) count(k pipeline.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[k]
}

func (e *events) decisions(d semel.Decision) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.decided[d]
}

// endHeader is on records that end what read reads.
const endHeader = "end"

// read reads what is committed in a topic at the moment. It does not return
// before the transactions that are open have ended.
func (b *bubble) read(topic string) []*kgo.Record {
	b.Helper()
	open := b.cluster.PartitionInfos(topic)
	for _, p := range open {
		b.write(&kgo.Record{Topic: topic, Partition: p.Partition, Headers: []kgo.RecordHeader{{Key: endHeader}}})
	}
	client, err := kgo.NewClient(append(b.reach(), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	var list []*kgo.Record
	b.ends[topic] += len(open)
	for ends := 0; ends < b.ends[topic]; {
		fetches := client.PollFetches(b.Context())
		if err := fetches.Err(); err != nil {
			b.Fatalf("read %s: %v", topic, err)
		}
		for _, r := range fetches.Records() {
			if len(r.Headers) == 1 && r.Headers[0].Key == endHeader {
				ends++
			} else {
				list = append(list, r)
			}
		}
	}
	return list
}

// values maps the keys of records to their values; a key that occurs twice is an
// error.
func (b *bubble) values(records []*kgo.Record) map[string]string {
	b.Helper()
	values := map[string]string{}
	for _, r := range records {
		if _, ok := values[string(r.Key)]; ok {
			b.Errorf("key %s is there twice", r.Key)
		}
		values[string(r.Key)] = string(r.Value)
	}
	return values
}

// exactly checks that the output holds the keys 0 to n-1 once each.
func (b *bubble) exactly(n int) {
	b.Helper()
	values := b.values(b.read("out"))
	for i := range n {
		if values[strconv.Itoa(i)] != fmt.Sprintf("value %d", i) {
			b.Errorf("key %d has %q", i, values[strconv.Itoa(i)])
		}
	}
	if len(values) != n {
		b.Errorf("there are %d keys, want %d", len(values), n)
	}
}
