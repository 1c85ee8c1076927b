package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/pipeline"
)

// Parker parks messages in a dead-letter topic, with the headers in which Kafka Connect
// and Spring name a record's origin and the reason. A DeadLetterTopic lists and
// redrives them.
type Parker struct {
	client *kgo.Client
	topic  string
	limits cluster.Limits
}

var _ pipeline.Parker = (*Parker)(nil)

// OpenParker connects. It blocks until a broker has answered. [MissingTopic] tells
// whether the topic does not exist.
func OpenParker(ctx context.Context, client []kgo.Opt, topic string) (*Parker, error) {
	if topic == "" {
		return nil, fmt.Errorf("kafka: OpenParker: the topic is missing: %w", semel.ErrInvalidRequest)
	}
	to, err := producer(ctx, client, topic, false)
	if err != nil {
		return nil, err
	}
	l := to.of(topic)
	if l == nil {
		to.client.Close()
		return nil, fmt.Errorf("kafka: %w", &cluster.MissingTopicError{Topic: topic})
	}
	return &Parker{to.client, topic, l}, nil
}

// Close ends the connections.
func (p *Parker) Close() error {
	p.client.Close()
	return nil
}

// Park implements pipeline.Parker. It blocks until all in-sync replicas have the
// records. A call that is repeated after an error may park a message twice. If one
// message is too large for the topic, none is parked, and the error is permanent.
func (p *Parker) Park(ctx context.Context, list []pipeline.Parked) error {
	records := make([]*kgo.Record, len(list))
	for i := range list {
		m := &list[i].Message
		from := record.Of(m, m.Origin.Source)
		from.Partition, from.Offset = m.Origin.Partition, m.Origin.Offset
		r := record.Parked(from, p.topic, list[i].Pipeline, list[i].Reason, list[i].Attempts, errors.New(list[i].Error))
		r.Headers = record.AppendKeyHeaders(r.Headers, list[i].Key, list[i].Pipeline)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: header.Attempt, Value: strconv.AppendInt(nil, int64(list[i].Attempts), 10)})
		if m.CaselessHeaders {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: record.HeaderCaseless, Value: []byte("true")})
		}
		if err := p.limits.Check(p.topic, r); err != nil {
			return fmt.Errorf("kafka: %s/%d at %d: %w", m.Origin.Source, m.Origin.Partition, m.Origin.Offset, err)
		}
		records[i] = r
	}
	if err := p.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		if cluster.IsTooLarge(err) {
			err = semel.Permanent(err)
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			err = &cluster.MissingTopicError{Topic: p.topic}
		}
		return fmt.Errorf("kafka: park in %s: %w", p.topic, err)
	}
	return nil
}
