package brokers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	natsadapter "github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

const (
	natsWindow     = time.Second // of the server's own deduplication
	natsPatience   = 2 * time.Second
	natsDeliveries = 5
)

var natsBroker = broker{
	name:  "nats",
	start: func(t *testing.T) *services.Server { return servicestest.StartNATS(t, nil) },
	prepare: func(t *testing.T, url string) {
		conn, js := connectNATS(t, url)
		defer conn.Close()
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}, Duplicates: natsWindow})
		if err == nil {
			_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: natsPatience, MaxDeliver: natsDeliveries})
		}
		if err == nil {
			_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OUT", Subjects: []string{"out"}, Duplicates: time.Hour})
		}
		if err == nil { // what the server gives up is in an advisory only
			stream, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "GIVENUP", Subjects: []string{"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.IN.c"}})
		}
		if err == nil {
			_, err = stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute})
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
			confirm, err := js.PublishAsync("in", []byte(body), jetstream.WithMsgID(idOf(body)))
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
	sink: func(addr string) string { return fmt.Sprintf("{ nats: { servers: [%q], subject: out } }", addr) },
	written: func(t *testing.T, url string, fn func(id, token, attempt string)) {
		err := natsadapter.ReadAll(t.Context(), url, nil, "OUT", nil, func(m *semel.Message) bool {
			token, _ := m.Header(header.Token)
			attempt, _ := m.Header(header.Attempt)
			id, _, _ := strings.Cut(strings.TrimPrefix(m.ID, "p:"), "#") // a digest follows
			fn(id, string(token), string(attempt))
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	},
	once:       true,
	deliveries: natsDeliveries,
	nearEnd:    natsDeliveries - 1,
	patience:   natsPatience,
	window:     natsWindow,
	revive:     reviveNATS,
}

// reviveNATS publishes the messages in advisories again.
func reviveNATS(ctx context.Context, url string, moved func(id string)) error {
	conn, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, "IN")
	if err != nil {
		return err
	}
	advisories, err := js.Consumer(ctx, "GIVENUP", "c")
	if err != nil {
		return err
	}
	batch, err := advisories.FetchNoWait(1000)
	if err != nil {
		return err
	}
	for advisory := range batch.Messages() {
		var of struct {
			Seq uint64 `json:"stream_seq"`
		}
		if err := json.Unmarshal(advisory.Data(), &of); err != nil {
			return err
		}
		msg, err := stream.GetMsg(ctx, of.Seq)
		if err != nil {
			return err
		}
		moved(idOf(string(msg.Data)))
		if _, err := js.Publish(ctx, "in", msg.Data); err != nil {
			return err
		}
		if err := advisory.DoubleAck(ctx); err != nil {
			return err
		}
	}
	return batch.Error()
}

func connectNATS(t *testing.T, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	return conn, js
}
