package brokers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// The messages of rabbitBroker come through an exchange, with their aggregate as
// routing key. Those that the server has delivered too often are in a queue of their
// own.
const (
	exchange    = "events"
	deadLetters = "dead"
)

// rabbitBroker has a queue with or without a single active consumer. Without it, a
// program that begins before the server notices the death of the last one gets later
// messages first.
func rabbitBroker(single bool) broker {
	return broker{
		name:    "rabbitmq",
		start:   func(t *testing.T) *services.Server { return startRabbit(t, single) },
		produce: produceRabbit,
		source:  func(addr string) string { return fmt.Sprintf("{ rabbitmq: { servers: [%q], queue: in } }", addr) },
		left:    leftInRabbit,
		sink: func(addr string) string {
			return fmt.Sprintf("{ rabbitmq: { servers: [%q], routing_key: out } }", addr)
		},
		written:    writtenToRabbit,
		ordered:    single,
		deliveries: 5,
		nearEnd:    4,
		patience:   6 * time.Second,
		revive:     reviveRabbit,
	}
}

func startRabbit(t *testing.T, single bool) *services.Server {
	server := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Config: "{consumer_timeout, 6000}, {channel_tick_interval, 500}"})
	err := onChannel(server.URL(), func(ch *amqp.Channel) error { return declare(ch, single) })
	for _, queue := range []string{deadLetters, "in", "out"} {
		err = errors.Join(err, services.AwaitQueue(t.Context(), server, queue))
	}
	if err != nil {
		t.Fatal(err)
	}
	return server
}

func produceRabbit(ctx context.Context, url string, bodies []string) error {
	return onChannel(url, func(ch *amqp.Channel) error {
		var confirms []*amqp.DeferredConfirmation
		for _, body := range bodies {
			confirm, err := publish(ctx, ch, body)
			if err != nil {
				return err
			}
			confirms = append(confirms, confirm)
		}
		for _, confirm := range confirms {
			if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
				return errors.Join(err, errors.New("no confirm"))
			}
		}
		return nil
	})
}

func publish(ctx context.Context, ch *amqp.Channel, body string) (*amqp.DeferredConfirmation, error) {
	return ch.PublishWithDeferredConfirmWithContext(ctx, exchange, strconv.Itoa(aggregateOf(idOf(body))), true, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
}

// leftInRabbit does not count the messages that a consumer has. They are counted when it
// has ended.
func leftInRabbit(t *testing.T, url string) (n int) {
	t.Helper()
	err := onChannel(url, func(ch *amqp.Channel) error {
		queue, err := ch.QueueDeclarePassive("in", true, false, false, false, nil)
		n = queue.Messages
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func writtenToRabbit(t *testing.T, url string, fn func(id, token, attempt string)) {
	t.Helper()
	err := onChannel(url, func(ch *amqp.Channel) error {
		for {
			m, ok, err := ch.Get("out", true)
			if err != nil || !ok {
				return err
			}
			fn(m.MessageId, fmt.Sprint(m.Headers[header.Token]), fmt.Sprint(m.Headers[header.Attempt]))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func reviveRabbit(ctx context.Context, url string, moved func(id string)) error {
	return onChannel(url, func(ch *amqp.Channel) error {
		for {
			m, ok, err := ch.Get(deadLetters, false)
			if err != nil || !ok {
				return err
			}
			moved(idOf(string(m.Body)))
			confirm, err := publish(ctx, ch, string(m.Body))
			if err != nil {
				return err
			}
			if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
				return errors.Join(err, errors.New("no confirm"))
			}
			if err := m.Ack(false); err != nil {
				return err
			}
		}
	})
}

// declare makes the queues and the exchange.
func declare(ch *amqp.Channel, single bool) error {
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	for _, queue := range []string{deadLetters, "out"} {
		if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
			return err
		}
	}
	for name, value := range map[string]any{
		amqp.SingleActiveConsumerArg: single, "x-delivery-limit": 4, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": deadLetters,
		"x-dead-letter-strategy": "at-least-once", amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish,
	} {
		args[name] = value
	}
	if _, err := ch.QueueDeclare("in", true, false, false, false, args); err != nil {
		return err
	}
	if err := ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return err
	}
	return ch.QueueBind("in", "#", exchange, false, nil)
}

// onChannel calls fn with a channel in confirm mode.
func onChannel(url string, fn func(*amqp.Channel) error) (err error) {
	conn, err := amqp.Dial("amqp://" + url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the server may be gone
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		return err
	}
	return fn(ch)
}
