package nats_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// client connects to a server for as long as the test runs.
func client(tb testing.TB, url string) jetstream.JetStream {
	tb.Helper()
	conn, err := natsgo.Connect(url, natsgo.Timeout(time.Minute), natsgo.MaxReconnects(-1), natsgo.ReconnectWait(20*time.Millisecond), natsgo.ReconnectBufSize(-1))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	return streams(tb, conn)
}

// streams returns the JetStream of a connection. The defaults of the client library, 2 s for a
// connection and 5 s for an answer, are short for a slow machine.
func streams(tb testing.TB, conn *natsgo.Conn) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		tb.Fatal(err)
	}
	return js
}

func stream(tb testing.TB, js jetstream.JetStream, name string) jetstream.Stream {
	tb.Helper()
	s, err := js.CreateStream(tb.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// restart kills a server and starts it again.
func restart(server *services.Server) func(context.Context) error {
	return func(ctx context.Context) error {
		return errors.Join(server.Kill(), server.Restart(ctx))
	}
}

func TestSourcePassesTheSuite(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil)
	// wait is how long the server waits for an acknowledgement. It is short, because some cases
	// acknowledge nothing. With a limit of deliveries it is longer than a slow machine stands
	// still, because that would use deliveries up.
	place := func(tb testing.TB, deliveries int, wait time.Duration) brokertest.SourcePlace {
		name := servicestest.Topic()
		js := client(tb, server.URL())
		create := func(ctx context.Context) error {
			_, err := stream(tb, js, name).CreateConsumer(ctx, jetstream.ConsumerConfig{
				Durable: "orders", AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, MaxDeliver: deliveries,
			})
			return err
		}
		if err := create(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		open := func(ctx context.Context, url string) (pipeline.Source, error) {
			return nats.OpenSource(ctx, &nats.SourceOptions{URL: url, Stream: name, Consumer: "orders", Create: true, AckWait: wait})
		}
		return brokertest.SourcePlace{
			Partitions: 3,
			Produce: func(ctx context.Context, list []brokertest.Numbered) error {
				for _, m := range list {
					for { // until the server has it
						attempt, cancel := context.WithTimeout(ctx, time.Second)
						msg := natsgo.NewMsg(name + "." + strconv.Itoa(m.Partition))
						msg.Data = m.Body
						for _, h := range m.Headers {
							msg.Header.Add(h.Name, string(h.Value))
						}
						_, err := js.PublishMsg(attempt, msg, jetstream.WithMsgID(strconv.Itoa(m.Partition)+"-"+strconv.Itoa(m.Place)))
						cancel()
						if err == nil {
							break
						}
						if ctx.Err() != nil {
							return ctx.Err()
						}
					}
				}
				return nil
			},
			Open:   func(ctx context.Context) (pipeline.Source, error) { return open(ctx, server.URL()) },
			Server: server.Addr(),
			OpenAt: func(ctx context.Context, address string) (pipeline.Source, error) {
				return open(ctx, "nats://"+address)
			},
			Again: func(ctx context.Context) error {
				if err := js.DeleteStream(ctx, name); err != nil {
					return err
				}
				return create(ctx)
			},
			Restart: restart(server),
		}
	}
	brokertest.RunSource(t, brokertest.SourceHarness{
		// The server writes the acknowledgements of a consumer a moment after it has answered them.
		Unordered: true, ForgetsAcks: true,
		New:        func(tb testing.TB) brokertest.SourcePlace { return place(tb, -1, time.Second) },
		NewLimited: func(tb testing.TB) brokertest.SourcePlace { return place(tb, 4, 15*time.Second) },
	})
}

func TestSinkPassesTheSuite(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil)
	brokertest.RunSink(t, brokertest.SinkHarness{New: func(tb testing.TB) brokertest.SinkTarget {
		name := servicestest.Topic()
		s := stream(tb, client(tb, server.URL()), name)
		open := func(ctx context.Context, url string) (pipeline.Sink, error) {
			return nats.OpenSink(ctx, &nats.SinkOptions{URL: url, Subject: name + ".out"})
		}
		return brokertest.SinkTarget{
			Sink:    func(ctx context.Context) (pipeline.Sink, error) { return open(ctx, server.URL()) },
			Server:  server.Addr(),
			SinkAt:  func(ctx context.Context, address string) (pipeline.Sink, error) { return open(ctx, "nats://"+address) },
			Refused: make([]byte, 2<<20), // a server takes 1 MiB
			Effects: func(ctx context.Context) ([]brokertest.Effect, error) { return effects(ctx, s) },
			Restart: restart(server),
		}
	}})
}

// bodies returns the bodies that a stream has stored.
func bodies(ctx context.Context, s jetstream.Stream) (list [][]byte, err error) {
	stored, err := effects(ctx, s)
	for _, e := range stored {
		list = append(list, e.Body)
	}
	return list, err
}

// effects returns what a stream has stored.
func effects(ctx context.Context, s jetstream.Stream) (list []brokertest.Effect, err error) {
	info, err := s.Info(ctx)
	if err != nil {
		return nil, err
	}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		msg, err := s.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		e := brokertest.Effect{Body: msg.Data}
		for name, values := range msg.Header {
			for _, value := range values {
				e.Headers = append(e.Headers, semel.Header{Name: name, Value: []byte(value)})
			}
		}
		list = append(list, e)
	}
	return list, nil
}
