package cluster

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Committing returns a context for the end of a transaction that also commits the
// present offsets of partitions whose records it has not read. Brokers fence a replaced
// member when it commits offsets, and only then. Without offsets, a member that lost its
// partitions could still commit outputs. The offsets of some partitions get a note, as
// their metadata. A partition with a rest, of which the client has read more than the
// transaction has decided, gets the offset of the rest.
func Committing(ctx context.Context, present map[Partition]kgo.EpochOffset, notes map[Partition]string, rest map[Partition]kgo.EpochOffset) context.Context {
	if len(present)+len(notes)+len(rest) == 0 {
		return ctx
	}
	return kgo.PreTxnCommitFnContext(ctx, func(req *kmsg.TxnOffsetCommitRequest) error {
		for id, at := range present {
			addOffset(req, id, at)
		}
		for i := range req.Topics {
			topic := &req.Topics[i]
			for j := range topic.Partitions {
				p := &topic.Partitions[j]
				if at, ok := rest[Partition{topic.Topic, p.Partition}]; ok {
					p.Offset, p.LeaderEpoch = at.Offset, at.Epoch
				}
				if note, ok := notes[Partition{topic.Topic, p.Partition}]; ok {
					p.Metadata = &note
				}
			}
		}
		return nil
	})
}

// Leave notes that the rest of a partition begins at an offset, unless it begins earlier.
func Leave(rest map[Partition]kgo.EpochOffset, id Partition, offset int64, epoch int32) map[Partition]kgo.EpochOffset {
	if rest == nil {
		rest = map[Partition]kgo.EpochOffset{}
	}
	if _, earlier := rest[id]; !earlier {
		rest[id] = kgo.EpochOffset{Offset: offset, Epoch: epoch}
	}
	return rest
}

// ReadAgain lets a client read the rest of partitions again.
func ReadAgain(client *kgo.Client, rest map[Partition]kgo.EpochOffset) {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for id, at := range rest {
		if offsets[id.Topic] == nil {
			offsets[id.Topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[id.Topic][id.Number] = at
	}
	client.SetOffsets(offsets)
}

// addOffset adds the offset of a partition to a request that lacks it.
func addOffset(req *kmsg.TxnOffsetCommitRequest, id Partition, at kgo.EpochOffset) {
	for i := range req.Topics {
		topic := &req.Topics[i]
		if topic.Topic != id.Topic {
			continue
		}
		for _, p := range topic.Partitions {
			if p.Partition == id.Number {
				return
			}
		}
		topic.Partitions = append(topic.Partitions, offsetOf(req, id, at))
		return
	}
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = id.Topic
	topic.Partitions = append(topic.Partitions, offsetOf(req, id, at))
	req.Topics = append(req.Topics, topic)
}

func offsetOf(req *kmsg.TxnOffsetCommitRequest, id Partition, at kgo.EpochOffset) kmsg.TxnOffsetCommitRequestTopicPartition {
	p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch = id.Number, at.Offset, at.Epoch
	p.Metadata = &req.MemberID // as the client does
	return p
}
