package suite

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
)

const brokerQueue = "bench"

func natsBroker(e Env) broker {
	return broker{
		name: "nats", about: "NATS JetStream, a stream on disk, a durable pull consumer, batches of 500",
		module: "github.com/nats-io/nats.go", records: e.size(300_000, 3000), rate: 2000, batch: 500, looksUp: true, start: startNATS,
	}
}

func startNATS(ctx context.Context) (_ *brokerServer, err error) {
	server, err := services.StartNATS(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Close())
		}
	}()
	conn, err := natsgo.Connect(server.URL())
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: brokerQueue, Subjects: []string{brokerQueue}}); err != nil {
		return nil, err
	}
	return &brokerServer{
		source: func(ctx context.Context) (pipeline.Source, error) {
			return nats.OpenSource(ctx, &nats.SourceOptions{URL: server.URL(), Stream: brokerQueue, Consumer: brokerQueue, Create: true})
		},
		publisher: func(ctx context.Context) (publication, error) {
			sink, err := nats.OpenSink(ctx, &nats.SinkOptions{URL: server.URL(), Subject: brokerQueue})
			return func(ctx context.Context, from int, bodies [][]byte) error { return deliver(ctx, sink, from, bodies) }, err
		},
		plain: func(context.Context) (func(context.Context, [][]byte) error, error) {
			return func(ctx context.Context, bodies [][]byte) error { return publishNATS(ctx, js, bodies, nil) }, nil
		},
		withIDs: func(context.Context) (func(context.Context, [][]byte) error, error) {
			var last atomic.Int64
			client := rand.Text()
			id := func() string { return client + strconv.FormatInt(last.Add(1), 10) }
			return func(ctx context.Context, bodies [][]byte) error { return publishNATS(ctx, js, bodies, id) }, nil
		},
		server: server,
		close:  func() error { conn.Close(); return server.Close() },
	}, nil
}

// deliver publishes messages through a sink.
func deliver(ctx context.Context, sink pipeline.Sink, from int, bodies [][]byte) error {
	items := make([]*pipeline.Item, len(bodies))
	for i, body := range bodies {
		items[i] = &pipeline.Item{Message: semel.Message{Body: body}, Call: semel.Call{Key: semel.Key{Scope: "bench", ID: idOf(from + i)}}}
	}
	sink.Deliver(ctx, items)
	for _, it := range items {
		if it.Err != nil {
			return it.Err
		}
	}
	return nil
}

// publishNATS publishes messages, each with a Nats-Msg-Id if id is not nil, and waits
// for the confirms.
func publishNATS(ctx context.Context, js jetstream.JetStream, bodies [][]byte, id func() string) error {
	confirms := make([]jetstream.PubAckFuture, len(bodies))
	for i, body := range bodies {
		var opts []jetstream.PublishOpt
		if id != nil {
			opts = append(opts, jetstream.WithMsgID(id()))
		}
		var err error
		if confirms[i], err = js.PublishAsync(brokerQueue, body, opts...); err != nil {
			return err
		}
	}
	for _, confirm := range confirms {
		select {
		case <-confirm.Ok():
		case err := <-confirm.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func rabbitBroker(e Env) broker {
	return broker{
		name: "rabbitmq", about: "RabbitMQ, a quorum queue, prefetch 1,000",
		module: "github.com/rabbitmq/amqp091-go", records: e.size(100_000, 2000), rate: 1000, batch: 500, start: startRabbitMQ,
	}
}

func startRabbitMQ(ctx context.Context) (_ *brokerServer, err error) {
	server, err := services.StartRabbitMQ(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Close())
		}
	}()
	conn, err := amqp.Dial(rabbitURL(server.Addr()))
	if err != nil {
		return nil, err
	}
	if err := declare(conn); err != nil {
		return nil, err
	}
	client := rabbitmq.Client{Addrs: []string{server.Addr()}}
	return &brokerServer{
		source: func(ctx context.Context) (pipeline.Source, error) {
			return rabbitmq.OpenSource(ctx, &rabbitmq.SourceOptions{Client: client, Queue: brokerQueue})
		},
		publisher: func(ctx context.Context) (publication, error) {
			p, err := rabbitmq.OpenPublisher(ctx, client)
			return func(ctx context.Context, from int, bodies [][]byte) error {
				return publishRabbitMQ(ctx, p, from, bodies)
			}, err
		},
		plain: func(context.Context) (func(context.Context, [][]byte) error, error) {
			ch, err := conn.Channel()
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context, bodies [][]byte) error { return confirmAll(ctx, ch, bodies) }, ch.Confirm(false)
		},
		url:    rabbitURL(server.Addr()),
		server: server,
		close:  func() error { return errors.Join(conn.Close(), server.Close()) },
	}, nil
}

func rabbitURL(addr string) string { return "amqp://guest:guest@" + addr + "/" }

// declare makes the queue.
func declare(conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(brokerQueue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	return errors.Join(err, ch.Close())
}

// confirmAll publishes messages and waits for the confirms.
func confirmAll(ctx context.Context, ch *amqp.Channel, bodies [][]byte) error {
	confirms := make([]*amqp.DeferredConfirmation, len(bodies))
	for i, body := range bodies {
		var err error
		if confirms[i], err = ch.PublishWithDeferredConfirm("", brokerQueue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}); err != nil {
			return err
		}
	}
	for _, confirm := range confirms {
		if stored, err := confirm.WaitContext(ctx); err != nil || !stored {
			return cmp.Or(err, errors.New("suite: RabbitMQ has refused a message"))
		}
	}
	return nil
}

// publishRabbitMQ publishes messages with ids.
func publishRabbitMQ(ctx context.Context, p *rabbitmq.Publisher, from int, bodies [][]byte) error {
	list := make([]*rabbitmq.Publication, len(bodies))
	for i, body := range bodies {
		list[i] = &rabbitmq.Publication{RoutingKey: brokerQueue, Message: amqp.Publishing{MessageId: rabbitmq.MessageID(idOf(from + i)), Body: body}}
	}
	p.Publish(ctx, list...)
	for _, m := range list {
		if m.Err != nil {
			return m.Err
		}
	}
	return nil
}

func sqsBroker(e Env) broker {
	return broker{
		name: "sqs", about: "SQS as ElasticMQ, a standard queue, batches of 10",
		module: "github.com/aws/aws-sdk-go-v2/service/sqs", records: e.size(10_000, 1000), rate: 200, batch: 10, start: startSQS,
	}
}

func startSQS(ctx context.Context) (_ *brokerServer, err error) {
	server, err := services.StartElasticMQ(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Close())
		}
	}()
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	client := awssqs.New(awssqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(server.URL()), Credentials: aws.AnonymousCredentials{}, HTTPClient: &http.Client{Transport: transport},
	})
	made, err := client.CreateQueue(ctx, &awssqs.CreateQueueInput{QueueName: aws.String(brokerQueue)})
	if err != nil {
		return nil, err
	}
	queue := aws.ToString(made.QueueUrl)
	return &brokerServer{
		source: func(ctx context.Context) (pipeline.Source, error) {
			return sqs.OpenSource(ctx, &sqs.SourceOptions{Client: client, Queue: queue})
		},
		publisher: func(ctx context.Context) (publication, error) {
			sink, err := sqs.OpenSink(ctx, &sqs.SinkOptions{Client: client, Queue: queue})
			return func(ctx context.Context, from int, bodies [][]byte) error { return deliver(ctx, sink, from, bodies) }, err
		},
		plain: func(context.Context) (func(context.Context, [][]byte) error, error) {
			return func(ctx context.Context, bodies [][]byte) error { return sendBatches(ctx, client, queue, bodies) }, nil
		},
		url:    queue,
		server: server,
		close:  func() error { transport.CloseIdleConnections(); return server.Close() },
	}, nil
}

// sendBatches sends messages in batches of 10.
func sendBatches(ctx context.Context, client *awssqs.Client, queue string, bodies [][]byte) error {
	for len(bodies) > 0 {
		n := min(len(bodies), 10)
		entries := make([]types.SendMessageBatchRequestEntry, n)
		for i, body := range bodies[:n] {
			entries[i] = types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(body))}
		}
		bodies = bodies[n:]
		sent, err := client.SendMessageBatch(ctx, &awssqs.SendMessageBatchInput{QueueUrl: &queue, Entries: entries})
		if err != nil {
			return err
		}
		if len(sent.Failed) > 0 {
			return fmt.Errorf("suite: SQS has refused %d of %d messages", len(sent.Failed), n)
		}
	}
	return nil
}
