package rabbitmq

import (
	"context"
	"slices"

	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Source reads a queue.
type Source struct {
	config.SourceBase
	Client
	Queue  string
	Create bool
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "rabbitmq" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Messages of a queue. The key rule `property:message-id` reads the property `message-id`, and `record-key` the routing key. Messages with the same routing key are delivered in order. A message that was published through the default exchange has no record key.",
		Fields: append(s.Client.fields(),
			schema.TextField("queue", &s.Queue, "Name of the queue.").Need(),
			schema.TruthField("create", &s.Create, "Create a durable quorum queue if it does not exist, with a delivery limit that no message reaches.").Or("false"),
		),
	}
}

// About implements config.Source.
func (s *Source) About(*config.Pipeline) config.SourceAbout {
	return config.SourceAbout{
		Name: "rabbitmq " + s.Queue, Shared: true,
		Again:     "the server delivers the message again when it notices that the connection is lost",
		AfterAck:  config.AfterAck{Unsure: "the server may not have got the acknowledgement", Again: "a message that is delivered again", Gets: "is acknowledged without effect"},
		TakesBack: "it stays in the process and is processed again after %s",

		NoPositions: "a RabbitMQ queue has no positions",
		Exceptions: []string{
			"a message that came almost as often as the delivery limit of the queue permits (20 by default from RabbitMQ 4 on) is parked without an attempt, with the reason deliveries: each end of a process that has it counts, also in an outage of the target",
		},
	}
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if !s.Create && s.Management == "" {
		l.Notice(l.At("source.rabbitmq.queue"), "the file does not say whether "+s.Queue+" is a quorum queue",
			"a classic queue is lost with its server's disk, and does not count deliveries", "set management, so that semel doctor looks, or create the queue with x-queue-type=quorum")
	}
	if s.Management == "" {
		l.Add(doctor.Notice, config.Loss, l.At("source.rabbitmq.queue"), "without management, semel run does not see the policies of "+s.Queue,
			"if a policy sets a delivery limit, RabbitMQ deletes a message that reaches it, and each end of a process counts, also while the target is down", "set management, so that such a message is parked before")
	}
	for _, p := range l.File.Pipelines {
		if p == l.Pipeline {
			return
		}
		other, ok := p.Source.(*Source)
		if ok && other.Queue == s.Queue && other.VHost == s.VHost && slices.ContainsFunc(s.Servers, func(a string) bool { return slices.Contains(other.Servers, a) }) {
			l.Add(doctor.Warning, config.Loss, l.At("source.rabbitmq.queue"), s.Queue+", which pipeline "+p.Name+" reads too", "each of the two gets only a part of the messages", "bind a queue of its own for each pipeline")
		}
	}
}

// Open implements config.Source.
func (s *Source) Open(ctx context.Context, _ *config.Env) (pipeline.Source, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	return config.AsSource(rabbitmq.OpenSource(ctx, &rabbitmq.SourceOptions{Client: client, Queue: s.Queue, Management: s.Management, Create: s.Create}))
}

// Examine implements config.Kind.
func (s *Source) Examine(ctx context.Context, x *config.Examination) {
	s.Client.examine(ctx, x, &rabbitmq.ExamineOptions{Queue: s.Queue, Create: s.Create})
}
