package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// watermillAMQP is the benchmark of two consumers of RabbitMQ that keep keys in memory.
func watermillAMQP(e Env) Benchmark {
	const name = "rabbitmq-watermill"
	b := rabbitBroker(e)
	in := records.Input{Seed: inputSeed, Records: b.records}
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("RabbitMQ, a quorum queue: read %s messages of %d bytes, every tenth a duplicate, keys in memory, count, acknowledge. Peer: Watermill's AMQP subscriber, prefetch 1,000, and its router with its Deduplicator, which marks a message before the handler",
			count(in.Records), records.ValueBytes),
		peerVersion: linked("github.com/ThreeDotsLabs/watermill-amqp/v3"),
		ours: func(ctx context.Context) (map[string]float64, error) {
			store, err := memstore.New(nil)
			if err != nil {
				return nil, err
			}
			b.rate = 0 // no latencies
			values, err := b.measure(ctx, name, in, true, func(sink pipeline.Sink) (pipeline.Session, error) { return pipeline.NewTwoPhase(store, sink, nil) })
			return map[string]float64{name: values[name]}, err
		},
		peer: func(ctx context.Context) (map[string]float64, error) {
			rate, err := watermillRate(ctx, b, in)
			return map[string]float64{name: rate}, err
		},
		figures: []figure{{name: name, unit: "messages/s", target: 2}},
	}
}

// bodyIDs is a marshaler that gives a message the id in its body.
type bodyIDs struct{}

func (bodyIDs) Marshal(msg *message.Message) (amqp.Publishing, error) {
	return amqp.Publishing{Body: msg.Payload}, nil
}

func (bodyIDs) Unmarshal(m amqp.Delivery) (*message.Message, error) {
	_, rest, _ := bytes.Cut(m.Body, []byte(`"event_id":"`))
	id, _, _ := bytes.Cut(rest, []byte(`"`))
	return message.NewMessage(string(id), m.Body), nil
}

// settled counts messages whose handler has returned. The router acknowledges them then.
func (m *meter) settled(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		made, err := next(msg)
		if err == nil {
			m.acked.Add(1)
		}
		return made, err
	}
}

// watermillRate measures Watermill's router.
func watermillRate(ctx context.Context, b broker, in records.Input) (rate float64, err error) {
	server, err := b.start(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	if err := fill(ctx, server, in, b.batch); err != nil {
		return 0, err
	}
	m := newMeter(in)
	config := watermillamqp.NewDurableQueueConfig(server.url)
	config.Queue.Arguments = amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	config.Consume.Qos.PrefetchCount = 1000
	config.Marshaler = bodyIDs{}
	began := time.Now()
	subscriber, err := watermillamqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	seen, err := middleware.NewMapExpiringKeyRepository(time.Hour)
	if err != nil {
		return 0, err
	}
	deduplicator := middleware.Deduplicator{Repository: seen, KeyFactory: func(msg *message.Message) (string, error) { return msg.UUID, nil }}
	router.AddMiddleware(m.settled, deduplicator.Middleware)
	router.AddNoPublisherHandler("count", brokerQueue, subscriber, func(msg *message.Message) error {
		i, err := m.seq(msg.Payload)
		if err == nil {
			m.handled[i].Add(1)
		}
		return err
	})
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	if err := m.await(in.Records, ended); err != nil {
		return 0, err
	}
	rate = float64(in.Records) / time.Since(began).Seconds()
	return rate, errors.Join(router.Close(), m.check(true))
}
