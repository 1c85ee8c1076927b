package kafkaio

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/key"
)

const (
	// samplePartition is how many of the newest records of a partition are
	// looked at, sampleTime how long that may take.
	samplePartition = 1000
	sampleTime      = 5 * time.Second
)

// sample refuses an input in which copies of one id are in several partitions:
// each partition remembers its own keys, so they would never meet. It looks at
// the newest records and proves nothing if it finds none. With a repartition stage
// copies meet wherever they are.
func (t *Transactor) sample(ctx context.Context) error {
	if t.opts.Repartition != nil || t.opts.SkipSample || t.opts.Key.Form() == key.FormRecordKey {
		return nil
	}
	for _, input := range t.opts.Inputs {
		if err := t.sampleTopic(ctx, input); err != nil {
			return err
		}
	}
	return nil
}

// place is where an id was seen first.
type place struct {
	partition int32
	offset    int64
	recordKey semel.Digest
}

func (t *Transactor) sampleTopic(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	from, left, err := t.newest(ctx, topic)
	if err != nil || len(left) < 2 {
		return err
	}
	client, err := kgo.NewClient(t.clientOptions(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the last one may be such
	)...)
	if err != nil {
		return fmt.Errorf("kafkaio: %w", err)
	}
	defer client.Close()
	reader, hasher := t.opts.Key.Reader(nil), digest.New(digest.NewSecret()).Scope("")
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
			fill(&m, r)
			if id, err = reader.AppendID(id[:0], &m); err != nil || len(id) == 0 {
				continue
			}
			here := place{r.Partition, r.Offset, hasher.Bytes(r.Key)}
			first, ok := seen[hasher.Bytes(id)]
			switch {
			case !ok:
				seen[hasher.Bytes(id)] = here
			case first.partition != here.partition:
				return fmt.Errorf("kafkaio: the records of %s in partition %d at %d and in %d at %d have one id: copies in several partitions never meet, and each would have its effect; have them meet with a repartition stage (repartition: {} of the source), or write the topic with the id as record key: %w",
					topic, first.partition, first.offset, here.partition, here.offset, semel.ErrInvalidRequest)
			case first.recordKey != here.recordKey:
				return fmt.Errorf("kafkaio: the records of %s in partition %d at %d and %d have one id and two record keys: other copies may be in other partitions, and each would have its effect; have them meet with a repartition stage (repartition: {} of the source), or write the topic with the id as record key: %w",
					topic, first.partition, first.offset, here.offset, semel.ErrInvalidRequest)
			}
		}
	}
	return nil
}

// newest returns for the partitions of a topic that have records where the
// newest begin and where they end.
func (t *Transactor) newest(ctx context.Context, topic string) (map[int32]kgo.Offset, map[int32]int64, error) {
	adm := t.adm()
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, nil, fmt.Errorf("kafkaio: %w", err)
	}
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return nil, nil, fmt.Errorf("kafkaio: %w", err)
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
