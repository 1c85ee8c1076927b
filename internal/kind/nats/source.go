package nats

import (
	"context"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Source reads a durable pull consumer.
type Source struct {
	config.SourceBase
	Client
	Stream, Consumer string
	Subjects         []string
	Create           bool
	ConfirmAcks      bool
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "nats" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Messages of a JetStream stream, read through a durable pull consumer, which processes share.",
		Fields: append(s.Client.fields(),
			schema.TextField("stream", &s.Stream, "Name of the stream.").Need(),
			schema.TextField("consumer", &s.Consumer, "Name of the durable consumer.").Need(),
			schema.TextsField("subjects", &s.Subjects, "Subjects to read, if `create` makes the consumer.").Means("all"),
			schema.TruthField("create", &s.Create, "Create the consumer if it does not exist, and the stream if `subjects` are given: with files, one replica, and no limits.").Or("false"),
			schema.TruthField("confirm_acks", &s.ConfirmAcks, "Wait until the server confirms each acknowledgement. Without it, a lost acknowledgement leads to a duplicate, which is recognised.").Or("false"),
		),
	}
}

// About implements config.Source.
func (s *Source) About(*config.Pipeline) config.SourceAbout {
	return config.SourceAbout{
		Name: "nats " + s.Stream + " as " + s.Consumer, Shared: true, Drops: s.drops(),
		Again: "the server delivers the message again when the ack wait of the consumer has passed",
		Never: func(r *key.Rule) string {
			if r.Form() == key.FormRecordKey {
				return "a message of NATS has no record key"
			}
			return ""
		},
		AfterAck:  config.AfterAck{Unsure: "the server may not have kept the acknowledgement", Again: "a message that is delivered again", Gets: "is acknowledged without effect"},
		TakesBack: "the server delivers it again after %s",
		Exceptions: []string{
			"a message that came almost as often as max_deliver of the consumer permits is parked without an attempt, with the reason deliveries: each end of a process that has it counts, also in an outage of the target",
			"a server confirms a message before it is on the disk (sync_interval, two minutes by default): what it had not written when it lost power is lost",
		},
	}
}

// Check implements config.Source. It refuses names that no server accepts.
func (s *Source) Check(c *config.Checker, p *config.Pipeline) {
	path := "pipelines." + p.Name + ".source.nats."
	checkName(c, path+"stream", "stream", s.Stream)
	checkName(c, path+"consumer", "consumer", s.Consumer)
}

// checkName reports a name that no stream or consumer can have.
func checkName(c *config.Checker, path, what, name string) {
	if strings.Contains(name, "${") { // a reference that is not resolved yet
		return
	}
	if err := nats.CheckName(name); err != nil {
		c.Report(c.Places[path], path, "no %s can have the name %q: %v", what, name, err)
	}
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if at := l.At("source.nats.subjects"); len(s.Subjects) > 0 && !s.Create {
		l.Notice(at, "it has no effect without create", "the consumer at the server decides which subjects it delivers", "leave it out, or set create: true")
	}
	for _, p := range l.File.Pipelines {
		if p == l.Pipeline {
			return
		}
		other, ok := p.Source.(*Source)
		if ok && other.Stream == s.Stream && other.Consumer == s.Consumer && slices.ContainsFunc(s.Servers, func(a string) bool { return slices.Contains(other.Servers, a) }) {
			l.Add(doctor.Warning, config.Loss, l.At("source.nats.consumer"), s.Consumer+", which reads "+s.Stream+" in pipeline "+p.Name+" too", "each of the two gets only a part of the messages", "use another consumer")
		}
	}
}

// Open implements config.Source.
func (s *Source) Open(ctx context.Context, _ *config.Env) (pipeline.Source, error) {
	client, err := s.options()
	if err != nil {
		return nil, err
	}
	return config.AsSource(nats.OpenSource(ctx, &nats.SourceOptions{
		URL: s.url(), Client: client, Stream: s.Stream, Consumer: s.Consumer, Subjects: s.Subjects, Create: s.Create, ConfirmAcks: s.ConfirmAcks,
	}))
}

// Sample implements config.Source. It reads the stream without a consumer.
func (s *Source) Sample(ctx context.Context, _ *config.Pipeline, fn func(*semel.Message) bool) error {
	client, err := s.options()
	if err != nil {
		return err
	}
	err = nats.ReadAll(ctx, s.url(), client, s.Stream, s.Subjects, fn)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// Examine implements config.Kind. It also examines a sink on the same servers.
func (s *Source) Examine(ctx context.Context, x *config.Examination) {
	opts := &nats.ExamineOptions{Stream: s.Stream, Consumer: s.Consumer, Create: s.Create, Subjects: s.Subjects}
	if sink, ok := x.Pipeline.Sink.(*Sink); ok && sink.with(x.Pipeline) {
		opts.Subject, opts.Route, opts.CreateSubject = sink.Subject.Name, sink.Subject.Route, sink.Create
	}
	s.Client.examine(ctx, x, opts)
}

func (c *Client) examine(ctx context.Context, x *config.Examination, opts *nats.ExamineOptions) {
	client, err := c.options()
	if err == nil {
		opts.URL, opts.Client, opts.Window = c.url(), client, x.Pipeline.Window
		var findings []doctor.Finding
		findings, err = nats.Examine(ctx, opts)
		x.Add(findings)
	}
	x.Fail("", err)
}
