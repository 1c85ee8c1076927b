package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestExamineWarnsOfRiskyStreamSettings(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	js := client(t, servers.NATS(t))
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, Storage: jetstream.MemoryStorage, MaxMsgs: 10, Duplicates: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3, AckWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	findings, err := nats.Examine(t.Context(), &nats.ExamineOptions{URL: servers.NATS(t), Stream: name, Consumer: "c", Subject: name, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]doctor.Severity{}
	for _, f := range findings {
		got[strings.ReplaceAll(f.Subject, name, "S")] = f.Severity
	}
	for subject, want := range map[string]doctor.Severity{
		"stream S storage": doctor.Broken, "stream S replicas": doctor.Warning, "stream S discard": doctor.Warning, "stream S max_age": doctor.Notice,
		"consumer c max_deliver": doctor.Warning, "consumer c ack_wait": doctor.Warning, "consumer c ack_policy": doctor.Fine,
		"stream S duplicate_window": doctor.Warning, "sync_interval": doctor.Notice,
	} {
		if severity, ok := got[subject]; !ok || severity != want {
			t.Errorf("%s: %v, %v; want %v", subject, severity, ok, want)
		}
	}
}

// TestExamineTellsStreamsThatWillBeCreatedFromMissingOnes examines what does not exist.
func TestExamineTellsStreamsThatWillBeCreatedFromMissingOnes(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	stream(t, client(t, servers.NATS(t)), name)
	for _, c := range []struct {
		opts nats.ExamineOptions
		want doctor.Finding
	}{
		{nats.ExamineOptions{Stream: name, Consumer: "c"}, doctor.Finding{Severity: doctor.Broken, Subject: "consumer c", Found: "it does not exist"}},
		{nats.ExamineOptions{Stream: name, Consumer: "c", Create: true}, doctor.Finding{Severity: doctor.Notice, Subject: "consumer c", Found: "it does not exist yet"}},
		{nats.ExamineOptions{Stream: "none", Consumer: "c", Create: true}, doctor.Finding{Severity: doctor.Broken, Subject: "stream none", Found: "it does not exist"}},
		{nats.ExamineOptions{Stream: "none", Consumer: "c", Create: true, Subjects: []string{"none"}}, doctor.Finding{Severity: doctor.Notice, Subject: "stream none", Found: "it does not exist yet"}},
		{nats.ExamineOptions{Subject: name + "x"}, doctor.Finding{Severity: doctor.Broken, Subject: "subject " + name + "x", Found: "no stream takes it"}},
		{nats.ExamineOptions{Subject: name + "x", CreateSubject: true}, doctor.Finding{Severity: doctor.Notice, Subject: "stream of the subject " + name + "x", Found: "it does not exist yet"}},
		{nats.ExamineOptions{Stream: name, Consumer: "c", Window: 8 * 24 * time.Hour}, doctor.Finding{Severity: doctor.Notice, Subject: "stream " + name + " max_age", Found: "none: messages stay"}},
	} {
		c.opts.URL = servers.NATS(t)
		findings, err := nats.Examine(t.Context(), &c.opts)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range findings {
			if strings.HasSuffix(f.Subject, "max_age") && c.opts.Window != 0 && f.Remedy != "set max_age on the stream, shorter than the window (8d)" {
				t.Error(f.Remedy)
			}
			found = found || f.Severity == c.want.Severity && f.Subject == c.want.Subject && f.Found == c.want.Found
		}
		if !found {
			t.Errorf("%+v: %+v, want %+v", c.opts, findings, c.want)
		}
	}
}

// TestExamineComparesTheWindows has a stream that drops repeated ids for longer than the
// pipeline remembers keys.
func TestExamineComparesTheWindows(t *testing.T) {
	t.Parallel()
	name := servicestest.Topic()
	stream(t, client(t, servers.NATS(t)), name)
	for window, want := range map[time.Duration]doctor.Severity{time.Minute: doctor.Warning, time.Hour: doctor.Fine} {
		findings, err := nats.Examine(t.Context(), &nats.ExamineOptions{URL: servers.NATS(t), Subject: name + ".out", Window: window})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if strings.HasSuffix(f.Subject, " duplicate_window") && f.Severity != want {
				t.Errorf("with a window of %v: %v %s", window, f.Severity, f.Found)
			}
		}
	}
}

// TestAMissingRightIsNamed has users who may not do one thing each. The server answers
// their requests to no server.
func TestAMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	deny := func(name, what, subject string) string {
		return fmt.Sprintf(`{ user: %s, password: p, permissions: { %s: { deny: [%q] } } }`, name, what, subject)
	}
	server := servicestest.StartNATS(t, &services.NATSOptions{Config: "authorization { users: [ { user: all, password: p }, " + strings.Join([]string{
		deny("account", "publish", "$JS.API.INFO"), deny("stream", "publish", "$JS.API.STREAM.INFO.>"), deny("consumer", "publish", "$JS.API.CONSUMER.INFO.>"),
		deny("next", "publish", "$JS.API.CONSUMER.MSG.NEXT.>"), deny("inbox", "subscribe", "_INBOX.>"), deny("out", "publish", "S.out"),
	}, ", ") + " ] }"})
	as := func(user string) string { return "nats://" + user + ":p@" + server.Addr() }
	js := client(t, as("all"))
	s := stream(t, js, "S")
	if _, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	named := func(user string, err error, subject string) error {
		if !errors.Is(err, natsgo.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
			return fmt.Errorf("the user %s gets %w, want that it has no right to %s", user, err, subject)
		}
		return nil
	}
	for user, subject := range map[string]string{"account": "$JS.API.INFO", "stream": "$JS.API.STREAM.INFO.S", "consumer": "$JS.API.CONSUMER.INFO.S.c", "inbox": "_INBOX."} {
		var took time.Duration
		for range 3 { // on a machine that stands still, one of them may take long
			begun := time.Now()
			_, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: as(user), Stream: "S", Consumer: "c"})
			took = time.Since(begun)
			if err := named(user, err, subject); err != nil {
				t.Error(err)
			}
			if took < 8*time.Second {
				break
			}
		}
		if took >= 8*time.Second {
			t.Errorf("the answer to %s took %v: it waited for the end of the request", user, took)
		}
		_, err := nats.Examine(t.Context(), &nats.ExamineOptions{URL: as(user), Stream: "S", Consumer: "c", Window: time.Hour})
		if err := named(user, err, subject); err != nil {
			t.Error(err)
		}
	}
	source, err := nats.OpenSource(t.Context(), &nats.SourceOptions{URL: as("next"), Stream: "S", Consumer: "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close(context.WithoutCancel(t.Context()))
	again(t, func() error { return named("next", source.Ready(t.Context()), "$JS.API.CONSUMER.MSG.NEXT.S.c") })

	sink, err := nats.OpenSink(t.Context(), &nats.SinkOptions{URL: as("out"), Subject: "S.out"})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close(context.WithoutCancel(t.Context()))
	it := &pipeline.Item{}
	it.Call.Key.ID = "1"
	sink.Deliver(t.Context(), []*pipeline.Item{it})
	if _, unavailable := errors.AsType[*pipeline.UnavailableError](it.Err); !unavailable || errors.Is(it.Err, semel.ErrOutcomeUnknown) {
		t.Errorf("%v, want that the sink waits and that nothing is stored", it.Err)
	}
	if err := named("out", it.Err, "S.out"); err != nil {
		t.Error(err)
	}
}
