package outputs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/bench/internal/records"
)

const (
	// batchLimit limits the bytes of a partition in a response.
	batchLimit = 4 << 20
	// fetchWait limits how long the broker waits for further records.
	fetchWait = time.Second
	// batchPrefix is the length of a batch's offset and length, which its length does not
	// include.
	batchPrefix = 12
	// compressed, transactional and control are bits of a batch's attributes.
	compressed, transactional, control = 7, 1 << 4, 1 << 5
)

// closingKey is in the body of each result of a group that only closes windows, once.
var closingKey = []byte(`"key":"` + records.Closing)

// Counter counts the committed records of a topic while a program writes them, without
// the results of groups that only close windows.
type Counter struct {
	addrs  []string
	topic  string
	client *kgo.Client
	cancel context.CancelFunc
	ended  chan struct{}
	count  atomic.Int64
	err    atomic.Pointer[error]

	id     [16]byte
	broker *kgo.Broker
	next   map[int32]int64 // offset of the next batch; run alone changes it
}

// Count starts to count the records of a topic whose partitions are on one broker.
func Count(ctx context.Context, addrs []string, topic string) (*Counter, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		return nil, err
	}
	c := &Counter{addrs: addrs, topic: topic, client: client, ended: make(chan struct{}), next: map[int32]int64{}}
	if err := c.find(ctx); err != nil {
		client.Close()
		return nil, err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	go c.run(ctx)
	return c, nil
}

// find finds the topic's partitions and their broker.
func (c *Counter) find(ctx context.Context) error {
	topics, err := kadm.NewClient(c.client).ListTopics(ctx, c.topic)
	if err := errors.Join(err, topics.Error()); err != nil {
		return err
	}
	detail := topics[c.topic]
	c.id = detail.ID
	leader := int32(-1)
	for _, p := range detail.Partitions.Sorted() {
		if p.Leader < 0 || leader >= 0 && p.Leader != leader {
			return fmt.Errorf("outputs: count %s: partition %d is on broker %d, want all on one", c.topic, p.Partition, p.Leader)
		}
		leader, c.next[p.Partition] = p.Leader, 0
	}
	c.broker = c.client.Broker(int(leader))
	return nil
}

func (c *Counter) run(ctx context.Context) {
	defer close(c.ended)
	for ctx.Err() == nil {
		err := c.fetch(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case kerr.IsRetriable(err): // such as that of a topic that was just made
			select {
			case <-time.After(poll):
			case <-ctx.Done():
			}
		default:
			err = fmt.Errorf("outputs: count %s: %w", c.topic, err)
			c.err.Store(&err)
			return
		}
	}
}

// fetch asks for further batches and counts them.
func (c *Counter) fetch(ctx context.Context) error {
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = c.topic, c.id
	for p, offset := range c.next {
		of := kmsg.NewFetchRequestTopicPartition()
		of.Partition, of.FetchOffset, of.PartitionMaxBytes = p, offset, batchLimit
		topic.Partitions = append(topic.Partitions, of)
	}
	req := kmsg.NewFetchRequest()
	req.MaxWaitMillis, req.MinBytes, req.IsolationLevel = int32(fetchWait.Milliseconds()), 1, 1
	req.Topics = append(req.Topics, topic)
	answer, err := c.broker.RetriableRequest(ctx, &req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.FetchResponse)
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return err
	}
	var failed error // the other partitions are counted
	for _, t := range resp.Topics {
		for i := range t.Partitions {
			p := &t.Partitions[i]
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				failed = fmt.Errorf("partition %d: %w", p.Partition, err)
				continue
			}
			n, next, err := countBatches(p, c.next[p.Partition])
			if err != nil {
				return fmt.Errorf("partition %d: %w", p.Partition, err)
			}
			c.next[p.Partition] = next
			c.count.Add(n)
		}
	}
	return failed
}

// countBatches counts the records of the batches of a response from an offset, without
// markers, records of transactions that were aborted, and results of groups that only
// close windows. It returns the offset after the last batch.
func countBatches(p *kmsg.FetchResponseTopicPartition, from int64) (n, next int64, err error) {
	aborted := slices.SortedFunc(slices.Values(p.AbortedTransactions), func(a, b kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return cmp.Compare(a.FirstOffset, b.FirstOffset)
	})
	inAborted := map[int64]bool{} // by producer
	next = from
	for rest := p.RecordBatches; len(rest) >= batchPrefix; {
		size := batchPrefix + int(int32(binary.BigEndian.Uint32(rest[8:])))
		if size > len(rest) {
			break // the response ends within a batch
		}
		var b kmsg.RecordBatch
		if err := b.ReadFrom(rest[:size]); err != nil {
			return 0, 0, fmt.Errorf("batch at offset %d: %w", next, err)
		}
		rest = rest[size:]
		for len(aborted) > 0 && aborted[0].FirstOffset <= b.FirstOffset {
			inAborted[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		last := b.FirstOffset + int64(b.LastOffsetDelta)
		switch {
		case last < from:
			continue
		case b.Attributes&control != 0:
			delete(inAborted, b.ProducerID)
		case b.Attributes&transactional != 0 && inAborted[b.ProducerID]:
		case b.Attributes&compressed != 0:
			return 0, 0, fmt.Errorf("batch at offset %d is compressed, so that its results cannot be told apart", b.FirstOffset)
		default:
			n += int64(b.NumRecords) - int64(bytes.Count(b.Records, closingKey))
		}
		next = last + 1
	}
	return n, next, nil
}

// Count returns how many records there are until now.
func (c *Counter) Count() (int, error) {
	n := int(c.count.Load())
	if err := c.err.Load(); err != nil {
		return n, *err
	}
	return n, nil
}

// stop ends the counting.
func (c *Counter) stop() {
	c.cancel()
	<-c.ended
}

// Close ends the counter.
func (c *Counter) Close() {
	c.stop()
	c.client.Close()
}
