package records

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Fill writes the records with the numbers from and above, and below to, to a topic. It
// does not compress them. Records with equal keys go to one partition, in order.
func (in Input) Fill(ctx context.Context, addrs []string, topic string, from, to int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	for i := from; i < to && failed.Load() == nil; i++ {
		key, value := in.Append(make([]byte, 0, 36), make([]byte, 0, ValueBytes), i)
		client.Produce(ctx, &kgo.Record{Key: key, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return fmt.Errorf("records: fill %s: %w", topic, *err)
	}
	return nil
}

// Verify reads the committed records of a topic to its end. It returns an error unless
// each record of the input is there once, byte for byte. With distinct, only the first
// record of each key must be there.
func (in Input) Verify(ctx context.Context, addrs []string, topic string, distinct bool) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords()) // the last record of a partition may be one
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topic)
	if err != nil {
		return err
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	c := checker{Input: in, distinct: distinct, seen: make([]bool, in.Records)}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("records: read %s: %w", topic, err)
		}
		for r := range fetches.RecordsAll() {
			if !r.Attrs.IsControl() {
				if err := c.check(r); err != nil {
					return fmt.Errorf("records: %s: %w", topic, err)
				}
			}
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
		}
	}
	want := in.Records
	if distinct {
		want = in.FreshRecords()
	}
	if c.count != want {
		return fmt.Errorf("records: %s has %d records, want %d", topic, c.count, want)
	}
	return nil
}

// checker compares an output with its input.
type checker struct {
	Input
	distinct   bool
	seen       []bool
	count      int
	key, value []byte // buffers
}

func (c *checker) check(r *kgo.Record) error {
	_, text, _ := bytes.Cut(r.Value, []byte(`"seq":`))
	digits, _, _ := bytes.Cut(text, []byte(","))
	i, err := strconv.Atoi(string(digits))
	if err != nil || i < 0 || i >= c.Records {
		return fmt.Errorf("%q is not of the input", r.Value)
	}
	c.key, c.value = c.Append(c.key[:0], c.value[:0], i)
	switch {
	case !bytes.Equal(c.key, r.Key) || !bytes.Equal(c.value, r.Value):
		return fmt.Errorf("%q was %q in the input", r.Value, c.value)
	case c.distinct && !c.Fresh(i):
		return fmt.Errorf("record %d is a duplicate", i)
	case c.seen[i]:
		return fmt.Errorf("record %d is there twice", i)
	}
	c.seen[i] = true
	c.count++
	return nil
}
