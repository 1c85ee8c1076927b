package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// endQuiet is how long nothing may come from partitions that have not reached
// their ends. Where the last offsets are of transactions that were aborted, while
// another one has been open since, no record shows that the end is reached.
const endQuiet = 30 * time.Second

// extent is the offset behind the last committed record, by partition.
type extent map[partitionID]int64

// ReadAll hands the committed records of topics to fn, until it returns false or
// all that was there at the call was read; the order holds within a partition. It
// joins no group and moves no position, and blocks until ctx ends at the most.
func ReadAll(ctx context.Context, client []kgo.Opt, topics []string, fn func(*kgo.Record) bool) error {
	c, err := kgo.NewClient(append(client[:len(client):len(client)], readOptions()...)...)
	if err != nil {
		return fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	defer c.Close()
	if err := reach(ctx, c); err != nil {
		return err
	}
	adm := kadm.NewClient(c)
	first, last, err := committedOffsets(ctx, adm, topics...)
	if err != nil {
		return fmt.Errorf("kafkaio: offsets of %s: %w", strings.Join(topics, ", "), err)
	}
	ends, from := extent{}, map[string]map[int32]kgo.Offset{}
	last.Each(func(end kadm.ListedOffset) {
		if start, _ := first.Lookup(end.Topic, end.Partition); start.Offset < end.Offset {
			ends.add(from, end, start.Offset)
		}
	})
	c.AddConsumePartitions(from)
	return ends.read(ctx, c, func(r *kgo.Record) (bool, error) { return fn(r), nil })
}

// committedOffsets returns where the committed records of topics begin and end. It
// asks again while brokers may not know of topics that were just made.
func committedOffsets(ctx context.Context, adm *kadm.Client, topics ...string) (first, last kadm.ListedOffsets, err error) {
	began := time.Now()
	for tries := 1; ; tries++ {
		first, err = adm.ListStartOffsets(ctx, topics...)
		var err2 error
		last, err2 = adm.ListCommittedOffsets(ctx, topics...)
		if err = errors.Join(err, err2, first.Error(), last.Error()); err == nil || !asksAgain(ctx, began, tries, err) {
			return first, last, err
		}
	}
}

func readOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(16 << 20), kgo.FetchMaxPartitionBytes(4 << 20),
	}
}

// add says that a partition is read from an offset to its end.
func (e extent) add(from map[string]map[int32]kgo.Offset, end kadm.ListedOffset, at int64) {
	if from[end.Topic] == nil {
		from[end.Topic] = map[int32]kgo.Offset{}
	}
	from[end.Topic][end.Partition] = kgo.NewOffset().At(at)
	e[partitionID{end.Topic, end.Partition}] = end.Offset
}

// read hands records to fn until all ends are reached, or fn returns false or an
// error.
func (e extent) read(ctx context.Context, client *kgo.Client, fn func(*kgo.Record) (bool, error)) error {
	for len(e) > 0 {
		patient, cancel := context.WithTimeout(ctx, endQuiet)
		fetches := client.PollFetches(patient)
		quiet := patient.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if quiet && fetches.NumRecords() == 0 {
			return e.reachable(ctx, client)
		}
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.Is(failed.Err, context.Canceled) {
				return fmt.Errorf("kafkaio: read %s/%d: %w", failed.Topic, failed.Partition, failed.Err)
			}
		}
		for records := fetches.RecordIter(); !records.Done(); {
			r := records.Next()
			id := partitionID{r.Topic, r.Partition}
			end, ok := e[id]
			switch {
			case !ok: // it came after the call
				continue
			case r.Offset >= end-1:
				delete(e, id)
				client.PauseFetchPartitions(map[string][]int32{r.Topic: {r.Partition}}) // what comes from it says nothing of the others
			}
			if r.Attrs.IsControl() || r.Offset >= end {
				continue
			}
			if more, err := fn(r); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// reachable returns an error if a partition that was not read to its end has no
// leader, or none that answers.
func (e extent) reachable(ctx context.Context, client *kgo.Client) error {
	var topics []string
	for id := range e {
		topics = append(topics, id.topic)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	ends, err := kadm.NewClient(client).ListCommittedOffsets(ctx, topics...)
	if err := errors.Join(err, ends.Error()); err != nil {
		return fmt.Errorf("kafkaio: nothing came from %s for %v: %w", strings.Join(topics, ", "), endQuiet, err)
	}
	return nil
}
