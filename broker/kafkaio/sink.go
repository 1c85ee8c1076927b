package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// SinkOptions are the options of OpenSink. Client and Topic are required.
type SinkOptions struct {
	// Name is the pipeline's name, sent as a header.
	Name string
	// Client is how to reach the brokers, and compression. What delivery rests on
	// is set after it.
	Client []kgo.Opt
	Topic  string
	// SamePartition writes to the partition with the number of the one that was
	// read. Otherwise the record key's hash chooses, as in Kafka's own client.
	SamePartition bool
	// NoKeyHeaders leaves out the headers that name key, scope, pipeline, attempt and
	// token: the records then say no more than those that were read.
	NoKeyHeaders bool
}

// Sink produces to a topic: idempotent and with acks=all. What it reports as
// delivered is on all replicas that are in sync.
type Sink struct {
	opts   SinkOptions
	to     atomic.Pointer[outlet] // replaced with lone held
	name   []byte                 // the pipeline's
	makers makers

	// lone is held by a Deliver that must have a batch for one record, and shared
	// by the others.
	lone sync.RWMutex
}

// outlet is a client that produces to a topic, and what that takes.
type outlet struct {
	client *kgo.Client
	limits limits
}

var (
	_ pipeline.Sink = (*Sink)(nil)
	_ semel.Readier = (*Sink)(nil)
)

// OpenSink connects. It blocks until a broker has answered.
func OpenSink(ctx context.Context, opts *SinkOptions) (*Sink, error) {
	s := &Sink{}
	if opts != nil {
		s.opts = *opts
	}
	if len(s.opts.Client) == 0 || s.opts.Topic == "" {
		return nil, fmt.Errorf("kafkaio: SinkOptions: Client and Topic are wanted: %w", semel.ErrInvalidRequest)
	}
	s.name = []byte(s.opts.Name)
	client, l, err := producer(ctx, s.opts.Client, s.opts.Topic, s.opts.SamePartition)
	if err != nil {
		return nil, err
	}
	s.to.Store(&outlet{client, l})
	return s, nil
}

// producer returns a client that produces safely to a topic, and what that takes,
// which is nil if there is no such topic yet. A record is tried until it is there or
// can never be: an idempotent producer that gives one up must not go on to the next.
func producer(ctx context.Context, opts []kgo.Opt, topic string, samePartition bool) (*kgo.Client, limits, error) {
	l := limits{}
	partitioner := kgo.StickyKeyPartitioner(nil) // murmur2, as Kafka's own client
	if samePartition {
		partitioner = kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
			return func(r *kgo.Record, n int) int { return int(r.Partition) % n }
		})
	}
	all := append([]kgo.Opt{}, opts...)
	all = append(all, kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordPartitioner(partitioner), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(50_000),
		kgo.ProducerBatchMaxBytesFn(func(topic string) int32 { return l.client(topic) })) // asked when the first record comes
	client, err := kgo.NewClient(all...)
	if err != nil {
		return nil, nil, fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	if err = reach(ctx, client); err == nil {
		l, err = readLimits(ctx, kadm.NewClient(client), topic)
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		l, err = nil, nil
	}
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, l, nil
}

// Traits implements pipeline.Sink.
func (s *Sink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Batch: 2000, Parallel: 4, Ordered: true}
}

// Ready implements semel.Readier.
func (s *Sink) Ready(ctx context.Context) error {
	if err := s.to.Load().client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	return nil
}

// Close implements pipeline.Sink.
func (s *Sink) Close(context.Context) error {
	s.to.Load().client.Close()
	return nil
}

// Deliver implements pipeline.Sink. While no broker takes records it blocks.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.lone.RLock()
	errs := s.produce(ctx, items)
	s.lone.RUnlock()
	for i, it := range items {
		it.Err = produceError(errs[i])
	}
	failed, asked := map[uint64]bool{}, false
	for i, it := range items {
		switch {
		case it.Err == nil:
			continue
		case failed[it.Group]:
			it.Err = pipeline.ErrBehind
			continue
		case isTooLarge(it.Err):
			it.Err = s.again(ctx, items[i:i+1], &asked)
		}
		if _, permanent := errors.AsType[*semel.PermanentError](it.Err); it.Err != nil && !permanent {
			failed[it.Group] = true
		}
	}
}

// again produces a record that was refused for its size once more, in a batch of
// its own: brokers refuse a whole batch, and the client fails with it all that it
// has for the partition, also of other deliveries. Of one that is too large it says
// how large it may be. The first such record of a delivery has the topic asked again:
// it may take more by now. It takes one item.
func (s *Sink) again(ctx context.Context, alone []*pipeline.Item, asked *bool) error {
	to := s.to.Load()
	changed := to.limits == nil
	if !changed {
		if err := s.check(to, alone[0]); err != nil {
			if *asked {
				return err
			}
			*asked = true
			l, failed := readLimits(ctx, kadm.NewClient(to.client), s.opts.Topic)
			if failed != nil {
				return pipeline.Unavailable(fmt.Errorf("kafka: %w", failed), 0) // nothing was written
			}
			if changed = !maps.Equal(l, to.limits); !changed {
				return err
			}
		}
	}
	s.lone.Lock()
	defer s.lone.Unlock()
	if changed {
		if s.to.Load() == to { // no other delivery was faster
			if err := s.reopen(ctx); err != nil {
				return pipeline.Unavailable(fmt.Errorf("kafka: %w", err), 0) // nothing was written
			}
		}
		if err := s.check(s.to.Load(), alone[0]); err != nil {
			return err
		}
	}
	return produceError(s.produce(ctx, alone)[0])
}

// check says whether the topic takes an item. The error is permanent.
func (s *Sink) check(to *outlet, it *pipeline.Item) error {
	if err := to.limits.check(s.opts.Topic, (&maker{sink: s}).record(it)); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	return nil
}

// reopen reads what the topic takes, which was not there when the sink was opened or
// took something else. A client keeps the limit that it began with, so another takes its place. The
// caller holds lone.
func (s *Sink) reopen(ctx context.Context) error {
	client, l, err := producer(ctx, s.opts.Client, s.opts.Topic, s.opts.SamePartition)
	if err != nil {
		return err
	}
	if l == nil {
		client.Close()
		return fmt.Errorf("settings of topic %s, to know whether it takes a record: %w", s.opts.Topic, kerr.UnknownTopicOrPartition)
	}
	old := s.to.Swap(&outlet{client, l}).client
	_ = old.Flush(ctx) // what deliveries that ended left; they said that its outcome is unknown
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
	ended bool            // nobody waits any more
	held  map[uint64]bool // groups of which a record must be tried again

	holds atomic.Bool // held is not empty
}

// hold keeps what follows in a group from being written before a record that is to
// be tried again.
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

// answer notes what became of a record.
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

// promise is what a client calls when a record is answered. It is used again, for
// which its method is bound once.
type promise struct {
	d     *delivery
	i     int
	group uint64
	keep  func(*kgo.Record, error)
}

func (p *promise) kept(r *kgo.Record, err error) {
	if isTooLarge(err) && p.d.fits(r) {
		p.d.hold(p.group)
	}
	p.d.answer(p.i, err)
}

// fits reports whether the topic takes a record, as far as is known.
func (d *delivery) fits(r *kgo.Record) bool {
	return d.to.limits == nil || d.to.limits.check(r.Topic, r) == nil
}

// produce writes the records of items and returns the error of each. When ctx
// ends it does not wait for those that are on their way. Once a record is known to
// be refused for its size though it fits, no more of its group are begun: their
// error is pipeline.ErrBehind. Those that were begun before may come to stand ahead
// of it.
func (s *Sink) produce(ctx context.Context, items []*pipeline.Item) []error {
	m, to := s.maker(items), s.to.Load()
	d := &delivery{to: to, done: make(chan struct{}), left: len(items), errs: make([]error, len(items))}
	for i := range d.errs {
		d.errs[i] = errUnanswered
	}
	for i, it := range items {
		group := it.Group
		if d.isHeld(group) {
			d.answer(i, pipeline.ErrBehind)
			continue
		}
		to.client.Produce(ctx, m.record(it), m.promise(d, i, group))
	}
	select {
	case <-d.done:
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.left == 0 {
		s.free(m)
	}
	return d.errs
}

var errUnanswered = errors.New("the brokers had not answered yet")

// produceError says what an error of the producer means for a message.
func produceError(err error) error {
	switch {
	case err == nil, errors.Is(err, pipeline.ErrBehind):
		return err
	case isTooLarge(err), errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp):
		return semel.Permanent(fmt.Errorf("kafka: %w", err))
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.InvalidTopicException):
		return pipeline.Unavailable(fmt.Errorf("kafka: %w", err), 0)
	}
	return fmt.Errorf("kafka: %w: %w", semel.ErrOutcomeUnknown, err)
}
