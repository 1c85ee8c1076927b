package nats_test

import (
	"context"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/internal/peertest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestServerAnswersAreClassifiedAsDocumented has the rows of NATS in the table of broker/ANSWERS.md. A
// subscriber without JetStream gives the answers that a stream cannot be made to give.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	url := servers.NATS(t)
	js := client(t, url)
	conn := js.Conn()
	sink := func(t *testing.T, url, subject string) *nats.Sink {
		t.Helper()
		s, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: url, Subject: subject})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		return s
	}
	stream := func(t *testing.T, config jetstream.StreamConfig) string {
		t.Helper()
		name := servicestest.Topic()
		config.Name, config.Subjects = name, []string{name}
		if _, err := js.CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		return name
	}
	// fake answers as a stream would, on a subject that no stream takes.
	fake := func(answer string) func(t *testing.T) error {
		return func(t *testing.T) error {
			name := stream(t, jetstream.StreamConfig{})
			s := sink(t, url, name)
			if err := js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			sub, err := conn.Subscribe(name, func(m *natsgo.Msg) { _ = m.Respond([]byte(answer)) })
			if err != nil {
				t.Fatal(err)
			}
			defer sub.Unsubscribe()
			if err := conn.Flush(); err != nil {
				t.Fatal(err)
			}
			return peertest.DeliverOne(t, s, "{}")
		}
	}
	full := func(t *testing.T) error {
		s := sink(t, url, stream(t, jetstream.StreamConfig{MaxBytes: 300, Discard: jetstream.DiscardNew}))
		for range 10 {
			if err := peertest.DeliverOne(t, s, string(make([]byte, 200))); err != nil {
				return err
			}
		}
		return nil
	}
	own := func(t *testing.T, end func(t *testing.T, s *nats.Sink) error) error {
		server := servicestest.StartNATS(t, nil)
		if _, err := client(t, server.URL()).CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
			t.Fatal(err)
		}
		s := sink(t, server.URL(), "s")
		t.Cleanup(func() { _ = server.Continue() })
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		return end(t, s)
	}
	peertest.RunAnswers(t, "NATS JetStream", []peertest.Answer{
		{Name: "no stream takes the subject (no responders)", Means: peertest.Server, Deliver: func(t *testing.T) error {
			name := stream(t, jetstream.StreamConfig{})
			s := sink(t, url, name)
			if err := js.DeleteStream(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			return peertest.DeliverOne(t, s, "{}")
		}},
		{Name: "an error of the stream with code 5xx: it is full, has no leader, no room", Means: peertest.Server, Deliver: peertest.Same(full,
			fake(`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}`), fake(`{"error":{"code":500,"err_code":10000,"description":"d"}}`))},
		{Name: "silence for 10 s, a cut connection, half an answer", Means: peertest.ServerInDoubt, Deliver: peertest.Same(fake(`{"stre`), func(t *testing.T) error {
			return own(t, func(t *testing.T, s *nats.Sink) error { return peertest.DeliverOne(t, s, "{}") })
		})},
		{Name: "another error of the stream, with code 4xx", Means: peertest.Message, Deliver: fake(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}`)},
		{Name: "a message larger than `max_payload` or the `max_msg_size` of the stream, or a header that NATS cannot carry", Means: peertest.MessageForGood, Deliver: func(t *testing.T) error {
			return peertest.DeliverOne(t, sink(t, url, stream(t, jetstream.StreamConfig{MaxMsgSize: 10})), string(make([]byte, 2000)))
		}},
	})
}
