package nats_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// deliver delivers an item, which must succeed.
func deliver(t *testing.T, to *nats.Sink, it *pipeline.Item) {
	t.Helper()
	if to.Deliver(t.Context(), []*pipeline.Item{it}); it.Err != nil {
		t.Fatal(it.Err)
	}
}

// TestNATSDeduplicationDropsNoMessageOfAnotherTarget has two pipelines of one name that publish one id to
// two subjects of a stream, and another pipeline with the same subject.
func TestNATSDeduplicationDropsNoMessageOfAnotherTarget(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	s := stream(t, client(t, servers.NATS(t)), name)
	for _, of := range []nats.SinkOptions{{Subject: name + ".a", Name: "p"}, {Subject: name + ".b", Name: "p"}, {Subject: name + ".a", Name: "q"}} {
		of.URL = servers.NATS(t)
		out, err := nats.OpenSink(t.Context(), &of)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			deliver(t, out, item("orders", "1", of.Subject[len(name)+1:]+of.Name))
		}
		_ = out.Close(context.WithoutCancel(t.Context())) // it has delivered everything
	}
	if list, err := bodies(t.Context(), s); err != nil || fmt.Sprintf("%s", list) != "[ap bp aq]" {
		t.Errorf("stored %s, %v", list, err)
	}
}

// TestMessageIsStoredAgainWhenTheServerOnlyRemembersItsID has the server know an id without its
// message, as after a change of leaders that lost it. A stream that removes what was read
// knows the ids of such messages too, and they must not come again.
func TestMessageIsStoredAgainWhenTheServerOnlyRemembersItsID(t *testing.T) {
	t.Parallel()
	for retention, want := range map[jetstream.RetentionPolicy]uint64{jetstream.LimitsPolicy: 1, jetstream.WorkQueuePolicy: 0} {
		out, s := sink(t, jetstream.StreamConfig{Retention: retention})
		deliver(t, out, item("orders", "1", "a"))
		if err := s.DeleteMsg(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			deliver(t, out, item("orders", "1", "a"))
		}
		info, err := s.Info(t.Context())
		if err != nil || info.State.Msgs != want {
			t.Errorf("%v: %d messages, %v; want %d", retention, info.State.Msgs, err, want)
		}
	}
}

// TestMessageIDRememberedByTheServerDoesNotProveThatItIsStored has the stream lose each message
// that the sink stores, also those under the further ids.
func TestMessageIDRememberedByTheServerDoesNotProveThatItIsStored(t *testing.T) {
	t.Parallel()
	out, s := sink(t, jetstream.StreamConfig{})
	const ids = 4
	for seq := uint64(1); seq <= ids; seq++ {
		deliver(t, out, item("orders", "1", "a"))
		if err := s.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatalf("delivery %d stored nothing: %v", seq, err)
		}
	}
	it := item("orders", "1", "a")
	if out.Deliver(t.Context(), []*pipeline.Item{it}); !errors.Is(it.Err, semel.ErrOutcomeUnknown) {
		t.Errorf("the server has none of the messages, and the delivery ends with %v", it.Err)
	}
	deliver(t, out, item("orders", "2", "b")) // others are not affected
}
