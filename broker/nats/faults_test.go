package nats_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// opened opens a source of a new stream with these messages.
func opened(t *testing.T, config jetstream.ConsumerConfig, bodies ...string) (jetstream.JetStream, *nats.Source, string) {
	t.Helper()
	name := servicestest.Topic()
	js := client(t, servers.NATS(t))
	s := stream(t, js, name)
	config.Durable = "c"
	if _, err := s.CreateConsumer(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	for _, body := range bodies {
		if _, err := js.Publish(t.Context(), name+".in", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: servers.NATS(t), Stream: name, Consumer: "c", MaxBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return js, source, name
}

func read(t *testing.T, source *nats.Source, want int) (items []*pipeline.Item) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(items) < want {
		more, err := source.Read(ctx)
		if err != nil {
			t.Fatalf("%d of %d messages: %v", len(items), want, err)
		}
		items = append(items, more...)
	}
	return items
}

// nothing fails the test if a message comes within d.
func nothing(t *testing.T, source *nats.Source, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if items, err := source.Read(ctx); err == nil {
		t.Errorf("%d messages came, want none; the first was delivered %d times", len(items), items[0].Message.Origin.Delivery)
	}
}

// TestAConfirmedAcknowledgementWaitsForTheServer pauses the server, so that it confirms
// nothing.
func TestAConfirmedAcknowledgementWaitsForTheServer(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil)
	name := servicestest.Topic()
	js := client(t, server.URL())
	s := stream(t, js, name)
	source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: server.URL(), Stream: name, Consumer: "c", Create: true, ConfirmAcks: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close(context.WithoutCancel(t.Context())) })
	for _, body := range []string{"1", "2"} {
		if _, err := js.Publish(t.Context(), name+".in", []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	items := read(t, source, 2)
	if err := source.Ack(t.Context(), items[:1]); err != nil {
		t.Fatal(err)
	}
	consumer, err := s.Consumer(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if at := consumer.CachedInfo().AckFloor.Stream; at != 1 {
		t.Errorf("after the acknowledgement of the first message, all up to %d are acknowledged", at)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := source.Ack(ctx, items[1:]); err == nil {
		t.Error("the acknowledgement is confirmed by a server that stands still")
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	if err := source.Ack(t.Context(), items[1:]); err != nil {
		t.Error(err)
	}
}

// TestAnEffectMayTakeLongerThanTheAckWait needs the heartbeat: without it the server
// delivers the message again after the ack wait. Between two heartbeats, which come after a third
// of that time, a slow machine may stand still for some seconds.
func TestAnEffectMayTakeLongerThanTheAckWait(t *testing.T) {
	t.Parallel()
	const wait = 9 * time.Second
	_, source, _ := opened(t, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait}, "one")
	items := read(t, source, 1)
	nothing(t, source, wait+wait/2)
	if err := source.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	nothing(t, source, wait+time.Second)
}

// TestReturnedMessagesDoNotReachTheDeliveryLimit returns a message that the server
// delivers only twice.
func TestReturnedMessagesDoNotReachTheDeliveryLimit(t *testing.T) {
	t.Parallel()
	_, source, _ := opened(t, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 2}, "one")
	for range 5 {
		items := read(t, source, 1)
		if got := items[0].Message.Origin.Delivery; got != 1 {
			t.Errorf("delivery %d, want 1", got)
		}
		if err := source.Return(t.Context(), items, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if err := source.Ack(t.Context(), read(t, source, 1)); err != nil {
		t.Fatal(err)
	}
	nothing(t, source, 100*time.Millisecond)
}

// TestAParkedMessageIsTerminated looks at what the server announces.
func TestAParkedMessageIsTerminated(t *testing.T) {
	t.Parallel()
	js, source, name := opened(t, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy}, "one")
	advisories, err := js.Conn().SubscribeSync("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + name + ".c")
	if err != nil {
		t.Fatal(err)
	}
	if err := js.Conn().Flush(); err != nil { // the server knows the subscription
		t.Fatal(err)
	}
	items := read(t, source, 1)
	items[0].Parked = pipeline.ReasonPermanent
	if err := source.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	advisory, err := advisories.NextMsg(2 * time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(advisory.Data), `"reason":"permanent"`) {
		t.Errorf("the advisory %s does not say why", advisory.Data)
	}
}

// TestAMessageLargerThanTheRequestIsRead has one among small ones.
func TestAMessageLargerThanTheRequestIsRead(t *testing.T) {
	t.Parallel()
	_, source, _ := opened(t, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy}, "a", strings.Repeat("x", 500<<10), "b")
	items := read(t, source, 3)
	if got := len(items[1].Message.Body); got != 500<<10 {
		t.Errorf("the second message has %d bytes", got)
	}
	if err := source.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
}

func TestAConsumerThatForgetsMessagesIsRefused(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	s := stream(t, client(t, servers.NATS(t)), name)
	for setting, config := range map[string]jetstream.ConsumerConfig{
		"ack policy":    {AckPolicy: jetstream.AckAllPolicy},
		"headers_only":  {AckPolicy: jetstream.AckExplicitPolicy, HeadersOnly: true},
		"max_deliver 1": {AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 1},
	} {
		config.Durable = "c"
		if _, err := s.CreateConsumer(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		_, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: servers.NATS(t), Stream: name, Consumer: "c"})
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), setting) {
			t.Errorf("%v, want a refusal that names %s", err, setting)
		}
		if err := s.DeleteConsumer(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBodiesThatAConsumerLeavesOutAreNotDelivered edits the consumer of an open source.
func TestBodiesThatAConsumerLeavesOutAreNotDelivered(t *testing.T) {
	t.Parallel()
	const wait = 10 * time.Second // a slow machine acknowledges the first message before it comes again
	js, source, name := opened(t, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait}, "one")
	if err := source.Ack(t.Context(), read(t, source, 1)); err != nil {
		t.Fatal(err)
	}
	edit := func(headersOnly bool) {
		t.Helper()
		if _, err := js.UpdateConsumer(t.Context(), name, jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: wait, HeadersOnly: headersOnly}); err != nil {
			t.Fatal(err)
		}
	}
	edit(true)
	if _, err := js.Publish(t.Context(), name+".in", []byte("two")); err != nil {
		t.Fatal(err)
	}
	again(t, func() error {
		if err := source.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "headers_only") {
			return fmt.Errorf("want that the consumer is headers_only, got %w", err)
		}
		return nil
	})
	edit(false)
	if items := read(t, source, 1); string(items[0].Message.Body) != "two" {
		t.Errorf("the body is %q", items[0].Message.Body)
	}
}

func TestMissingPartsAreNamed(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	stream(t, client(t, servers.NATS(t)), name)
	for want, open := range map[string]func() error{
		"there is no stream " + name + "x": func() error {
			_, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: servers.NATS(t), Stream: name + "x", Consumer: "c"})
			return err
		},
		"stream " + name + " has no consumer c": func() error {
			_, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: servers.NATS(t), Stream: name, Consumer: "c"})
			return err
		},
		"no stream takes the subject " + name + "x": func() error {
			_, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: servers.NATS(t), Subject: name + "x"})
			return err
		},
	} {
		var missing *nats.MissingError
		err := open()
		if !errors.As(err, &missing) || missing.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if class := semel.Classify(err); class != semel.ClassRetryable {
			t.Errorf("%v: %v: what is missing may be created", err, class)
		}
	}
}

// sink opens a sink of a new stream.
func sink(t *testing.T, config jetstream.StreamConfig) (*nats.Sink, jetstream.Stream) {
	t.Helper()
	name := servicestest.Topic()
	config.Name, config.Subjects = name, []string{name}
	s, err := client(t, servers.NATS(t)).CreateStream(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	out, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: servers.NATS(t), Subject: name, Name: "p"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close(context.WithoutCancel(t.Context())) })
	return out, s
}

func item(scope, id, body string) *pipeline.Item {
	it := &pipeline.Item{}
	it.Call.Key = semel.Key{Scope: scope, ID: id}
	it.Message.Body = []byte(body)
	return it
}

// TestARepeatedAttemptIsStoredOnceAndARedriveIsNot delivers the same key again: as
// another attempt, as a redrive, and in another scope.
func TestARepeatedAttemptIsStoredOnceAndARedriveIsNot(t *testing.T) {
	t.Parallel()
	out, s := sink(t, jetstream.StreamConfig{})
	redriven, other := item("orders", "7", "c"), item("refunds", "7", "d")
	redriven.Redrive = 1
	for _, it := range []*pipeline.Item{item("orders", "7", "a"), item("orders", "7", "b"), redriven, other, item("orders", "a\x00b", "e"), item("orders", "a\x00b", "f")} {
		out.Deliver(t.Context(), []*pipeline.Item{it})
		if it.Err != nil {
			t.Error(it.Err)
		}
	}
	list, err := bodies(t.Context(), s)
	if got := fmt.Sprintf("%s", list); err != nil || got != "[a c d e]" {
		t.Errorf("stored %s, %v", got, err)
	}
}

// TestInstructionsToTheServerAreNotForwarded has a header that would make the server
// refuse the message, and one that NATS cannot carry.
func TestInstructionsToTheServerAreNotForwarded(t *testing.T) {
	t.Parallel()
	out, s := sink(t, jetstream.StreamConfig{})
	it, broken := item("orders", "1", "a"), item("orders", "2", "b")
	it.Message.Headers = []semel.Header{{Name: "Nats-Expected-Last-Sequence", Value: []byte("99")}, {Name: "kind", Value: []byte("new")}, {Name: "semel-key", Value: []byte("old")}}
	broken.Message.Headers = []semel.Header{{Name: "kind", Value: []byte("two\nlines")}}
	out.Deliver(t.Context(), []*pipeline.Item{it, broken})
	var permanent *semel.PermanentError
	if it.Err != nil || !errors.As(broken.Err, &permanent) {
		t.Fatalf("%v and %v, want success and a permanent error", it.Err, broken.Err)
	}
	msg, err := s.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if msg.Header.Get("kind") != "new" || msg.Header.Get("semel-key") != "1" || msg.Header.Get("semel-pipeline") != "p" || !strings.HasPrefix(msg.Header.Get("Nats-Msg-Id"), "orders:1#") {
		t.Errorf("headers: %v", msg.Header)
	}
}

// TestAFullStreamIsUnavailable counts no attempt for a message that a stream with
// discard: new refuses.
func TestAFullStreamIsUnavailable(t *testing.T) {
	t.Parallel()
	out, _ := sink(t, jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew})
	first, second, large := item("o", "1", "a"), item("o", "2", "b"), item("o", "3", strings.Repeat("x", 2<<20))
	out.Deliver(t.Context(), []*pipeline.Item{first, second, large})
	var unavailable *pipeline.UnavailableError
	if first.Err != nil || !errors.As(second.Err, &unavailable) {
		t.Errorf("%v and %v, want success and that the target is unavailable", first.Err, second.Err)
	}
	var permanent *semel.PermanentError
	if !errors.As(large.Err, &permanent) {
		t.Errorf("a message above the server's limit: %v, want a permanent error", large.Err)
	}
}

// TestLostConnectionNamesTheServers ends the server of an open source and sink.
func TestLostConnectionNamesTheServers(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil)
	name := servicestest.Topic()
	stream(t, client(t, server.URL()), name)
	source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: server.URL(), Stream: name, Consumer: "c", Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close(context.WithoutCancel(t.Context())) })
	out, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: server.URL(), Subject: name + ".a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close(context.WithoutCancel(t.Context())) })
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	want := "no NATS server answers at " + server.Addr()
	tick, late := time.NewTicker(10*time.Millisecond), time.After(2*time.Minute)
	defer tick.Stop()
	for err = nil; err == nil || err.Error() != "nats: "+want; err = source.Ready(t.Context()) { // until the client knows
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(err)
		}
	}
	if text, _ := source.WaitsFor(t.Context()); text != "an answer of NATS: "+want {
		t.Error(text)
	}
	again(t, func() error { // until the client of the sink knows, too
		it := item("o", "1", "a")
		out.Deliver(t.Context(), []*pipeline.Item{it})
		var unavailable *pipeline.UnavailableError
		if !errors.As(it.Err, &unavailable) || unavailable.Err.Error() != "nats: "+want {
			return fmt.Errorf("%w, want that %s", it.Err, want)
		}
		return nil
	})
	if _, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: server.URL(), Subject: name + ".a"}); err == nil || err.Error() != "nats: connect: "+want || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("%v, want that %s", err, want)
	}
}

func TestReadAllReadsWithoutAConsumer(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	js := client(t, servers.NATS(t))
	s := stream(t, js, name)
	for _, subject := range []string{"a.new", "b.new", "a.old", "c"} {
		if _, err := js.Publish(t.Context(), name+"."+subject, []byte(subject)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string]string{"": "[a.new a.old c]", ".a.*": "[a.new a.old]", ".*.old": "[a.old]", ".>": "[a.new a.old c]", ".a": "[]"} {
		var subjects, got []string
		if pattern != "" {
			subjects = []string{name + pattern}
		}
		err := nats.ReadAll(t.Context(), servers.NATS(t), nil, name, subjects, func(m *semel.Message) bool {
			got = append(got, string(m.Body))
			return true
		})
		if text := fmt.Sprint(got); err != nil || text != want {
			t.Errorf("%q: %s, %v; want %s", pattern, text, err, want)
		}
	}
}

// TestReadNewestBeginsAtATime has gaps where the search for the time looks.
func TestReadNewestBeginsAtATime(t *testing.T) {
	t.Parallel()
	name, url := servicestest.Topic(), servers.NATS(t)
	js := client(t, url)
	s := stream(t, js, name)
	for n := range 20 {
		if _, err := js.Publish(t.Context(), name+".a", fmt.Append(nil, n+1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, sequence := range []uint64{1, 10, 11, 12, 20} {
		if err := s.DeleteMsg(t.Context(), sequence); err != nil {
			t.Fatal(err)
		}
	}
	at := func(sequence uint64) time.Time {
		m, err := s.GetMsg(t.Context(), sequence)
		if err != nil {
			t.Fatal(err)
		}
		return m.Time
	}
	for _, c := range []struct {
		since time.Time
		most  int64
		want  string
		left  bool
	}{
		{at(17), 0, "[17 18 19]", false},
		{at(13).Add(-time.Nanosecond), 0, "[13 14 15 16 17 18 19]", false},
		{at(19).Add(time.Nanosecond), 0, "[]", false},
		{at(2), 3, "[18 19]", true},
		{at(18), 3, "[18 19]", false},
		{time.Time{}, 2, "[19]", true},
	} {
		var got []string
		left, err := nats.ReadNewest(t.Context(), url, nil, name, nil, c.since, c.most, func(m *semel.Message) bool {
			got = append(got, string(m.Body))
			return true
		})
		if text := fmt.Sprint(got); err != nil || text != c.want || left != c.left {
			t.Errorf("since %s, %d: %s, %v, %v; want %s, %v", c.since, c.most, text, left, err, c.want, c.left)
		}
	}
	for pattern, want := range map[string]string{name + ".a": "[" + name + "]", name + ".>": "[" + name + "]", name + "x.>": "[]"} {
		if names, err := nats.Streams(t.Context(), url, nil, pattern); err != nil || fmt.Sprint(names) != want {
			t.Errorf("%s: %v, %v, want %s", pattern, names, err, want)
		}
	}
}

// again calls what until it succeeds.
func again(t *testing.T, what func() error) {
	t.Helper()
	tick, late := time.NewTicker(20*time.Millisecond), time.After(3*time.Minute)
	defer tick.Stop()
	for {
		err := what()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(err)
		}
	}
}

// TestRefusedCredentialsAreRetried has a server whose password is wrong for a while.
func TestRefusedCredentialsAreRetried(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, &services.NATSOptions{Config: "authorization { user: u, password: right }"})
	change := func(from, to string) {
		t.Helper()
		name := filepath.Join(server.Dir(), "nats.conf")
		config, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(name, []byte(strings.ReplaceAll(string(config), from, to)), 0o600)
		}
		if err = errors.Join(err, os.Chmod(name, 0o644), server.Kill()); err == nil {
			err = server.Restart(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var refusals [2]atomic.Int32 // of the source and of the sink
	client := func(n int) []natsgo.Option {
		return []natsgo.Option{natsgo.UserInfo("u", "right"), natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
			if errors.Is(err, natsgo.ErrAuthorization) {
				refusals[n].Add(1)
			}
		})}
	}
	source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: server.URL(), Client: client(0), Stream: "S", Consumer: "c", Create: true, Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close(context.WithoutCancel(t.Context())) })
	sink, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: server.URL(), Client: client(1), Subject: "s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(context.WithoutCancel(t.Context())) })
	change("right", "wrong")
	again(t, func() error {
		if a, b := refusals[0].Load(), refusals[1].Load(); a < 3 || b < 3 {
			return fmt.Errorf("the server has refused the source %d times and the sink %d times", a, b)
		}
		return nil
	})
	for name, err := range map[string]error{"source": source.Ready(t.Context()), "sink": func() error {
		it := item("o", "1", "a")
		sink.Deliver(t.Context(), []*pipeline.Item{it})
		return it.Err
	}()} {
		if !errors.Is(err, natsgo.ErrAuthorization) {
			t.Errorf("the %s says %v, want that the server refuses the credentials", name, err)
		}
	}
	change("wrong", "right")
	again(t, func() error {
		it := item("o", "1", "a")
		sink.Deliver(t.Context(), []*pipeline.Item{it})
		return it.Err
	})
	read(t, source, 1)
}

// TestAClosedConnectionIsReplaced has a message whose subject is longer than the server
// reads. The client library closes the connection permanently then.
func TestAClosedConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, &services.NATSOptions{Config: "max_control_line: 1024"})
	js := client(t, server.URL())
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	untilClosed, closed := context.WithCancel(t.Context())
	defer closed()
	source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: server.URL(), Stream: "S", Consumer: "c", Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close(context.WithoutCancel(t.Context())) })
	route, err := pipeline.NewRoute("source", "s.*")
	if err != nil {
		t.Fatal(err)
	}
	sink, err := nats.OpenSink(t.Context(), &nats.SinkOptions{
		URL: server.URL(), Route: route, Client: []natsgo.Option{natsgo.ClosedHandler(func(*natsgo.Conn) { closed() })},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(context.WithoutCancel(t.Context())) })
	deliver := func(ctx context.Context, subjects ...string) (items []*pipeline.Item) {
		for i, subject := range subjects {
			it := item("o", fmt.Sprint(i), "a")
			it.Message.Origin.Source = "s." + subject
			items = append(items, it)
		}
		sink.Deliver(ctx, items)
		return items
	}
	// This one is refused before it is sent.
	for i, it := range deliver(t.Context(), "a", strings.Repeat("x", 5000), "b") {
		if isLong := i == 1; errors.Is(it.Err, pipeline.ErrRoute) != isLong || (it.Err == nil) == isLong {
			t.Errorf("message %d: %v", i, it.Err)
		}
	}
	deliver(untilClosed, strings.Repeat("x", 2000))
	select { // the delivery may end before the handler is called
	case <-untilClosed.Done():
	case <-time.After(2 * time.Minute):
		t.Fatal("the connection is not closed")
	}
	if it := deliver(t.Context(), "c")[0]; it.Err != nil {
		t.Error(it.Err)
	}
	read(t, source, 2) // the third one has the id of the first
}

// TestADeletedConsumerIsLookedUpAgain deletes the consumer of an open source.
func TestADeletedConsumerIsLookedUpAgain(t *testing.T) {
	t.Parallel()
	for _, create := range []bool{true, false} {
		name := servicestest.Topic()
		js := client(t, servers.NATS(t))
		s := stream(t, js, name)
		config := jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy}
		if _, err := s.CreateConsumer(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: servers.NATS(t), Stream: name, Consumer: "c", Create: create})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = source.Close(context.WithoutCancel(t.Context())) })
		if err := s.DeleteConsumer(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), name+".a", nil); err != nil {
			t.Fatal(err)
		}
		if !create {
			again(t, func() error {
				err := source.Ready(t.Context())
				if missing := new(nats.MissingError); !errors.As(err, &missing) || missing.Consumer != "c" {
					return fmt.Errorf("the source is ready: %w", err)
				}
				return nil
			})
			if _, err := s.CreateConsumer(t.Context(), config); err != nil {
				t.Fatal(err)
			}
		}
		read(t, source, 1)
		if err := source.Ready(t.Context()); err != nil {
			t.Errorf("a message has come, and the source is not ready: %v", err)
		}
	}
}

// TestAnIDKeepsItsSpaces publishes ids that a header would lose a part of.
func TestAnIDKeepsItsSpaces(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	s := stream(t, client(t, servers.NATS(t)), name)
	sink, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: servers.NATS(t), Subject: name + ".out"})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close(context.WithoutCancel(t.Context()))
	ids := []string{"a ", " a", "\ta", "a\n", "a b", "ü\u00a0"}
	var items []*pipeline.Item
	for _, id := range ids {
		it := &pipeline.Item{}
		it.Call.Key.ID = id
		items = append(items, it)
	}
	sink.Deliver(t.Context(), items)
	for i, id := range ids {
		if items[i].Err != nil {
			t.Errorf("%q: %v", id, items[i].Err)
			continue
		}
		msg, err := s.GetMsg(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		got := msg.Header.Get("semel-key")
		if encoded := msg.Header.Get("semel-key-base64"); encoded != "" {
			text, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				t.Error(err)
			}
			got = string(text)
		}
		if got != id {
			t.Errorf("the id %q arrives as %q", id, got)
		}
	}
}
