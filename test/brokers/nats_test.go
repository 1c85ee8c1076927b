package brokers

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel/internal/services"
	"github.com/semel-dev/semel/internal/services/servicestest"
)

var natsBroker = broker{
	name:  "nats",
	start: func(t *testing.T) *services.Server { return servicestest.StartNATS(t, nil) },
	prepare: func(t *testing.T, url string) {
		conn, js := connectNATS(t, url)
		defer conn.Close()
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}})
		if err == nil {
			_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxDeliver: -1})
		}
		if err != nil {
			t.Fatal(err)
		}
	},
	produce: func(ctx context.Context, url string, bodies []string) error {
		conn, err := nats.Connect(url)
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn, jetstream.WithPublishAsyncTimeout(5*time.Second))
		if err != nil {
			return err
		}
		var confirms []jetstream.PubAckFuture
		for _, body := range bodies {
			confirm, err := js.PublishAsync("in", []byte(body))
			if err != nil {
				return err
			}
			confirms = append(confirms, confirm)
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
	},
	source: func(addr string) string {
		return fmt.Sprintf("{ nats: { servers: [%q], stream: IN, consumer: c } }", addr)
	},
	left: func(t *testing.T, url string) int {
		conn, js := connectNATS(t, url)
		defer conn.Close()
		consumer, err := js.Consumer(t.Context(), "IN", "c")
		if err != nil {
			t.Fatal(err)
		}
		info := consumer.CachedInfo()
		return int(info.NumPending) + info.NumAckPending
	},
}

func connectNATS(t *testing.T, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, js
}
