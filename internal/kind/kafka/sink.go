package kafka

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Sink produces to a topic. It is always idempotent and uses acks=all, unless the
// file sets fewer acks, which [File.Lint] reports as broken.
type Sink struct {
	config.SinkBase
	Client
	Topic string
	// Partition is record-key (by the hash of the record key) or same (the
	// partition number of the source).
	Partition string
	// Acks is all, 1 or 0.
	Acks       string
	Idempotent bool
	// Compression is none, gzip, snappy, lz4 or zstd.
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
		Doc: "Records of a topic, with the headers of the message and those that name its key.",
		Fields: append(s.Client.fields(),
			schema.TextField("topic", &s.Topic, "Topic to write.").Need(),
			schema.ChoiceField("partition", &s.Partition, "Which partition: by the hash of the record key, as Kafka's own clients do, or the one of the same number as the source's.", "record-key", "same").Or("record-key"),
			schema.ChoiceField("acks", &s.Acks, "How many replicas have a record before it counts. Less than all loses it with a broker: a pipeline refuses to run with it.", "all", "1", "0").Or("all"),
			schema.TruthField("idempotent", &s.Idempotent, "Have the broker notice a record that is sent twice. A pipeline refuses to run without it.").Or("true"),
			schema.ChoiceField("compression", &s.Compression, "Compression of what is sent.", "none", "gzip", "snappy", "lz4", "zstd").Or("lz4"),
			schema.TruthField("key_headers", &s.KeyHeaders, "Add headers that name the key and, outside of transactions, attempt and token. Who reads by the record key can do without: they cost this process and the brokers about as much as a small record does.").Or("true"),
		),
	}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	handed := ", which stand in the record's headers semel-key, semel-token and, from the second attempt on, semel-attempt"
	if !s.KeyHeaders {
		handed = ", of which the record says nothing (key_headers: false)"
	}
	return config.SinkAbout{Name: "kafka " + s.Topic, Handed: handed}
}

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) {
	if s.Acks != "all" {
		l.Add(semel.Broken, config.Loss, l.At("sink.kafka.acks"), s.Acks, "a record that counts as delivered is lost with one broker", "acks: all")
	}
	if !s.Idempotent {
		l.Add(semel.Broken, config.Repeat, l.At("sink.kafka.idempotent"), "false", "a record whose answer is lost is written twice", "idempotent: true")
	}
	source, fromKafka := l.Pipeline.Source.(*Source)
	if fromKafka && l.Mode != config.SourceIsSink && sameBrokers(source.Brokers, s.Brokers) {
		l.Add(semel.Warning, config.Repeat, l.At("store"), "keys beside Kafka, from Kafka to Kafka", "a crash between the record and the completion of its key writes the record again",
			"no store: keys, outputs and offsets are then one transaction of Kafka")
	}
	s.lint(l, "sink.kafka")
}

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	client, err := s.options()
	if err != nil {
		return nil, err
	}
	sink, err := kafkaio.OpenSink(ctx, &kafkaio.SinkOptions{
		Name: env.Pipeline.Name, Client: append(client, kgo.ProducerBatchCompression(compression(s.Compression))), Topic: s.Topic, SamePartition: s.Partition == "same",
		NoKeyHeaders: !s.KeyHeaders,
	})
	if err != nil {
		return nil, err // not sink: a nil *Sink becomes a non-nil interface
	}
	return sink, nil
}
