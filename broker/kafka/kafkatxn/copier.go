package kafkatxn

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
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/output"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/pipeline"
)

// copier is one member of the first stage's group. It has no state: after an unknown
// result it restarts from the brokers' offsets. One goroutine runs it.
type copier struct {
	member
	to     string         // the topic between the stages
	limits cluster.Limits // of the client
	// lost says that the group took a partition, so the open transaction cannot commit.
	lost atomic.Bool

	partitioner *repartition.Partitioner
	originals   repartition.Originals
	records     int
	bytes       int64
	budget      budget.Transaction
	// rest is where the records begin that were read and that the open transaction leaves
	// for the next one.
	rest     map[cluster.Partition]kgo.EpochOffset
	deferred output.Deferred // records that cannot be copied
	// askedLimits says that the open transaction has already asked for the topics' limits.
	askedLimits bool
	// times says how far the sources have come with the copies that are committed or in the
	// open transaction, if these decide. told is when it was last written, and news says that it
	// has changed since. reads has the options of a client that needs it.
	sources map[string]int32 // the numbers of their partitions
	times   *watermarks.Times
	told    time.Time
	news    bool
	reads   []kgo.Opt
	promise func(*kgo.Record, error)
	failed  atomic.Pointer[error]
}

func newCopier(of *repartitioned, number int) *copier {
	c := &copier{member: member{t: of.Transactor, group: of.group, name: cluster.RepartitionSuffix[1:] + "-" + strconv.Itoa(number)}, to: of.topic}
	c.partitioner = of.partitioner()
	if of.chain.Times.BySource {
		// The end of a source may be a marker, and windows wait for new partitions.
		c.sources, c.reads = of.sources, []kgo.Opt{kgo.KeepControlRecords(), kgo.MetadataMaxAge(time.Minute)}
	}
	c.budget = of.chain.NewBudget(of.limits.Interval)
	c.promise = func(r *kgo.Record, err error) {
		if err != nil {
			err = cluster.WriteError(r, err)
			c.failed.CompareAndSwap(nil, &err)
		}
		r.Recycle() // if it is one that was read
	}
	return c
}

// run works until ctx ends or it cannot continue.
func (c *copier) run(ctx context.Context) error { return c.persist(ctx, c.live) }

// live runs one client from its start to its end.
func (c *copier) live(ctx context.Context) error {
	defer c.release(func(cluster.Partition) bool { return true })
	defer c.close()
	return c.serve(ctx, c.open, c.loop)
}

func (c *copier) open(ctx context.Context) error {
	c.lost.Store(false)
	c.forget()
	given := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { c.hold(partitionsOf(topics)) }
	gone := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) {
		if taken := partitionsOf(topics); len(taken) > 0 { // a cooperative rebalance starts with an empty assignment
			c.release(func(id cluster.Partition) bool { return slices.Contains(taken, id) })
			c.lost.Store(true)
		}
	}
	c.limits = *c.t.topicLimits.Load()
	more := append(c.t.reset.Options(), kgo.ConsumeTopics(c.t.inputs...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytesFn(c.limits.Client), kgo.WithPools(&record.Pool{}),
		kgo.OnPartitionsAssigned(given), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone))
	return c.join(ctx, append(more, c.reads...))
}

// hold adds partitions to those that this member copies.
func (c *copier) hold(list []cluster.Partition) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	for _, id := range list {
		c.t.copying[id] = c.name
	}
}

// release is the reverse of hold, for some partitions.
func (c *copier) release(some func(cluster.Partition) bool) {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	maps.DeleteFunc(c.t.copying, func(id cluster.Partition, by string) bool { return by == c.name && some(id) })
}

// loop copies until ctx ends or the client is unusable.
func (c *copier) loop(ctx, last context.Context) error {
	calls, cancel := cluster.Lasting(ctx, c.t.timeouts.Shutdown/2) // the rest of the time is for the commit
	defer cancel()
	for ctx.Err() == nil {
		fetches := c.poll(ctx, time.Second)
		if c.lost.Load() {
			if err := c.rewind(last); err != nil {
				return err
			}
			continue
		}
		if err := cluster.FetchError(fetches); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 && !c.tells() {
			if joined(c.client) {
				c.t.health.succeeded(c.name)
				c.waitsFor("", 0)
			}
			continue
		}
		if err := c.transact(ctx, calls, last, fetches); err != nil {
			return err
		}
	}
	return nil
}

// forget resets how far the sources have come: an aborted copy is written again later, maybe
// by another member.
func (c *copier) forget() { c.times, c.news = watermarks.New(c.sources), false }

// noteTime notes the time of a record of a source, unless the time is too far from the clock.
func (c *copier) noteTime(source cluster.Partition, when int64, now time.Time) {
	if _, decides := c.sources[source.Topic]; decides && when <= now.Add(c.t.chain.Times.Ahead).UnixMilli() && c.t.chain.Times.CheckPast(when, now.UnixMilli()) == nil {
		c.news = c.times.See(source, when) || c.news
	}
}

// tellEvery is how often a copier writes progress records.
const tellEvery = time.Second

// tells reports whether progress records are due.
func (c *copier) tells() bool { return c.news && time.Since(c.told) >= tellEvery }

// tell writes a progress record to each partition, after the copies there. It needs no offset in
// its transaction, because it covers only copies that are committed earlier or together.
func (c *copier) tell(ctx context.Context) {
	times, now := c.times.Append(nil), time.UnixMilli(c.t.now())
	for number := range c.t.copyPartitions {
		c.client.Produce(ctx, repartition.Progress(c.to, number, times, now), c.promise)
	}
	c.told, c.news = time.Now(), false
}

func (c *copier) poll(ctx context.Context, most time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return c.client.PollRecords(ctx, c.budget.Room(c.records, c.t.limits.Records))
}

// rewind aborts the open transaction and returns to the committed offsets.
func (c *copier) rewind(last context.Context) error {
	c.lost.Store(false)
	c.forget()
	if _, err := c.client.End(last, kgo.TryAbort); err != nil {
		return fmt.Errorf("kafka: rewind: %w", err)
	}
	c.records = 0
	return nil
}

// transact copies records until the transaction is due. After an error the result is
// unknown, or nothing was copied.
func (c *copier) transact(ctx, calls, last context.Context, fetches kgo.Fetches) error {
	most := &c.t.limits
	c.records, c.bytes, c.askedLimits, c.rest = 0, 0, false, nil
	c.deferred.Reset()
	c.failed.Store(nil)
	c.budget.Begin()
	if err := c.client.Begin(); err != nil {
		return fmt.Errorf("kafka: begin: %w", err)
	}
	for {
		c.waitsFor("the brokers to write copies", c.records+fetches.NumRecords())
		if err := c.copy(ctx, calls, last, fetches); err != nil {
			c.rewind(last)
			return err
		}
		left := c.budget.Left()
		if left <= 0 || c.rest != nil || c.records >= c.budget.Most(most.Records) || c.bytes >= most.Bytes || ctx.Err() != nil || c.failed.Load() != nil {
			break
		}
		fetches = c.poll(ctx, left)
		if c.lost.Load() {
			return c.rewind(last)
		}
		if err := cluster.FetchError(fetches); err != nil {
			c.rewind(last)
			return err
		}
	}
	if c.tells() {
		c.tell(last)
	}
	if err := c.client.Client().Flush(last); err != nil {
		return fmt.Errorf("kafka: flush: %w", err)
	}
	if failed := c.failed.Load(); failed != nil {
		c.rewind(last)
		if err := c.refusedSize(last, c.limits, *failed); err != nil {
			return err
		}
		return fmt.Errorf("kafka: copy: %w", c.t.chain.Overdue(&c.budget, *failed))
	}
	if c.lost.Load() {
		return c.rewind(last)
	}
	c.waitsFor("the commit of a Kafka transaction", c.records)
	committed, err := c.client.End(cluster.Committing(last, nil, c.notes(), c.rest), kgo.TryCommit)
	if err == nil && !committed {
		err = errAgain // it may have committed, even if the client reports otherwise
	}
	if err != nil {
		return fmt.Errorf("kafka: commit copies: %w", c.t.chain.Overdue(&c.budget, err))
	}
	if c.rest != nil {
		cluster.ReadAgain(c.client.Client(), c.rest)
	}
	c.budget.Committed()
	c.t.health.committed(c.records)
	c.records, c.tooBig = 0, 0
	c.t.health.succeeded(c.name)
	c.deferred.Report(c.t.observe)
	return nil
}

// notes returns the notes that are committed with the offsets of the inputs.
func (c *copier) notes() map[cluster.Partition]string {
	notes := map[cluster.Partition]string{}
	for topic, size := range c.t.sources {
		n := marks.Note{Read: c.t.topics[topic], Copied: c.t.topics[c.to]}
		for number := range size {
			notes[cluster.Partition{Topic: topic, Number: number}] = n.String()
		}
	}
	return notes
}

// copy writes copies of records. If the transaction takes too long, it leaves the rest. A
// record that is too large for a copy is treated as too large for the output.
func (c *copier) copy(ctx, calls, last context.Context, fetches kgo.Fetches) error {
	began, before := time.Now(), c.records
	defer func() { c.budget.Paced(c.records-before, time.Since(began)) }()
	now := time.UnixMilli(c.t.now())
	for r := range fetches.RecordsAll() {
		if recycledControl(r) {
			continue
		}
		if c.rest != nil || c.budget.Full(ctx) {
			c.rest = cluster.Leave(c.rest, cluster.Partition{Topic: r.Topic, Number: r.Partition}, r.Offset, r.LeaderEpoch)
			continue
		}
		c.budget.Done()
		c.records++
		c.bytes += int64(len(r.Key) + len(r.Value))
		id, partition, when, stopped := c.partitioner.Choose(calls, r)
		if stopped != nil && calls.Err() != nil {
			return operator.Ended(stopped)
		}
		c.noteTime(cluster.Partition{Topic: r.Topic, Number: r.Partition}, when, now)
		repartition.Wrap(r, c.to, partition, id, now)
		err, restart := c.t.raised(last, c.limits, &c.askedLimits, c.limits.Check(c.to, r))
		if restart != nil {
			return restart
		}
		if _, slow := errors.AsType[budget.SlowError](stopped); slow {
			err = stopped // it is unknown in which window it counts
		}
		if err == nil {
			c.client.Produce(last, r, c.promise)
			continue
		}
		c.originals.Unwrap(r)
		out, err := c.instead(r, id, err)
		if err != nil {
			return err
		}
		r.Recycle() // what is parked is a copy
		if out != nil {
			c.client.Produce(last, out, c.promise)
		}
	}
	return nil
}

// instead returns a record to write instead of a copy, or nil.
func (c *copier) instead(r *kgo.Record, id []byte, cause error) (*kgo.Record, error) {
	var k semel.Key
	if id != nil {
		k = semel.Key{Scope: c.t.chain.Scope, ID: string(id)}
	}
	switch c.t.chain.Failure.Then {
	case pipeline.Stop:
		return nil, operator.ToldToStop(r, pipeline.ReasonPermanent, cause)
	case pipeline.Drop:
		c.deferred.Add(pipeline.EventDropped, pipeline.ReasonPermanent, operator.ItemOf(r, k, 1, cause))
		return nil, nil
	}
	out, err := c.t.chain.DeadLetter(r, c.limits, pipeline.ReasonPermanent, 1, cause)
	if err == nil {
		c.deferred.Add(pipeline.EventParked, pipeline.ReasonPermanent, operator.ItemOf(r, k, 1, cause))
	}
	return out, err
}
