package sqs

import (
	"context"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Sink sends to a queue, or to one that each message names.
type Sink struct {
	config.SinkBase
	Queue  // URL is that of Target, if it has one queue
	Target config.Target
	// Account is the URL before the names of queues that messages name.
	Account string
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "sqs" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{
		Doc:   "Messages in a queue of Amazon SQS, with headers and key as attributes. In a FIFO queue the record key, or else the key, becomes the message group, and a repeated attempt has the same MessageDeduplicationId. A redriven message has another one.",
		Check: s.check,
		Fields: []schema.Field{
			config.TargetField("queue", &s.Target, "URL of the queue, as `aws sqs get-queue-url` prints it, or where each message names its queue. It also decides the region and the server.").Need(),
			schema.TextField("account", &s.Account, "URL before the name of a queue, such as `https://sqs.eu-west-1.amazonaws.com/123456789012`, if messages name their queues.").Means("none"),
			s.profile(),
		},
	}
}

// check reports a URL that cannot be one of a queue, and a missing account.
func (s *Sink) check(v schema.Value, there schema.Members) {
	_, given := there["account"]
	switch {
	case s.Target.Route != nil && !given:
		v.Wrong("account is missing: write the URL before the names of the queues, such as https://sqs.eu-west-1.amazonaws.com/123456789012")
	case s.Target.Name != "" && given:
		v.Wrong("account has no effect beside the URL of one queue: leave it out")
	case s.Target.Route != nil:
		checkURL(v, "account", s.example())
		for _, name := range s.Target.Route.Names() {
			checkName(v, "queue", name)
		}
	default:
		s.URL = s.Target.Name
		checkURL(v, "queue", s.URL)
	}
}

// queueURL returns the URL of a queue that a message names.
func (s *Sink) queueURL(name string) string { return strings.TrimSuffix(s.Account, "/") + "/" + name }

// example returns the URL of a queue that the sink may write.
func (s *Sink) example() string {
	if s.Target.Route != nil {
		return s.queueURL("any")
	}
	return s.URL
}

// has reports whether a message can be written to the queue with a URL.
func (s *Sink) has(url string) bool {
	name, inAccount := strings.CutPrefix(url, s.queueURL(""))
	return s.URL != "" && s.URL == url || s.Target.Route != nil && inAccount && s.Target.Route.Allows(name)
}

// kinds reports whether messages may go to a FIFO queue, and to a standard one.
func (s *Sink) kinds() (fifo, standard bool) {
	for _, name := range s.Target.Names() {
		isFIFO := strings.HasSuffix(name, ".fifo")
		fifo, standard = fifo || isFIFO, standard || !isFIFO
	}
	open := s.Target.Route != nil && len(s.Target.Route.Prefixes()) > 0
	return fifo || open, standard || open
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	about := config.SinkAbout{Name: "sqs " + s.name(), Route: s.Target.Route, Address: s.address, Handed: "which stand in the attributes semel-key, semel-token and, from the second attempt on, semel-attempt"}
	if s.Target.Route != nil {
		about.Name = "sqs " + s.Target.String()
	}
	fifo, standard := s.kinds()
	if standard {
		about.Exceptions = append(about.Exceptions, "a standard queue recognises no repeated attempt, and may itself deliver a message more than once")
	}
	if fifo {
		about.Drops = fifoDrops
		about.Exceptions = append(about.Exceptions, "SQS recognises a repeated attempt for five minutes only")
	}
	if !standard {
		about.Handed = "which stand in MessageDeduplicationId and in the attributes semel-key, semel-token and, from the second attempt on, semel-attempt"
	}
	return about
}

// address says where a message is written.
func (s *Sink) address(m *semel.Message) string {
	if s.Target.Route == nil {
		return "queue " + s.name()
	}
	return s.Target.Describe("queue ", m)
}

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) { l.LintTarget("sink.sqs.queue", &s.Target) }

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	client, err := s.client(ctx, s.example())
	if err != nil {
		return nil, err
	}
	opts := &sqs.SinkOptions{Client: client, Queue: s.URL, Route: s.Target.Route, Name: env.Pipeline.Name}
	if opts.Route != nil {
		opts.Queue = s.Account
	}
	return config.AsSink(sqs.OpenSink(ctx, opts))
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) {
	if s.Target.Route == nil {
		s.examine(ctx, x, s.URL, false, true)
		return
	}
	for _, name := range s.Target.Route.Names() {
		s.examine(ctx, x, s.queueURL(name), false, true)
	}
	for _, prefix := range s.Target.Route.Prefixes() {
		x.Note(doctor.Notice, "queues "+prefix+"*", "messages name them, so they are not checked", "a message whose queue does not exist fails, and is parked", "look at semel parked ls")
	}
}

// Advise implements config.Kind.
func (s *Sink) Advise(_ *config.File, _ *config.Pipeline, path string, err error) *diagnose.Error {
	return advise(s.name(), path, toWrite, err)
}
