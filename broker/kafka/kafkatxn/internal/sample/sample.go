// Package sample reads the newest records of a topic, to find keys that are in several
// partitions.
package sample

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/key"
)

const (
	// samplePartition is how many of a partition's newest records are sampled,
	// sampleTime how long that may take.
	samplePartition = 1000
	sampleTime      = 5 * time.Second
)

// Place is where an id was first seen.
type Place struct {
	Partition int32
	Offset    int64
	RecordKey semel.Digest
}

// Topic passes pairs of records for which a rule finds the same id to check. It reads the newest records
// of each partition. Its client has the options.
func Topic(ctx context.Context, adm *kadm.Client, options func(more ...kgo.Opt) []kgo.Opt, topic string, rule *key.Rule, check func(topic string, first, here Place) error) error {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	from, left, err := newest(ctx, adm, topic)
	if err != nil || len(left) < 2 {
		return err
	}
	client, err := kgo.NewClient(options(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the last offset may be a marker
	)...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer client.Close()
	reader, hasher := rule.Reader(nil), digest.New(digest.NewSecret()).Scope("")
	seen := map[semel.Digest]Place{}
	var m semel.Message
	var id []byte
	for len(left) > 0 && ctx.Err() == nil {
		for r := range client.PollFetches(ctx).RecordsAll() {
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
			if r.Attrs.IsControl() {
				continue
			}
			record.Fill(&m, r)
			if id, err = reader.AppendID(id[:0], &m); err != nil || len(id) == 0 {
				continue
			}
			here := Place{r.Partition, r.Offset, hasher.Bytes(r.Key)}
			first, ok := seen[hasher.Bytes(id)]
			if !ok {
				seen[hasher.Bytes(id)] = here
			} else if err := check(topic, first, here); err != nil {
				return err
			}
		}
	}
	return nil
}

// newest returns the range of the newest records of each partition with records.
func newest(ctx context.Context, adm *kadm.Client, topic string) (map[int32]kgo.Offset, map[int32]int64, error) {
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, nil, fmt.Errorf("kafka: %w", err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return nil, nil, fmt.Errorf("kafka: %w", err)
	}
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		start, ok := starts.Lookup(topic, end.Partition)
		if ok && end.Err == nil && start.Err == nil && end.Offset > start.Offset {
			from[end.Partition] = kgo.NewOffset().At(max(start.Offset, end.Offset-samplePartition))
			left[end.Partition] = end.Offset
		}
	})
	return from, left, nil
}
