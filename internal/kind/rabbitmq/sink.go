package rabbitmq

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Sink publishes to an exchange or a queue. Messages may name their routing keys.
type Sink struct {
	config.SinkBase
	Client
	Exchange   string
	RoutingKey config.Target
	Create     bool
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "rabbitmq" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Persistent messages, with the headers of the message and headers with its key. The `message-id` is the id of the key. The server confirms each message. While no queue takes them, the pipeline waits.",
		Check: func(v schema.Value, _ schema.Members) {
			if s.Create && s.Exchange == "" && s.RoutingKey.Route != nil {
				v.Wrong("create cannot make the queues that messages name: leave it out, or write exchange")
			}
		},
		Fields: append(s.Client.fields(),
			schema.TextField("exchange", &s.Exchange, "Exchange to publish to.").Means("the default exchange: `routing_key` is a queue"),
			config.TargetField("routing_key", &s.RoutingKey, "Routing key, or where each message names its own. It is the name of a queue if there is no `exchange`.").Need(),
			schema.TruthField("create", &s.Create, "Create what does not exist: a durable topic exchange, or a durable quorum queue if there is no `exchange`.").Or("false"),
		),
	}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	name := "rabbitmq " + s.RoutingKey.String()
	if s.Exchange != "" {
		name = "rabbitmq " + s.Exchange + "/" + s.RoutingKey.String()
	}
	return config.SinkAbout{
		Name: name, Route: s.RoutingKey.Route, Address: s.address,
		Handed:     "which stand in the property message-id and the headers semel-key, semel-token and, from the second attempt on, semel-attempt",
		Exceptions: []string{"RabbitMQ does not recognise a repeated message; the next consumer can, by its message-id"},
	}
}

// address says where a message is written.
func (s *Sink) address(m *semel.Message) string {
	if s.Exchange == "" {
		return s.RoutingKey.Describe("queue ", m)
	}
	return s.RoutingKey.Describe("exchange "+s.Exchange+", routing key ", m)
}

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) {
	const field = "sink.rabbitmq.routing_key"
	l.LintTarget(field, &s.RoutingKey)
	for _, name := range s.RoutingKey.Names() {
		if words := strings.Split(name, "."); slices.Contains(words, "*") || slices.Contains(words, "#") {
			l.Notice(l.At(field), fmt.Sprintf("%q looks like the pattern of a binding", name), "a message has one routing key, in which * and # are nothing but characters", "write one routing key, or { from: source, allow: [\"orders.*\"] } if each message names its own")
		}
	}
}

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	return config.AsSink(rabbitmq.OpenSink(ctx, &rabbitmq.SinkOptions{
		Client: client, Exchange: s.Exchange, RoutingKey: s.RoutingKey.Name, Route: s.RoutingKey.Route, Create: s.Create, Name: env.Pipeline.Name,
	}))
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) {
	s.Client.examine(ctx, x, &rabbitmq.ExamineOptions{Exchange: s.Exchange, RoutingKey: s.RoutingKey.Name, Route: s.RoutingKey.Route, Create: s.Create})
}
