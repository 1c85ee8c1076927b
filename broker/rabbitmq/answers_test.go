package rabbitmq_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/internal/peertest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// waiting returns how many messages a queue has for a consumer.
func waiting(url, queue string) (n int) {
	_ = with(url, func(ch *amqp.Channel) error { // it is asked again
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n
}

// TestServerAnswersAreClassifiedAsDocumented has the rows of RabbitMQ in the table of
// broker/ANSWERS.md.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	addr := servers.RabbitMQ(t)
	url := "amqp://guest:guest@" + addr
	sink := func(t *testing.T, at string, opts rabbitmq.SinkOptions) *rabbitmq.Sink {
		t.Helper()
		opts.Client = rabbitmq.Client{Addrs: []string{at}}
		s, err := rabbitmq.OpenSink(t.Context(), &opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		return s
	}
	queue := func(t *testing.T, args amqp.Table) string {
		name := servicestest.Topic()
		declare(t, url, name, args)
		return name
	}
	// lost cuts the connection when the server has the message, or before.
	lost := func(stored bool) func(t *testing.T) error {
		return func(t *testing.T) error {
			name := queue(t, nil)
			p := newProxy(t, addr)
			s := sink(t, p.Addr().String(), rabbitmq.SinkOptions{RoutingKey: name})
			sent := func() bool { return p.hasDropped(name) } // in the frame that publishes
			if p.deaf.Store(!stored); stored {
				p.mute.Store(true)
				sent = func() bool { return waiting(url, name) > 0 }
			}
			var cutting sync.WaitGroup
			defer cutting.Wait()
			cutting.Go(func() {
				for late := time.Now().Add(time.Minute); !sent() && time.Now().Before(late); <-time.After(20 * time.Millisecond) {
				}
				p.disconnect()
			})
			return peertest.DeliverOne(t, s, "{}")
		}
	}
	peertest.RunAnswers(t, "RabbitMQ", []peertest.Answer{
		{Name: "no connection, or a refused one (`ACCESS_REFUSED`, no such virtual host, an alarm)", Means: peertest.Server, Deliver: func(t *testing.T) error {
			p := newProxy(t, addr)
			s := sink(t, p.Addr().String(), rabbitmq.SinkOptions{RoutingKey: queue(t, nil)})
			_ = p.Close()
			p.disconnect()
			for deadline := time.Now().Add(time.Minute); s.Ready(t.Context()) == nil && time.Now().Before(deadline); {
			}
			return peertest.DeliverOne(t, s, "{}")
		}},
		{Name: "no queue takes the message", Means: peertest.Server, Deliver: func(t *testing.T) error {
			name := queue(t, nil)
			s := sink(t, addr, rabbitmq.SinkOptions{RoutingKey: name})
			if err := with(url, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(name, false, false, false); return err }); err != nil {
				t.Fatal(err)
			}
			return peertest.DeliverOne(t, s, "{}")
		}},
		{Name: "`basic.nack` from a queue that has reached its limit", Means: peertest.Server, Deliver: func(t *testing.T) error {
			s := sink(t, addr, rabbitmq.SinkOptions{RoutingKey: queue(t, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})})
			for range 100 { // a quorum queue may take some more
				if err := peertest.DeliverOne(t, s, "{}"); err != nil {
					return err
				}
			}
			return nil
		}},
		{Name: "`basic.nack` from an exchange, of which other queues may have the message", Means: peertest.ServerInDoubt, Deliver: func(t *testing.T) error {
			name := queue(t, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
			err := with(url, func(ch *amqp.Channel) error {
				if err := ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
					return err
				}
				return ch.QueueBind(name, "", name, false, nil)
			})
			if err != nil {
				t.Fatal(err)
			}
			s := sink(t, addr, rabbitmq.SinkOptions{Exchange: name})
			for range 100 {
				if err := peertest.DeliverOne(t, s, "{}"); err != nil {
					return err
				}
			}
			return nil
		}},
		{Name: "a cut connection before the confirm, or half a frame", Means: peertest.ServerInDoubt, Deliver: peertest.Same(lost(true), lost(false))},
		{Name: "an exchange that was deleted (`NOT_FOUND`), at the first message; later, the pipeline looks first", Means: peertest.ServerInDoubt, Deliver: func(t *testing.T) error {
			name := servicestest.Topic()
			if err := with(url, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil)
			}); err != nil {
				t.Fatal(err)
			}
			s := sink(t, addr, rabbitmq.SinkOptions{Exchange: name, RoutingKey: "k"})
			if err := with(url, func(ch *amqp.Channel) error { return ch.ExchangeDelete(name, false, false) }); err != nil {
				t.Fatal(err)
			}
			return peertest.DeliverOne(t, s, "{}")
		}},
		{Name: "`PRECONDITION_FAILED`: the body is too large; headers that AMQP cannot carry", Means: peertest.MessageForGood, Deliver: func(t *testing.T) error {
			return peertest.DeliverOne(t, sink(t, addr, rabbitmq.SinkOptions{RoutingKey: queue(t, nil)}), strings.Repeat("x", 129<<20))
		}},
	})
}
