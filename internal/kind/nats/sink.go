package nats

import (
	"context"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Sink publishes to a subject of a stream, or to one that each message names.
type Sink struct {
	config.SinkBase
	Client
	Subject config.Target
	Stream  string
	Create  bool
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "nats" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Messages on a subject of a JetStream stream, with the headers of the message and headers with its key. A repeated attempt has the same `Nats-Msg-Id`, a redriven message another one.",
		Check: func(v schema.Value, _ schema.Members) {
			if s.Create && s.Stream == "" {
				v.Wrong("create needs the name of the stream: write stream")
			}
			if s.Create && s.Subject.Route != nil {
				v.Wrong("create needs one subject: leave it out, and create the stream with nats stream add")
			}
		},
		Fields: append(s.Client.fields(),
			config.TargetField("subject", &s.Subject, "Subject to publish to, or where each message names its subject.").Need(),
			schema.TextField("stream", &s.Stream, "Stream that must store the messages.").Means("the one that takes the subject"),
			schema.TruthField("create", &s.Create, "Create the stream if it does not exist: with files, one replica, and no limits.").Or("false"),
		),
	}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	return config.SinkAbout{
		Name:  "nats " + s.Subject.String(),
		Route: s.Subject.Route, Address: func(m *semel.Message) string { return s.Subject.Describe("subject ", m) },
		Drops:  s.drops(),
		Handed: "which stand in the headers Nats-Msg-Id, semel-key, semel-token and, from the second attempt on, semel-attempt",
		Exceptions: []string{
			"the server recognises a repeated attempt for its duplicate window only (two minutes by default); a stream that is not a limits stream forgets what it deleted when it is restarted",
			"a limits stream that removes a message within its duplicate window (max_age, max_msgs, max_bytes, a purge) stores it again if its attempt is repeated",
		},
	}
}

// Check implements config.Sink. It refuses subjects to which nothing can be published.
func (s *Sink) Check(c *config.Checker, p *config.Pipeline) {
	checkName(c, "pipelines."+p.Name+".sink.nats.stream", "stream", s.Stream)
	path := "pipelines." + p.Name + ".sink.nats.subject"
	names := s.Subject.Names()
	if s.Subject.Route != nil {
		for _, prefix := range s.Subject.Route.Prefixes() {
			names = append(names, prefix+"a") // any name that it allows
		}
	}
	for _, subject := range names {
		if why := notSubject(subject); why != "" {
			c.Report(c.Places[path], path, "nothing can be published to %q: %s", subject, why)
		}
	}
}

// notSubject says why a message cannot have a subject. It returns "" if it can.
func notSubject(subject string) string {
	if strings.Contains(subject, "${") { // a reference that is not resolved yet
		return ""
	}
	for _, token := range strings.Split(subject, ".") {
		switch {
		case token == "*" || token == ">":
			return "it is a pattern of subjects: write one subject, or { from: source, allow: [\"t.*\"] } if each message names its own"
		case token == "":
			return "a part between dots is empty"
		case strings.ContainsAny(token, " \t\r\n\x00"):
			return "it has white space"
		}
	}
	return ""
}

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) { l.LintTarget("sink.nats.subject", &s.Subject) }

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	client, err := s.options()
	if err != nil {
		return nil, err
	}
	return config.AsSink(nats.OpenSink(ctx, &nats.SinkOptions{
		URL: s.url(), Client: client, Subject: s.Subject.Name, Route: s.Subject.Route, Stream: s.Stream, Create: s.Create, Name: env.Pipeline.Name,
	}))
}

// with reports whether the sink is on the servers that the pipeline reads.
func (s *Sink) with(p *config.Pipeline) bool {
	source, ok := p.Source.(*Source)
	return ok && slices.Equal(source.Servers, s.Servers)
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) {
	if !s.with(x.Pipeline) {
		s.Client.examine(ctx, x, &nats.ExamineOptions{Subject: s.Subject.Name, Route: s.Subject.Route, CreateSubject: s.Create})
	}
}
