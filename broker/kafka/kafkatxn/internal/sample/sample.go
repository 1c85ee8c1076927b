// Package sample reads the newest records of a topic, to find keys that are in several
// partitions.
package sample

import (
	"context"
	"errors"
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
	// samplePartition is how many of a partition's newest records are sampled, and
	// sampleTime how long the sample may take.
	samplePartition = 1000
	sampleTime      = 5 * time.Second
)

// Topics samples topics. Client returns the options of a client, with more added. Unwrap returns
// the message inside a message, or is nil.
type Topics struct {
	Client func(more ...kgo.Opt) []kgo.Opt
	Admin  *kadm.Client
	Unwrap func(semel.Message) (semel.Message, error)
}

// place is where an id was first seen.
type place struct {
	partition int32
	offset    int64
	recordKey semel.Digest
}

// CheckIDs refuses a topic if records of one id are in several partitions, or have several
// record keys, which may be in several partitions.
func (t *Topics) CheckIDs(ctx context.Context, topic string, rule *key.Rule) error {
	const remedy = "and each has its effect; bring them together with a repartition stage (repartition: true of the source), or write the topic with the id as record key"
	return t.pairs(ctx, topic, rule, func(first, here place) error {
		switch {
		case first.partition != here.partition:
			return fmt.Errorf("kafka: the records of %s in %v have one id: duplicates in several partitions are not found, %s: %w", topic, &Apart{first, here}, remedy, semel.ErrInvalidRequest)
		case first.recordKey != here.recordKey:
			return fmt.Errorf("kafka: the records of %s in partition %d at %d and %d have one id and two record keys: duplicates in several partitions are not found, %s: %w",
				topic, first.partition, first.offset, here.offset, remedy, semel.ErrInvalidRequest)
		}
		return nil
	})
}

// CheckGroups refuses a topic if records of one group key are in several partitions.
func (t *Topics) CheckGroups(ctx context.Context, topic string, by *key.Rule) error {
	apart, err := t.Apart(ctx, topic, by)
	if apart == nil {
		return err
	}
	return fmt.Errorf("kafka: the records of %s in %v have one group key (%s): each partition computes its own windows, so each would write a result of its own; bring them together with a repartition stage (repartition: true of the source), or write the topic with the group key as record key: %w",
		topic, apart, by, semel.ErrInvalidRequest)
}

// Apart is two records in two partitions for which a rule finds the same id.
type Apart struct{ first, here place }

// Error says where the two records are.
func (a *Apart) Error() string {
	return fmt.Sprintf("partition %d at %d and in %d at %d", a.first.partition, a.first.offset, a.here.partition, a.here.offset)
}

// Apart returns the first two records that have one id and are in two partitions, or nil.
func (t *Topics) Apart(ctx context.Context, topic string, rule *key.Rule) (*Apart, error) {
	err := t.pairs(ctx, topic, rule, func(first, here place) error {
		if first.partition == here.partition {
			return nil
		}
		return &Apart{first, here}
	})
	if apart, ok := errors.AsType[*Apart](err); ok {
		return apart, nil
	}
	return nil, err
}

// pairs reads the newest records of each partition. If a rule finds the same id in two of
// them, it passes the first one and the later one to check.
func (t *Topics) pairs(ctx context.Context, topic string, rule *key.Rule, check func(first, here place) error) error {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	from, left, err := newest(ctx, t.Admin, topic)
	if err != nil || len(left) < 2 {
		return err
	}
	client, err := kgo.NewClient(t.Client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the last offset may be a marker
	)...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer client.Close()
	reader, hasher := rule.Reader(nil), digest.New(digest.NewSecret()).Scope("")
	seen := map[semel.Digest]place{}
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
			if t.Unwrap != nil {
				if m, err = t.Unwrap(m); err != nil {
					continue
				}
			}
			if id, err = reader.AppendID(id[:0], &m); err != nil || len(id) == 0 {
				continue
			}
			here := place{r.Partition, r.Offset, hasher.Bytes(r.Key)}
			first, ok := seen[hasher.Bytes(id)]
			if !ok {
				seen[hasher.Bytes(id)] = here
			} else if err := check(first, here); err != nil {
				return err
			}
		}
	}
	return nil
}

// newest returns the start and the end of the newest records of each partition that has
// records.
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
