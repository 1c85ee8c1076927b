package kafka

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Sink produces to a topic, or to one that each message names. It is always idempotent
// and waits for all in-sync replicas.
type Sink struct {
	config.SinkBase
	Client
	Topic config.Target
	// Partition is record-key (by the hash of the record key) or same (the
	// partition number of the source).
	Partition string
	// Compression is one of none, gzip, snappy, lz4 or zstd.
	Compression string
	// KeyHeaders adds headers with the key and the attempt.
	KeyHeaders bool
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "kafka" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Records of a topic, with the headers of the message and headers with its key.",
		Fields: append(s.Client.fields(),
			config.TargetField("topic", &s.Topic, "Topic to write, or where each message names its topic. A Kafka transaction writes to one topic.").Need(),
			schema.ChoiceField("partition", &s.Partition, "How a record gets its partition: by the hash of the record key, as in Kafka's own clients, or the same number as in the source.", "record-key", "same").Or("record-key"),
			schema.ChoiceField("compression", &s.Compression, "Compression of the records.", "none", "gzip", "snappy", "lz4", "zstd").Or("lz4"),
			schema.TruthField("key_headers", &s.KeyHeaders, "Add headers with the key, with time and place at which the first pipeline read the message and, outside of transactions, with attempt and token.").Or("true"),
		),
	}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	handed := "which stand in the record's headers semel-key, semel-token and, from the second attempt on, semel-attempt"
	if !s.KeyHeaders {
		handed = "of which the record says nothing (key_headers: false)"
	}
	return config.SinkAbout{
		Name: "kafka " + s.Topic.String(), Handed: handed, Route: s.Topic.Route,
		Address: func(m *semel.Message) string { return s.Topic.Describe("topic ", m) },
	}
}

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) {
	source, fromKafka := l.Pipeline.Source.(*Source)
	if fromKafka && l.Mode != config.SourceIsSink && sameBrokers(source.Brokers, s.Brokers) {
		remedy := "leave store out: keys, outputs and offsets are then one Kafka transaction"
		if source.Pattern != nil {
			remedy = "list the topics instead of a pattern, and " + remedy
		}
		l.Add(doctor.Warning, config.Repeat, l.At("store"), "a store, from Kafka to Kafka", "a crash between the record and the completion of its key writes the record again", remedy)
	}
	s.lint(l, "sink.kafka")
	l.LintTarget("sink.kafka.topic", &s.Topic)
}

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	client, err := s.options()
	if err != nil {
		return nil, err
	}
	return config.AsSink(kafka.OpenSink(ctx, &kafka.SinkOptions{
		Name: env.Pipeline.Name, Client: append(client, kgo.ProducerBatchCompression(compression(s.Compression))), Topic: s.Topic.Name, Route: s.Topic.Route, SamePartition: s.Partition == "same",
		NoKeyHeaders: !s.KeyHeaders,
	}))
}
