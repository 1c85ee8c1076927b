package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Parker puts messages aside in a topic, with the headers in which Kafka Connect
// and Spring say where a record came from and why it is there. A DeadLetterTopic lists and
// redrives them.
type Parker struct {
	client *kgo.Client
	topic  string
	limits limits
}

var _ pipeline.Parker = (*Parker)(nil)

// OpenParker connects. It blocks until a broker has answered.
func OpenParker(ctx context.Context, client []kgo.Opt, topic string) (*Parker, error) {
	if topic == "" {
		return nil, fmt.Errorf("kafkaio: OpenParker: the topic is missing: %w", semel.ErrInvalidRequest)
	}
	c, l, err := producer(ctx, client, topic, false)
	if err != nil {
		return nil, err
	}
	return &Parker{c, topic, l}, nil
}

// Close ends the connections.
func (p *Parker) Close() error {
	p.client.Close()
	return nil
}

// Park implements pipeline.Parker. It blocks until all replicas in sync have the
// records. A call that is repeated after an error may put a message aside twice.
// Of messages of which one is larger than the topic takes none is put aside, and
// the error is permanent.
func (p *Parker) Park(ctx context.Context, list []pipeline.Parked) error {
	records := make([]*kgo.Record, len(list))
	for i := range list {
		m := &list[i].Message
		from := recordOf(m, m.Origin.Source)
		from.Partition, from.Offset = m.Origin.Partition, m.Origin.Offset
		r := parkedRecord(from, p.topic, list[i].Pipeline, list[i].Reason, list[i].Attempts, errors.New(list[i].Error))
		r.Headers = appendKeyHeaders(r.Headers, list[i].Key, list[i].Pipeline)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerAttempt, Value: strconv.AppendInt(nil, int64(list[i].Attempts), 10)})
		if err := p.limits.check(p.topic, r); err != nil {
			return fmt.Errorf("kafka: %s/%d at %d: %w", m.Origin.Source, m.Origin.Partition, m.Origin.Offset, err)
		}
		records[i] = r
	}
	if err := p.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		if isTooLarge(err) {
			err = semel.Permanent(err)
		}
		return fmt.Errorf("kafka: park in %s: %w", p.topic, err)
	}
	return nil
}
