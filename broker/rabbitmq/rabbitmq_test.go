package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// client returns how to reach a server.
func client(server *services.Server) rabbitmq.Client {
	return rabbitmq.Client{Addrs: []string{server.Addr()}}
}

// with calls fn with a channel in confirm mode.
func with(url string, fn func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the server may be gone
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	return fn(ch)
}

// declare makes a queue.
func declare(tb testing.TB, url, queue string, args amqp.Table) {
	tb.Helper()
	err := with(url, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, args)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// quorum makes a quorum queue that survives a kill.
func quorum(tb testing.TB, server *services.Server, args amqp.Table) string {
	tb.Helper()
	queue := servicestest.Topic()
	all := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	for name, value := range args {
		all[name] = value
	}
	declare(tb, "amqp://"+server.Addr(), queue, all)
	if err := services.AwaitQueue(tb.Context(), server, queue); err != nil {
		tb.Fatal(err)
	}
	return queue
}

// send publishes messages until the server has confirmed all of them.
func send(ctx context.Context, url, queue string, list []amqp.Publishing) error {
	for {
		err := with(url, func(ch *amqp.Channel) error {
			for len(list) > 0 {
				confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, list[0])
				if err != nil {
					return err
				}
				if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
					return errors.Join(err, errors.New("no confirm"))
				}
				list = list[1:]
			}
			return nil
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// restart kills a server and starts it again. A node takes many seconds to start, so
// with -short the suites do not, and only the test that kills the program does.
func restart(server *services.Server) func(context.Context) error {
	if testing.Short() {
		return nil
	}
	return func(ctx context.Context) error {
		return errors.Join(server.Kill(), server.Restart(ctx))
	}
}

// TestSourceAndSinkPassTheSuites does not run in parallel with other tests, because the suites count
// goroutines.
func TestSourceAndSinkPassTheSuites(t *testing.T) {
	server := servicestest.StartRabbitMQ(t, nil)
	t.Run("source", func(t *testing.T) { runSource(t, server) })
	t.Run("sink", func(t *testing.T) { runSink(t, server) })
	t.Run("waiting messages do not delay others", func(t *testing.T) { runWaiting(t, server) })
}

func runSource(t *testing.T, server *services.Server) {
	place := func(tb testing.TB, args amqp.Table) brokertest.SourcePlace {
		queue := quorum(tb, server, args)
		return brokertest.SourcePlace{
			Produce: func(ctx context.Context, list []brokertest.Numbered) error {
				messages := make([]amqp.Publishing, len(list))
				for i, m := range list {
					messages[i] = amqp.Publishing{MessageId: m.ID, DeliveryMode: amqp.Persistent, Timestamp: time.Now(), Headers: amqp.Table{}, Body: m.Body}
					for _, h := range m.Headers {
						messages[i].Headers[h.Name] = string(h.Value)
					}
				}
				return send(ctx, "amqp://"+server.Addr(), queue, messages)
			},
			Open: func(ctx context.Context) (pipeline.Source, error) {
				return rabbitmq.OpenSource(ctx, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
			},
			Server: server.Addr(),
			OpenAt: func(ctx context.Context, address string) (pipeline.Source, error) {
				return rabbitmq.OpenSource(ctx, &rabbitmq.SourceOptions{Client: rabbitmq.Client{Addrs: []string{address}}, Queue: queue})
			},
			Restart: restart(server),
		}
	}
	brokertest.RunSource(t, brokertest.SourceHarness{
		Unordered: true, Messages: 200,
		New:        func(tb testing.TB) brokertest.SourcePlace { return place(tb, nil) },
		NewLimited: func(tb testing.TB) brokertest.SourcePlace { return place(tb, amqp.Table{"x-delivery-limit": 3}) },
	})
}

func runSink(t *testing.T, server *services.Server) {
	brokertest.RunSink(t, brokertest.SinkHarness{AtLeastOnce: true, New: func(tb testing.TB) brokertest.SinkTarget {
		queue := quorum(tb, server, nil)
		return brokertest.SinkTarget{
			Sink: func(ctx context.Context) (pipeline.Sink, error) {
				return rabbitmq.OpenSink(ctx, &rabbitmq.SinkOptions{Client: client(server), RoutingKey: queue})
			},
			Server: server.Addr(),
			SinkAt: func(ctx context.Context, address string) (pipeline.Sink, error) {
				return rabbitmq.OpenSink(ctx, &rabbitmq.SinkOptions{Client: rabbitmq.Client{Addrs: []string{address}}, RoutingKey: queue})
			},
			Effects: func(context.Context) ([]brokertest.Effect, error) { return effects("amqp://"+server.Addr(), queue) },
			Restart: restart(server),
		}
	}})
}

// effects returns what a queue has, and leaves it there.
func effects(url, queue string) (list []brokertest.Effect, err error) {
	err = with(url, func(ch *amqp.Channel) error {
		// A marker is behind all other messages.
		confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{Type: "marker", Body: []byte("{}")})
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return fmt.Errorf("the server refuses a marker in %s", queue)
		}
		messages, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		limit := time.After(2 * time.Minute)
		for {
			select {
			case m, ok := <-messages:
				if !ok {
					return errors.New("the channel was closed")
				}
				if m.Type == "marker" {
					return m.Ack(false)
				}
				effect := brokertest.Effect{Body: m.Body}
				for name, value := range m.Headers {
					effect.Headers = append(effect.Headers, semel.Header{Name: name, Value: fmt.Append(nil, value)})
				}
				list = append(list, effect)
			case <-limit:
				return errors.New("the marker does not come")
			}
		}
	})
	return list, err
}
