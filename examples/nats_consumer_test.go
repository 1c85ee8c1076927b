package examples_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestNATSConsumerChargesEachOrderOnce(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil) // its own, to kill
	url, stream := server.URL(), servicestest.Topic()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(bodies ...string) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a server that restarts takes a while
		defer cancel()
		for _, body := range bodies {
			if _, err := js.Publish(ctx, stream+".new", []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	args := []string{"-stream", stream, "-keys", t.TempDir(), "-ack-wait", "2s"}
	if output, err := start(t, []string{"NATS_URL=" + url}, "nats-consumer", args...).end(); err == nil || !strings.Contains(output, "-create") {
		t.Errorf("without the stream: %v\n%s", err, output)
	}
	args = append(args, "-create")
	consumer := start(t, []string{"NATS_URL=" + url}, "nats-consumer", args...)
	consumer.await("waiting for messages")
	publish(`{"event_id":"e1","customer":"a"}`, `{"event_id":"e2","customer":"b"}`, `{"event_id":"e1","customer":"a"}`, `not JSON`, `{"customer":"c"}`, `{"event_id":"e3","customer":"c"}`)
	consumer.await("charged e3")
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	consumer.await("waiting for the server")
	if err := errors.Join(server.Continue(), server.Kill()); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(`{"event_id":"e5","customer":"e"}`)
	consumer.await("charged e5")
	consumer.kill() // the acknowledgement of e5 may be lost
	publish(`{"event_id":"e3","customer":"c"}`, `{"event_id":"e4","customer":"d"}`)
	again := start(t, []string{"NATS_URL=" + url}, "nats-consumer", args...)
	again.await("charged e4")
	// The killed server may have forgotten acknowledgements, so messages come again.
	awaitAcknowledged(t, js, stream)
	again.stop()
	printed := consumer.printed.String() + again.printed.String()
	for _, id := range []string{"e1", "e2", "e3", "e4", "e5"} {
		if n := strings.Count(printed, " for "+id+"\n"); n != 1 {
			t.Errorf("%s was charged %d times:\n%s", id, n, printed)
		}
	}
	for _, reason := range []string{"parked invalid character", "is empty: invalid key"} {
		if !strings.Contains(printed, reason) {
			t.Errorf("no message was parked for %q:\n%s", reason, printed)
		}
	}
}

// awaitAcknowledged waits until the consumer of a stream has no message left.
func awaitAcknowledged(t *testing.T, js jetstream.JetStream, stream string) {
	t.Helper()
	consumer, err := js.Consumer(t.Context(), stream, "charges")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		info, err := consumer.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.NumPending == 0 && info.NumAckPending == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d messages were not delivered, and %d not acknowledged", info.NumPending, info.NumAckPending)
		}
		<-time.After(20 * time.Millisecond)
	}
}
