// Package kafkatest has a Kafka broker in the test process, connections that a test cuts, and
// counted events. Only tests import it.
package kafkatest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Rig is a Kafka broker in the test process, with the actions of a test.
type Rig struct {
	*testing.T
	Cluster *kfake.Cluster
	Dial    dialFunc
	Client  *kgo.Client
	ends    map[string]int // number of end markers in each topic
	asleep  atomic.Int64   // number of control functions
}

// Virtual calls fn with a broker that has the topic in, with the given number of
// partitions, and the topics out and aside, with three. Call it in a synctest bubble,
// where waiting takes no time.
func Virtual(t *testing.T, partitions int32, fn func(b *Rig), opts ...kfake.Opt) {
	t.Helper()
	network := &kfake.VirtualNetwork{}
	all := append([]kfake.Opt{kfake.NumBrokers(1), kfake.Ports(9092), kfake.ListenFn(network.Listen)}, opts...)
	onFake(t, partitions, network.DialContext, fn, all...)
}

// Real is Virtual outside of a bubble. Tests with several members need it, because
// their clients wait for locks in ways that a bubble does not support.
func Real(t *testing.T, partitions int32, fn func(b *Rig), opts ...kfake.Opt) {
	t.Helper()
	onFake(t, partitions, new(net.Dialer).DialContext, fn, append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func onFake(t *testing.T, partitions int32, dial dialFunc, fn func(b *Rig), opts ...kfake.Opt) {
	t.Helper()
	b := &Rig{T: t, Dial: dial, ends: map[string]int{}}
	cluster, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.SeedTopics(partitions, "in"), kfake.SeedTopics(3, "out", "aside"), kfake.GroupMinSessionTimeout(time.Second),
		kfake.SleepOutOfOrder(), // requests that sleep in order have a data race in the fake
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	b.Cluster = cluster
	defer cluster.Close()
	defer Within(time.Minute, func() bool { return b.asleep.Load() == 0 }) // two that the end wakes would wait for each other
	b.Client, err = kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Client.Close()
	fn(b)
}

// Reach returns the client options that lead to the broker.
func (b *Rig) Reach() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(b.Cluster.ListenAddrs()...), kgo.Dialer(b.Dial), kgo.DisableClientMetrics()}
}

// Sleep delays the answer to the request of a control function, which calls it. The broker ends
// when all such functions have ended.
func (b *Rig) Sleep(d time.Duration) {
	b.asleep.Add(1)
	defer b.asleep.Add(-1)
	b.Cluster.SleepControl(func() { _ = retry.Sleep(b.Context(), d) }) // the test may end before that
}

// Write writes records and waits for them.
func (b *Rig) Write(records ...*kgo.Record) {
	b.Helper()
	if err := b.Client.ProduceSync(b.Context(), records...).FirstErr(); err != nil {
		b.Fatal(err)
	}
}

// Record returns a record of the topic in.
func Record(partition int32, key, value string) *kgo.Record {
	r := &kgo.Record{Topic: "in", Partition: partition, Value: []byte(value)}
	if key != "" {
		r.Key = []byte(key)
	}
	return r
}

// Numbered returns n records with the keys from to from+n-1 spread over
// partitions by number.
func Numbered(from, n, partitions int) []*kgo.Record {
	var list []*kgo.Record
	for i := from; i < from+n; i++ {
		list = append(list, Record(int32(i%partitions), strconv.Itoa(i), fmt.Sprintf("value %d", i)))
	}
	return list
}

// Line is a program's connection to the broker, which a test may cut.
type Line struct {
	dial dialFunc

	// deciding is read-locked from the call of before or after until the connections have ended,
	// so that Mend comes later. It is locked before mu.
	deciding sync.RWMutex

	mu    sync.Mutex // guards the fields below
	conns map[*lineConn]bool
	cut   bool
	// before is called with the kind of each request before it is written, and after
	// afterwards. If one returns true, all connections end.
	before, after func(kind kmsg.Key) (sever bool)
}

type lineConn struct {
	net.Conn
	line *Line
}

var ErrCut = errors.New("the line is cut")

func (l *Line) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		return nil, ErrCut
	}
	conn, err := l.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &lineConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut { // since
		conn.Close()
		return nil, ErrCut
	}
	l.conns[c] = true
	return c, nil
}

// Sever ends all connections. If stay is true, it also prevents new ones.
func (l *Line) Sever(stay bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Conn.Close()
	}
	l.conns = map[*lineConn]bool{}
	l.cut = stay
}

// Mend allows new connections. A function of On that is called now cuts the line first.
func (l *Line) Mend() {
	l.deciding.Lock()
	defer l.deciding.Unlock()
	l.Sever(false)
}

// On sets the functions that are called before and after each request.
func (l *Line) On(before, after func(kind kmsg.Key) (sever bool)) {
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
	if c.line.cuts(before, kind) {
		return 0, ErrCut
	}
	n, err := c.Conn.Write(data)
	c.line.cuts(after, kind) // the client awaits no answer yet
	return n, err
}

// cuts calls a function of On, or nil, and cuts the line if it says so.
func (l *Line) cuts(says func(kmsg.Key) bool, kind kmsg.Key) bool {
	if says == nil {
		return false
	}
	l.deciding.RLock()
	defer l.deciding.RUnlock()
	if !says(kind) {
		return false
	}
	l.Sever(true)
	return true
}

// Once returns a function that is true for the nth request of a kind.
func Once(kind kmsg.Key, nth int) func(kmsg.Key) bool {
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

// Runner is the part of a Program that the test provides.
type Runner interface {
	Run(ctx context.Context) error
}

// Program is a Runner with a line and observer of its own, like a process.
type Program struct {
	B      *Rig
	Line   *Line
	Events *Events
	Cancel context.CancelFunc
	Done   chan struct{}
	Err    error
}

// NewLine returns a line to the broker.
func (b *Rig) NewLine() *Line { return &Line{dial: b.Dial, conns: map[*lineConn]bool{}} }

// ClientOn returns the client options that lead to the broker through a line.
func (b *Rig) ClientOn(l *Line) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(b.Cluster.ListenAddrs()...), kgo.Dialer(l.Dial), kgo.DisableClientMetrics()}
}

// Run starts what create returns for a client whose way to the broker is a line.
func (b *Rig) Run(l *Line, create func(client []kgo.Opt, o pipeline.Observer) (Runner, error)) *Program {
	b.Helper()
	p := &Program{B: b, Line: l, Events: &Events{standby: -1}, Done: make(chan struct{})}
	r, err := create(b.ClientOn(l), p.Events)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	p.Cancel = cancel
	b.LogIfFailed(p.Events)
	go func() {
		defer close(p.Done)
		p.Err = r.Run(ctx)
		p.Events.mu.Lock()
		defer p.Events.mu.Unlock()
		p.Events.Log = append(p.Events.Log, fmt.Sprintf("%s Run ended: %v", time.Now().Format("04:05.000"), p.Err))
	}()
	return p
}

// LogIfFailed logs events at the end of a test that fails.
func (b *Rig) LogIfFailed(e *Events) {
	b.Cleanup(func() {
		e.mu.Lock() // a program that was killed may still run
		defer e.mu.Unlock()
		if b.Failed() {
			b.Log("events:\n" + strings.Join(e.Log, "\n"))
		}
	})
}

// Stop ends the program and waits for it.
func (p *Program) Stop() {
	p.B.Helper()
	p.Cancel()
	<-p.Done
	if p.Err != nil {
		p.B.Errorf("Run: %v", p.Err)
	}
}

// Kill ends the program as a crash does: the broker sees nothing more of it. Its
// goroutines end later.
func (p *Program) Kill() {
	p.Line.Sever(true)
	p.Cancel()
}

// Wait waits until a count of the program's events is at least n.
func (p *Program) Wait(n int, count func(*Events) int) {
	p.B.Helper()
	if !Within(3*time.Minute, func() bool { return count(p.Events) >= n }) {
		p.B.Fatalf("after three minutes the count is %d, want %d", count(p.Events), n)
	}
}

// Within reports whether a condition becomes true in time.
func Within(most time.Duration, so func() bool) bool {
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

// Settled counts settled messages.
func Settled(e *Events) int { return e.Count(pipeline.EventSettled) }

// Events counts the events of a pipeline.
type Events struct {
	mu      sync.Mutex
	decided map[semel.Decision]int
	counts  map[pipeline.EventKind]int
	Log     []string
	asides  []string // events of parked and dropped records
	standby int      // last reported lag of the standby, or -1
}

func (e *Events) Observe(semel.Event) {}

func (e *Events) ObservePipeline(v pipeline.Event) {
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
	e.Log = append(e.Log, fmt.Sprintf("%s %s %d %s %v %v", time.Now().Format("04:05.000"), v.Kind, v.Count, v.Reason, v.Decision, v.Err))
}

// aside describes the event of a parked or dropped record.
func aside(v *pipeline.Event) string {
	said := fmt.Sprintf("%s %d %s: %v", v.Kind, v.Count, v.Reason, v.Err)
	if it := v.Item; it != nil {
		o := it.Message.Origin
		said += fmt.Sprintf(", %s of %s/%d at %d, attempt %d", it.Call.Key, o.Source, o.Partition, o.Offset, it.Attempt)
	}
	return said
}

// Told describes the events of parked and dropped records.
func (e *Events) Told() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asides)
}

func (e *Events) Count(k pipeline.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts[k]
}

// Stalls describes the events of stalls, a line each.
func (e *Events) Stalls() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(slices.DeleteFunc(slices.Clone(e.Log), func(line string) bool { return !strings.Contains(line, pipeline.EventStalled.String()) }), "\n")
}

func (e *Events) Decisions(d semel.Decision) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.decided[d]
}

// endHeader marks records that end a Read.
const endHeader = "end"

// Read reads the committed records of a topic. It waits for open transactions to end.
func (b *Rig) Read(topic string) []*kgo.Record {
	b.Helper()
	open := b.Cluster.PartitionInfos(topic)
	for _, p := range open {
		b.Write(&kgo.Record{Topic: topic, Partition: p.Partition, Headers: []kgo.RecordHeader{{Key: endHeader}}})
	}
	client, err := kgo.NewClient(append(b.Reach(), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))...)
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

// Values maps record keys to values. A repeated key is an error.
func (b *Rig) Values(records []*kgo.Record) map[string]string {
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

// Exactly checks that the output holds the keys 0 to n-1 once each.
func (b *Rig) Exactly(n int) {
	b.Helper()
	values := b.Values(b.Read("out"))
	for i := range n {
		if values[strconv.Itoa(i)] != fmt.Sprintf("value %d", i) {
			b.Errorf("key %d has %q", i, values[strconv.Itoa(i)])
		}
	}
	if len(values) != n {
		b.Errorf("there are %d keys, want %d", len(values), n)
	}
}

// Must ends the test if there is an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Large returns incompressible records of 0.9, 1.5 and 4 MB between small ones, each
// with a copy.
func Large(topic string) []*kgo.Record {
	random := rand.NewChaCha8([32]byte{1})
	var list []*kgo.Record
	for _, size := range []int{10, 900_000, 20, 1_500_000, 30, 4_000_000, 40} {
		value := make([]byte, size)
		_, _ = random.Read(value) // never fails
		for range 2 {
			list = append(list, &kgo.Record{Topic: topic, Key: fmt.Append(nil, size), Value: value})
		}
	}
	return list
}

// Takes creates topics that accept batches of a size.
func Takes(t *testing.T, client *kgo.Client, most int, topics ...string) {
	t.Helper()
	answer, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, map[string]*string{"max.message.bytes": kadm.StringPtr(fmt.Sprint(most))}, topics...)
	Must(t, errors.Join(err, answer.Error()))
}

// SetTakes changes the size of batches that a topic accepts.
func SetTakes(t *testing.T, client *kgo.Client, most int, topic string) {
	t.Helper()
	answer, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr(fmt.Sprint(most))}}, topic)
	Must(t, err)
	for _, a := range answer {
		Must(t, a.Err)
	}
}

// LargeClient returns a client that writes records of any size.
func LargeClient(t *testing.T, opts []kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(slices.Clone(opts), kgo.ProducerBatchMaxBytes(5*Megabyte), kgo.UnknownTopicRetries(-1), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	Must(t, err)
	t.Cleanup(client.Close)
	return client
}

const Megabyte = 1 << 20

// LongTransactions lets transactions be open for an hour.
var LongTransactions = kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "3600000"})

// Other starts a transaction of another program. It writes a record and stays open
// until its timeout.
func (b *Rig) Other(id, topic string, timeout time.Duration) *kgo.Client {
	b.Helper()
	client, err := kgo.NewClient(append(b.Reach(), kgo.TransactionalID(id), kgo.TransactionTimeout(timeout), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	Must(b.T, err)
	Must(b.T, client.BeginTransaction())
	Must(b.T, client.ProduceSync(b.Context(), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr())
	return client
}

// Forget makes coordinators report the transaction of a producer in another state, or
// not at all.
func (b *Rig) Forget(producer *kgo.Client, state string) {
	b.Helper()
	id, _, err := producer.ProducerID(b.Context())
	Must(b.T, err)
	b.Cluster.ControlKey(int16(kmsg.ListTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		answer := req.ResponseKind().(*kmsg.ListTransactionsResponse)
		if state != "" {
			answer.TransactionStates = []kmsg.ListTransactionsResponseTransactionState{{TransactionalID: "other", ProducerID: id, TransactionState: state}}
		}
		return answer, nil, true
	})
}

// Lag returns the last reported lag of the standby, or -1.
func (e *Events) Lag() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.standby
}

// Restored returns how many keys a program read when it was assigned partitions.
func (e *Events) Restored(t *testing.T) (keys int) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	said := false
	for _, line := range e.Log {
		if m := upToDate.FindStringSubmatch(line); m != nil {
			n, err := strconv.Atoi(m[1])
			Must(t, err)
			keys, said = keys+n, true
		}
	}
	if !said {
		t.Error("nothing was brought up to date")
	}
	return keys
}

var upToDate = regexp.MustCompile(`up to date, (\d+) keys`)

// Lag returns the sum of the lags that a source or transactor reports, and the number of
// partitions.
func (b *Rig) Lag(of interface {
	Lag(ctx context.Context) ([]pipeline.Lag, error)
}) (messages int64, partitions int) {
	b.Helper()
	list, err := of.Lag(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range list {
		if l.Source != "in" || l.Bytes != pipeline.UnknownLag {
			b.Errorf("%+v", l)
		}
		messages += l.Messages
	}
	return messages, len(list)
}

// Quick returns client options that lead to brokers and have short waits.
func Quick(addrs ...string) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(addrs...), kgo.DisableClientMetrics(), kgo.MetadataMinAge(50 * time.Millisecond), kgo.FetchMaxWait(50 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}
}

// Item returns a pipeline item with a key and a body.
func Item(key, body string) *pipeline.Item {
	it := &pipeline.Item{Partition: pipeline.NewPartition("partition"), Attempt: 1, Token: 7}
	it.Call.Key = semel.Key{Scope: "s", ID: key}
	it.Message.RecordKey, it.Message.Body = []byte(key), []byte(body)
	return it
}

// halfBalancer leaves a group as it is after the first half of a cooperative rebalance:
// the last of four partitions has no owner. It balances normally once over is set.
type lostHalf struct {
	kgo.GroupBalancer
	over *atomic.Bool
}

func (h lostHalf) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	if h.over.Load() {
		return h.GroupBalancer.MemberBalancer(members)
	}
	b, err := kgo.NewConsumerBalancer(h, members)
	return b, b.MemberTopics(), err
}

func (lostHalf) Balance(b *kgo.ConsumerBalancer, _ map[string]int32) kgo.IntoSyncAssignment {
	plan := b.NewPlan()
	b.EachMember(func(m *kmsg.JoinGroupResponseMember, _ *kmsg.ConsumerMemberMetadata) {
		if *m.InstanceID == "leader" {
			plan.AddPartitions(m, "in", []int32{0, 1})
		} else {
			plan.AddPartition(m, "in", 2)
		}
	})
	return plan
}

// LostHalf leaves a group in which a partition has no owner. Its members are a leader,
// which keeps running, and a static member, which has ended.
func (b *Rig) LostHalf(group, instance string, whole func() bool) {
	b.Helper()
	balancer := lostHalf{kgo.CooperativeStickyBalancer(), &atomic.Bool{}}
	join := func(instance string) *kgo.Client {
		given := make(chan struct{}, 10)
		client, err := kgo.NewClient(append(b.Reach(),
			kgo.ConsumerGroup(group), kgo.ConsumeTopics("in"), kgo.InstanceID(instance), kgo.Balancers(balancer),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
				if len(parts) > 0 {
					given <- struct{}{}
				}
			}))...)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(client.Close)
		<-given
		return client
	}
	join("leader")
	join(instance).Close() // a static member does not leave
	balancer.over.Store(true)
	if !Within(time.Minute, func() bool { return !whole() }) { // once the group is stable
		b.Fatal("all partitions have an owner")
	}
}

// Hide answers requests for the settings of a topic with an error, a number of times;
// -1 is always.
func (b *Rig) Hide(topic string, err *kerr.Error, times int) {
	b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: topic, Err: err, Count: times})
}

// Found returns findings as lines: severity, subject, finding.
func Found(findings []doctor.Finding) (lines []string) {
	for _, f := range findings {
		if (f.Severity == doctor.Fine) != (f.Cost == "" && f.Remedy == "") && f.Severity != doctor.Notice {
			lines = append(lines, "half a finding: "+f.Subject)
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", f.Severity, f.Subject, f.Found))
	}
	return lines
}

// Has checks that a line starts with each of wants.
func Has(t testing.TB, lines []string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("nothing says %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "half") {
			t.Error(line)
		}
	}
}

// KeysOf returns the keys of records in the order in which they were written to
// their partitions.
func KeysOf(records []*kgo.Record) []string {
	var keys []string
	for _, r := range records {
		keys = append(keys, string(r.Key))
	}
	slices.Sort(keys)
	return keys
}

// RecordKey returns the rule by which a record's key is its id.
func RecordKey(tb testing.TB) *key.Rule {
	tb.Helper()
	rule, err := key.ParseRule("record-key")
	if err != nil {
		tb.Fatal(err)
	}
	return rule
}

// BytesPool is a pool for decompressed bytes, which no client may have whose records are recycled.
type BytesPool struct{}

// GetDecompressBytes implements kgo.PoolDecompressBytes.
func (BytesPool) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte { return nil }

// PutDecompressBytes implements kgo.PoolDecompressBytes.
func (BytesPool) PutDecompressBytes([]byte) {}

// NewSeed returns a seed that is printed, or the one in SEMEL_SEED.
func NewSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		Must(t, err)
	}
	t.Logf("SEMEL_SEED=%d", seed)
	return seed
}
