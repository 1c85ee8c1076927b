package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// copier is one member of the first stage's group. It keeps no state: what is
// copied and committed is with the brokers, and after any doubt it begins there
// anew. One goroutine runs it.
type copier struct {
	t    *Transactor
	name string
	to   string // the topic between the stages

	client *kgo.GroupTransactSession
	cut    context.CancelFunc
	limits limits // that the client has
	tooBig int    // transactions in a row that brokers refused for a size
	// lost: a partition is gone, so what is open cannot commit.
	lost atomic.Bool

	reader    *key.Reader
	message   semel.Message
	id        []byte
	partition kgo.TopicPartitioner
	records   int
	bytes     int64
	asides    asides // what was not copied because it is too large
	// askedLimits: in the open transaction the topics were asked what they take by now.
	askedLimits bool
	promise     func(*kgo.Record, error)
	failed      atomic.Pointer[error]
}

func newCopier(t *Transactor, number int) *copier {
	c := &copier{t: t, name: repartitionSuffix[1:] + "-" + strconv.Itoa(number), to: t.opts.Repartition.Topic}
	c.reader = t.opts.Key.Reader(nil)
	c.partition = kgo.StickyKeyPartitioner(nil).ForTopic(c.to)
	c.promise = func(r *kgo.Record, err error) {
		if err != nil {
			err = fmt.Errorf("write %s/%d: %w", r.Topic, r.Partition, err)
			c.failed.CompareAndSwap(nil, &err)
		}
	}
	return c
}

// run works until ctx ends or nothing helps.
func (c *copier) run(ctx context.Context) error { return c.t.persist(ctx, c.name, c.live) }

// live runs one client from its start to its end.
func (c *copier) live(ctx context.Context) (err error) {
	last, cancel := lasting(ctx, c.t.opts.Shutdown)
	defer cancel()
	c.lost.Store(false)
	defer c.releaseAll()
	given := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { c.hold(partitionsOf(topics)) }
	gone := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		if taken := partitionsOf(topics); len(taken) > 0 { // a cooperative rebalance begins with none
			c.release(taken)
			c.lost.Store(true)
		}
	}
	c.limits = *c.t.limits.Load()
	more := append(c.t.opts.Reset.options(), kgo.ConsumeTopics(c.t.opts.Inputs...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytesFn(c.limits.client),
		kgo.OnPartitionsAssigned(given), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone))
	c.client, c.cut, err = c.t.join(ctx, c.t.opts.copyGroup(), c.name, more)
	if c.client != nil {
		defer closeWithin(leaveTime, c.client, c.cut)
	}
	if err == nil {
		err = c.loop(ctx, last)
	}
	if c.t.replaced(ctx, c.client, c.t.opts.copyGroup(), c.name, err) {
		return fmt.Errorf("kafkaio: %w: %w", ErrFenced, err)
	}
	return err
}

// hold notes partitions as those that this member copies, beside what it has.
func (c *copier) hold(list []partitionID) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for _, id := range list {
		c.t.copying[id] = c
	}
}

// release is the reverse of hold.
func (c *copier) release(list []partitionID) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	maps.DeleteFunc(c.t.copying, func(id partitionID, by *copier) bool { return by == c && slices.Contains(list, id) })
}

func (c *copier) releaseAll() {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	maps.DeleteFunc(c.t.copying, func(_ partitionID, by *copier) bool { return by == c })
}

// loop copies until ctx ends or the client is of no more use.
func (c *copier) loop(ctx, last context.Context) error {
	for ctx.Err() == nil {
		fetches := c.poll(ctx, time.Second)
		if c.lost.Load() {
			if err := c.rewind(last); err != nil {
				return err
			}
			continue
		}
		if err := fetchError(fetches); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 {
			if joined(c.client) {
				c.t.health.works(c.name)
			}
			continue
		}
		if err := c.transact(ctx, last, fetches); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) poll(ctx context.Context, most time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return c.client.PollRecords(ctx, max(min(10_000, c.t.opts.MaxRecords-c.records), 1))
}

// rewind aborts what is open and gives back what was read.
func (c *copier) rewind(last context.Context) error {
	c.lost.Store(false)
	if _, err := c.client.End(last, kgo.TryAbort); err != nil {
		return fmt.Errorf("kafkaio: rewind: %w", err)
	}
	c.records = 0
	return nil
}

// transact copies what was read and what comes until the transaction is due. After
// an error it is not known what the brokers have, or nothing was copied.
func (c *copier) transact(ctx, last context.Context, fetches kgo.Fetches) error {
	o := &c.t.opts
	c.records, c.bytes, c.askedLimits = 0, 0, false
	c.asides.reset()
	c.failed.Store(nil)
	began := time.Now()
	if err := c.client.Begin(); err != nil {
		return fmt.Errorf("kafkaio: begin: %w", err)
	}
	for {
		if err := c.copy(last, fetches); err != nil {
			c.rewind(last)
			return err
		}
		left := o.Interval - time.Since(began)
		if left <= 0 || c.records >= o.MaxRecords || c.bytes >= o.MaxBytes || ctx.Err() != nil || c.failed.Load() != nil {
			break
		}
		fetches = c.poll(ctx, left)
		if c.lost.Load() {
			return c.rewind(last)
		}
		if err := fetchError(fetches); err != nil {
			c.rewind(last)
			return err
		}
	}
	if err := c.client.Client().Flush(last); err != nil {
		return fmt.Errorf("kafkaio: flush: %w", err)
	}
	if failed := c.failed.Load(); failed != nil {
		c.rewind(last)
		if err := c.t.refusedSize(last, c.limits, &c.tooBig, *failed); err != nil {
			return err
		}
		return fmt.Errorf("kafkaio: copy: %w", *failed)
	}
	if c.lost.Load() {
		return c.rewind(last)
	}
	committed, err := c.client.End(last, kgo.TryCommit)
	if err == nil && !committed {
		err = errAgain // it may have committed, though the client says no
	}
	if err != nil {
		return fmt.Errorf("kafkaio: commit copies: %w", err)
	}
	c.records, c.tooBig = 0, 0
	c.t.health.works(c.name)
	c.asides.report(c.t)
	return nil
}

// copy writes copies of records. What is too large for a copy has failed as what
// is too large for the output.
func (c *copier) copy(ctx context.Context, fetches kgo.Fetches) error {
	now := time.UnixMilli(c.t.now())
	for r := range fetches.RecordsAll() {
		c.records++
		c.bytes += int64(len(r.Key) + len(r.Value))
		id := c.identify(r)
		from := *r
		wrap(r, c.to, c.place(r, id), id, now)
		out, err := r, c.t.raised(ctx, c.limits, &c.askedLimits, c.limits.check(c.to, r))
		if errors.Is(err, errAgain) {
			return err
		}
		if err != nil {
			if out, err = c.instead(&from, id, err); err != nil {
				return err
			}
		}
		if out != nil {
			c.client.Produce(ctx, out, c.promise)
		}
	}
	return nil
}

// instead returns what is written in place of a copy, which may be nothing.
func (c *copier) instead(r *kgo.Record, id []byte, cause error) (*kgo.Record, error) {
	var k semel.Key
	if id != nil {
		k = semel.Key{Scope: c.t.opts.Scope, ID: string(id)}
	}
	switch c.t.opts.Failure.Then {
	case pipeline.Stop:
		return nil, toldToStop(r, pipeline.ReasonPermanent, cause)
	case pipeline.Drop:
		c.asides.add(pipeline.EventDropped, pipeline.ReasonPermanent, itemOf(r, k, 1, cause))
		return nil, nil
	}
	out, err := c.t.opts.park(r, c.limits, pipeline.ReasonPermanent, 1, cause)
	if err == nil {
		c.asides.add(pipeline.EventParked, pipeline.ReasonPermanent, itemOf(r, k, 1, cause))
	}
	return out, err
}

// place returns the partition for a record. It goes by the number of partitions
// that the topic had at the start: those that are added later would separate
// copies of a key.
func (c *copier) place(r *kgo.Record, id []byte) int32 {
	by := kgo.Record{Key: id}
	if id == nil {
		by.Key = r.Key // what becomes of it is decided later, in this order
	}
	if by.Key == nil {
		return r.Partition % c.t.copyPartitions
	}
	return int32(c.partition.Partition(&by, int(c.t.copyPartitions)))
}

// identify returns the id by which a record will be decided, or nil.
func (c *copier) identify(r *kgo.Record) []byte {
	fill(&c.message, r)
	var err error
	c.id, err = c.reader.AppendID(c.id[:0], &c.message)
	if err == nil && len(c.id) > 0 && len(c.id) <= semel.MaxKeyBytes {
		return c.id
	}
	if c.t.opts.OnMissing == pipeline.MissingHash {
		return contentID(c.id[:0], r.Value)
	}
	return nil
}
