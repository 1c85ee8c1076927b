package cluster

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Ended reports whether the leader of a partition has no committed or control record
// between two offsets, and no transaction is open before the second. A client does not show this.
// Aborted and compacted records are passed over, and a retry returns nothing.
func Ended(ctx context.Context, client *kgo.Client, id Partition, at, end int64) (bool, error) {
	topics, err := kadm.NewClient(client).ListTopics(ctx, id.Topic)
	if err == nil {
		err = topics.Error()
	}
	if err != nil {
		return false, fmt.Errorf("kafka: topic %s: %w", id.Topic, err)
	}
	leader := topics[id.Topic].Partitions[id.Number].Leader
	for {
		answer, err := fetchRequest(id, topics[id.Topic].ID, at).RequestWith(ctx, client.Broker(int(leader)))
		if err != nil {
			return false, fmt.Errorf("kafka: read %s/%d: %w", id.Topic, id.Number, err)
		}
		if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
			return false, nil // the broker throttles the client
		}
		found := &answer.Topics[0].Partitions[0]
		f, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			KeepControlRecords: true, IsolationLevel: kgo.ReadCommitted(), Topic: id.Topic, Partition: id.Number, Offset: at,
		}, found, kgo.DefaultDecompressor(), nil)
		switch {
		case f.Err != nil:
			return false, fmt.Errorf("kafka: read %s/%d: %w", id.Topic, id.Number, f.Err)
		case len(f.Records) > 0:
			return f.Records[0].Offset >= end, nil
		case next >= end || len(found.RecordBatches) == 0:
			return f.LastStableOffset >= end, nil
		case next <= at:
			return false, nil // it is less than a batch
		}
		at = next
	}
}

// fetchRequest asks for the records of a partition from an offset, without waiting.
func fetchRequest(id Partition, topicID kadm.TopicID, at int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.MaxBytes, req.IsolationLevel = 1<<20, 1 // read committed
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID = id.Topic, topicID
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes = id.Number, at, 1<<20
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	return req
}
