package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// SinkOptions are the options of OpenSink. Client and one of Topic and Route are required.
type SinkOptions struct {
	// Name is the pipeline's name, sent as a header.
	Name string
	// Client configures how to reach the brokers, and compression. It cannot change the
	// settings that delivery needs.
	Client []kgo.Opt
	Topic  string
	// Route chooses the topic of each message. If it does not allow the topic, or the
	// topic does not exist or may not be written, only that message fails.
	Route *pipeline.Route
	// SamePartition writes to the partition with the number of the partition that was
	// read. Otherwise the hash of the record key chooses, as in Kafka's own client.
	SamePartition bool
	// NoKeyHeaders leaves out the headers for key, scope, pipeline, attempt, token,
	// first-seen time and origin.
	NoKeyHeaders bool
}

// Sink produces to a topic, or to the topic that each message names, idempotently and with
// acks=all. A delivered record is on all in-sync replicas.
type Sink struct {
	opts   SinkOptions
	to     atomic.Pointer[outlet] // replaced while lone is locked
	name   []byte                 // the pipeline's
	makers makers

	// lone is locked by a Deliver that needs a batch for one record, and read-locked by
	// the others.
	lone sync.RWMutex
}

// outlet is a client that produces to topics, with their size limits.
type outlet struct {
	client *kgo.Client

	mu     sync.Mutex                // guards the field below
	limits map[string]cluster.Limits // the size limits of topics that exist
}

// of returns the limits of a topic, or nil if it does not exist, as far as is known.
func (o *outlet) of(topic string) cluster.Limits {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.limits[topic]
}

// learn notes the limits of a topic, or nil if it does not exist.
func (o *outlet) learn(topic string, l cluster.Limits) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limits[topic] = l
}

var (
	_ pipeline.Sink  = (*Sink)(nil)
	_ doctor.Readier = (*Sink)(nil)
)

// OpenSink connects. It blocks until a broker has answered.
func OpenSink(ctx context.Context, opts *SinkOptions) (*Sink, error) {
	s := &Sink{}
	if opts != nil {
		s.opts = *opts
	}
	if len(s.opts.Client) == 0 || (s.opts.Topic == "") == (s.opts.Route == nil) {
		return nil, fmt.Errorf("kafka: SinkOptions: Client and one of Topic and Route are required: %w", semel.ErrInvalidRequest)
	}
	s.name = []byte(s.opts.Name)
	to, err := producer(ctx, s.opts.Client, s.opts.Topic, s.opts.SamePartition)
	if err != nil {
		return nil, err
	}
	s.to.Store(to)
	return s, nil
}

// producer returns a client that produces safely. It knows the limits of a topic, if one
// is named and exists. The client retries a record until it is written or can never be
// written. An idempotent producer must not skip a record.
func producer(ctx context.Context, opts []kgo.Opt, topic string, samePartition bool) (*outlet, error) {
	to := &outlet{limits: map[string]cluster.Limits{}}
	partitioner := kgo.StickyKeyPartitioner(nil) // murmur2, as Kafka's own client
	if samePartition {
		partitioner = kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(r *kgo.Record, n int) int { return int(r.Partition) % n }
		})
	}
	all := append([]kgo.Opt{}, opts...)
	all = append(all, kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(partitioner), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(50_000),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return to.of(topic).Client(topic) })) // called for the first record
	client, err := cluster.Dial(ctx, all...)
	if err != nil {
		return nil, err
	}
	to.client = client
	if topic == "" {
		return to, nil
	}
	l, err := cluster.ReadLimits(ctx, kadm.NewClient(client), topic)
	switch {
	case err == nil:
		to.learn(topic, l)
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		client.Close()
		return nil, err
	}
	return to, nil
}

// topic returns the topic of an item. If messages name their topics, the topic
// exists: for a missing topic, a client would hold up all messages of a delivery.
// failed has the errors of topics that the delivery has asked for: it asks once for each.
func (s *Sink) topic(ctx context.Context, to *outlet, failed map[string]error, it *pipeline.Item) (string, error) {
	if s.opts.Route == nil {
		return s.opts.Topic, nil
	}
	topic, err := s.opts.Route.Target(&it.Message)
	if err != nil {
		return "", &ownError{fmt.Errorf("kafka: %w", err)}
	}
	if to.of(topic) != nil {
		return topic, nil
	}
	if err := failed[topic]; err != nil {
		return "", err
	}
	err = cluster.HaveTopics(ctx, to.client, topic)
	if err == nil {
		var l cluster.Limits
		if l, err = cluster.ReadLimits(ctx, kadm.NewClient(to.client), topic); err == nil {
			to.learn(topic, l)
			return topic, nil
		}
	}
	if isOfTopic(err) {
		err = &ownError{err}
	} else {
		err = pipeline.Unavailable(err, 0)
	}
	failed[topic] = err
	return "", err
}

// ownError is the failure of one message because of the topic that it names.
type ownError struct{ error }

// isOfTopic reports whether an error is that of one topic, to which nothing was written.
func isOfTopic(err error) bool {
	_, missing := MissingTopic(err)
	return missing || cluster.IsAny(err, kerr.UnknownTopicOrPartition, kerr.TopicAuthorizationFailed, kerr.InvalidTopicException)
}

// Traits implements pipeline.Sink.
func (s *Sink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Batch: 2000, Parallel: 4, Ordered: true}
}

// Ready implements doctor.Readier. [MissingTopic] tells whether the topic does not exist.
// With a Route, it asks for no topic: one that is missing concerns its messages alone.
func (s *Sink) Ready(ctx context.Context) error {
	if s.opts.Route != nil {
		return cluster.Reach(ctx, s.to.Load().client)
	}
	return cluster.HaveTopics(ctx, s.to.Load().client, s.opts.Topic)
}

// Close implements pipeline.Sink.
func (s *Sink) Close(context.Context) error {
	s.to.Load().client.Close()
	return nil
}

// Deliver implements pipeline.Sink. It blocks while no broker accepts records.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.lone.RLock()
	errs := s.produce(ctx, items)
	s.lone.RUnlock()
	for i, it := range items {
		it.Err = s.produceError(errs[i], it)
	}
	failed, asked := map[uint64]bool{}, false
	for i, it := range items {
		switch {
		case it.Err == nil:
			continue
		case failed[it.Group]:
			it.Err = pipeline.ErrBehind
			continue
		case cluster.IsTooLarge(it.Err):
			it.Err = s.again(ctx, items[i:i+1], &asked)
		}
		failed[it.Group] = failed[it.Group] || it.Err != nil
	}
}

// again produces one item that was refused for its size, in a batch of its own. Brokers
// refuse a whole batch, and the client then fails all its records for the partition,
// even those of other deliveries. If the record is too large, the error names the
// limit. The first such record of a delivery asks for the topic's limit again, because
// it may have been raised.
func (s *Sink) again(ctx context.Context, alone []*pipeline.Item, asked *bool) error {
	to := s.to.Load()
	topic, err := s.topic(ctx, to, map[string]error{}, alone[0])
	if err != nil {
		return s.produceError(err, alone[0])
	}
	l := to.of(topic)
	changed := l == nil
	if !changed {
		if err := s.check(to, topic, alone[0]); err != nil {
			if *asked {
				return err
			}
			*asked = true
			now, failed := cluster.ReadLimits(ctx, kadm.NewClient(to.client), topic)
			if failed != nil {
				return pipeline.Unavailable(fmt.Errorf("kafka: %w", failed), 0) // nothing was written
			}
			if changed = !maps.Equal(now, l); !changed {
				return err
			}
		}
	}
	s.lone.Lock()
	defer s.lone.Unlock()
	if changed {
		if s.to.Load() == to { // no other delivery reopened it
			if err := s.reopen(ctx, topic); err != nil {
				return pipeline.Unavailable(fmt.Errorf("kafka: %w", err), 0) // nothing was written
			}
		}
		if err := s.check(s.to.Load(), topic, alone[0]); err != nil {
			return err
		}
	}
	return s.produceError(s.produce(ctx, alone)[0], alone[0])
}

// check returns a permanent error if an item is too large for the topic.
func (s *Sink) check(to *outlet, topic string, it *pipeline.Item) error {
	if err := to.of(topic).Check(topic, (&maker{sink: s}).record(topic, it)); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	return nil
}

// reopen reads a topic's limit again, because the topic did not exist or had another
// limit. A client keeps its first limit, so a new client replaces it. The caller holds
// lone.
func (s *Sink) reopen(ctx context.Context, topic string) error {
	to, err := producer(ctx, s.opts.Client, topic, s.opts.SamePartition)
	if err != nil {
		return err
	}
	if to.of(topic) == nil {
		to.client.Close()
		return fmt.Errorf("settings of topic %s, to know whether it takes a record: %w", topic, kerr.UnknownTopicOrPartition)
	}
	old := s.to.Swap(to).client
	_ = old.Flush(ctx) // records of deliveries that ended with an unknown outcome
	old.Close()
	return nil
}

// delivery is one call of produce.
type delivery struct {
	to   *outlet
	done chan struct{}

	mu    sync.Mutex // guards the fields below
	left  int
	errs  []error
	ended bool            // produce has returned
	held  map[uint64]bool // groups with a record that must be retried

	holds atomic.Bool // held is not empty
}

// hold keeps later records of a group from being written before a record that must be
// retried.
func (d *delivery) hold(group uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.held == nil {
		d.held = map[uint64]bool{}
	}
	d.held[group] = true
	d.holds.Store(true)
}

func (d *delivery) isHeld(group uint64) bool {
	if !d.holds.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[group]
}

// answer notes the result of a record.
func (d *delivery) answer(i int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.errs[i] = err
	if d.left--; d.left == 0 {
		close(d.done)
	}
}

// promise is the callback of a record. It is reused, so its method is bound once.
type promise struct {
	d     *delivery
	i     int
	group uint64
	keep  func(*kgo.Record, error)
}

func (p *promise) kept(r *kgo.Record, err error) {
	if cluster.IsTooLarge(err) && p.d.fits(r) {
		p.d.hold(p.group)
	}
	p.d.answer(p.i, err)
}

// fits reports whether the topic accepts a record, as far as its limit is known.
func (d *delivery) fits(r *kgo.Record) bool {
	l := d.to.of(r.Topic)
	return l == nil || l.Check(r.Topic, r) == nil
}

// produce writes the records of items and returns the error of each. When ctx ends, it
// waits for records in flight for lastAnswers at most. If a record is too large, or has no topic, no more
// records of its group are started: their error is pipeline.ErrBehind. If the brokers refuse
// a record for its size although it fits, those that were started before may be written
// ahead of it.
func (s *Sink) produce(ctx context.Context, items []*pipeline.Item) []error {
	m, to := s.maker(items), s.to.Load()
	d := &delivery{to: to, done: make(chan struct{}), left: len(items), errs: make([]error, len(items))}
	for i := range d.errs {
		d.errs[i] = errUnanswered
	}
	failed := map[string]error{}
	for i, it := range items {
		group := it.Group
		if d.isHeld(group) {
			d.answer(i, pipeline.ErrBehind)
			continue
		}
		topic, err := s.topic(ctx, to, failed, it)
		if err != nil {
			d.hold(group)
			d.answer(i, err)
			continue
		}
		r := m.record(topic, it)
		if !d.fits(r) {
			d.hold(group)
			d.answer(i, kerr.MessageTooLarge)
			continue
		}
		to.client.Produce(ctx, r, m.promise(d, i, group))
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		// The client drops what it has not sent. It still reads the bytes of the rest, which are
		// the pipeline's again when this returns.
		soon := time.NewTimer(lastAnswers)
		defer soon.Stop()
		select {
		case <-d.done:
		case <-soon.C:
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.left == 0 {
		s.free(m)
	}
	return d.errs
}

// lastAnswers is how long a delivery whose context has ended waits for the answers to records that
// are on their way.
const lastAnswers = time.Second

var errUnanswered = errors.New("the brokers had not answered yet")

// produceError classifies an error of the producer for a message.
func (s *Sink) produceError(err error, it *pipeline.Item) error {
	switch err := err.(type) { // errors of topic
	case *ownError:
		return err.error
	case *pipeline.UnavailableError:
		return err
	}
	switch {
	case err == nil, errors.Is(err, pipeline.ErrBehind):
		return err
	case s.opts.Route != nil && isOfTopic(err): // its own failure: other topics take theirs
		topic, _ := s.opts.Route.Target(&it.Message) // it had one
		s.to.Load().learn(topic, nil)
		return fmt.Errorf("kafka: topic %s: %w", topic, err)
	case cluster.IsTooLarge(err), errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp):
		return semel.Permanent(fmt.Errorf("kafka: %w", err))
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return pipeline.Unavailable(fmt.Errorf("kafka: %w: %w", &cluster.MissingTopicError{Topic: s.opts.Topic}, err), 0)
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.InvalidTopicException):
		return pipeline.Unavailable(fmt.Errorf("kafka: %w", err), 0)
	}
	err = fmt.Errorf("kafka: %w: %w", semel.ErrOutcomeUnknown, err)
	if cluster.IsAny(err, errUnanswered, context.Canceled, context.DeadlineExceeded, kgo.ErrClientClosed) {
		return err // the delivery was given up
	}
	return pipeline.Unavailable(err, 0) // the brokers fail, or refuse the user
}

// maker makes the records of one delivery in a few allocations. It is reused when all
// of them are answered.
type maker struct {
	sink     *Sink
	records  []kgo.Record
	promises []*promise // of the records, followed by those of earlier deliveries
	headers  []kgo.RecordHeader
	text     []byte
	scope    string // its bytes are kept for the next record
	scoped   []byte
}

// makers are idle makers: as many as there were concurrent deliveries.
type makers struct {
	mu   sync.Mutex
	idle []*maker
}

func (l *makers) take() *maker {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return &maker{}
	}
	m := l.idle[last]
	l.idle = l.idle[:last]
	return m
}

func (l *makers) put(m *maker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, m)
}

// ownHeaders is how many headers Semel adds to a record at most, and ownText about how
// much text they have besides the id.
const ownHeaders, ownText = 8, 64

// maker returns a maker with memory for the records of items.
func (s *Sink) maker(items []*pipeline.Item) *maker {
	headers, text := 0, 0
	for _, it := range items {
		headers += len(it.Message.Headers) + ownHeaders
		text += len(it.Call.Key.ID) + ownText
	}
	m := s.makers.take()
	m.sink = s
	m.records = slices.Grow(m.records, len(items))
	m.headers = slices.Grow(m.headers, headers)
	m.text = slices.Grow(m.text, text)
	return m
}

// free recycles a maker whose records are all answered. Very large memory is released.
func (s *Sink) free(m *maker) {
	clear(m.records)
	clear(m.headers)
	for _, p := range m.promises {
		p.d = nil
	}
	m.records, m.promises, m.headers, m.text, m.scope, m.scoped = m.records[:0], m.promises[:0], m.headers[:0], m.text[:0], "", nil
	if cap(m.headers) <= 64<<10 && cap(m.text) <= 1<<20 {
		s.makers.put(m)
	}
}

// promise returns the callback of record i of a delivery.
func (m *maker) promise(d *delivery, i int, group uint64) func(*kgo.Record, error) {
	n := len(m.promises)
	if n == cap(m.promises) {
		m.promises = slices.Grow(m.promises, 1)
	}
	m.promises = m.promises[:n+1]
	p := m.promises[n]
	if p == nil {
		p = &promise{}
		p.keep = p.kept
		m.promises[n] = p
	}
	p.d, p.i, p.group = d, i, group
	return p.keep
}

// record makes the record of an item for a topic. They share their bytes.
func (m *maker) record(topic string, it *pipeline.Item) *kgo.Record {
	from := len(m.headers)
	for i := range it.Message.Headers {
		name := it.Message.Headers[i].Name
		if header.IsKey(name) || name == pipeline.RedriveHeader || it.Redrive > 0 && record.IsParking(name) {
			continue
		}
		m.header(name, it.Message.Headers[i].Value)
	}
	if !m.sink.opts.NoKeyHeaders {
		m.nameKey(it)
	}
	if it.Redrive > 0 {
		m.number(pipeline.RedriveHeader, uint64(it.Redrive))
	}
	m.records = append(m.records, kgo.Record{
		Topic: topic, Key: it.Message.RecordKey, Value: it.Message.Body,
		Headers:   m.headers[from:len(m.headers):len(m.headers)],
		Timestamp: it.Message.Time, Partition: it.Message.Origin.Partition,
	})
	return &m.records[len(m.records)-1]
}

// nameKey adds the headers that name the key of an item, its attempt and its first
// place.
func (m *maker) nameKey(it *pipeline.Item) {
	key := it.Call.Key
	name, id := header.OfKey(key.ID)
	at := len(m.text)
	m.text = append(m.text, id...)
	m.header(name, m.text[at:len(m.text):len(m.text)])
	if key.Scope != m.sink.opts.Name { // otherwise the next header has it
		if key.Scope != m.scope || m.scoped == nil {
			m.scope, m.scoped = key.Scope, []byte(key.Scope)
		}
		m.header(header.Scope, m.scoped)
	}
	if len(m.sink.name) > 0 {
		m.header(header.Pipeline, m.sink.name)
	}
	if it.Attempt > 1 {
		m.number(header.Attempt, uint64(it.Attempt))
	}
	if it.Token > 0 {
		m.number(header.Token, uint64(it.Token))
	}
	if _, later := it.Message.Header(header.Origin); !later && !it.Seen.IsZero() {
		at := len(m.text)
		m.text = header.AppendTime(m.text, it.Seen)
		m.header(header.FirstSeen, m.text[at:len(m.text):len(m.text)])
		at = len(m.text)
		m.text = it.AppendPlace(m.text)
		m.header(header.Origin, m.text[at:len(m.text):len(m.text)])
	}
}

func (m *maker) header(name string, value []byte) {
	m.headers = append(m.headers, kgo.RecordHeader{Key: name, Value: value})
}

func (m *maker) number(name string, n uint64) {
	at := len(m.text)
	m.text = strconv.AppendUint(m.text, n, 10)
	m.header(name, m.text[at:len(m.text):len(m.text)])
}
