package wiring

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
)

// HasKafka reports whether a pipeline reads from Kafka or writes to it.
func HasKafka(p *config.Pipeline) bool {
	_, ok := kafkaEnd(p)
	return ok
}

// ExamineKafka looks at the Kafka that a pipeline reads from and writes to:
// whether its brokers can be reached, and are set up to keep the promise. It
// blocks until they have answered.
func ExamineKafka(ctx context.Context, f *config.File, p *config.Pipeline) Report {
	r := Report{Pipeline: p}
	source, reads := p.Source.(*config.KafkaSource)
	sink, writes := p.Sink.(*config.KafkaSink)
	transactional := f.Mode(p) == config.SourceIsSink
	var errs []error
	look := func(client *config.KafkaClient, opts *kafkaio.ExamineOptions) {
		if client.TLS != nil {
			r.tls(client.TLS)
		}
		reach, err := kafkaClient(client)
		if err == nil {
			var findings []semel.Finding
			findings, err = kafkaio.Examine(ctx, reach, opts)
			r.add(f, findings)
		}
		if semel.Classify(err) == semel.ClassPermanent {
			r.note(semel.Broken, "brokers", f.Redact(err.Error()), "nothing is read or written", "what it says")
			err = nil
		}
		errs = append(errs, f.RedactError(err))
	}
	opts := &kafkaio.ExamineOptions{Parked: p.Parked.Topic, Window: p.Window, Transactional: transactional}
	if transactional {
		opts.Changelog, opts.Repartition = changelog(p, source), source.RepartitionTopic()
	}
	if reads {
		opts.Group, opts.Inputs, opts.Latest = source.Group, source.Topics, source.Start == "latest"
		if writes && slices.Equal(source.Brokers, sink.Brokers) {
			opts.Output, writes = sink.Topic, false
		} else if writes {
			opts.Parked = "" // it is where the sink is
		}
		look(&source.KafkaClient, opts)
	}
	if writes {
		look(&sink.KafkaClient, &kafkaio.ExamineOptions{Output: sink.Topic, Parked: p.Parked.Topic})
	}
	r.Err = errors.Join(errs...)
	return r
}

func changelog(p *config.Pipeline, source *config.KafkaSource) string {
	if p.Transaction.Changelog != "" {
		return p.Transaction.Changelog
	}
	return source.Group + "-keys"
}

// OpenKafkaAdmin connects to the Kafka of a pipeline, to look at its
// transactions. It also returns the topics that the pipeline reads and writes.
func OpenKafkaAdmin(ctx context.Context, f *config.File, p *config.Pipeline) (*kafkaio.Admin, []string, error) {
	end, ok := kafkaEnd(p)
	if !ok {
		return nil, nil, fmt.Errorf("pipeline %s neither reads from Kafka nor writes to it: %w", p.Name, semel.ErrInvalidRequest)
	}
	var topics []string
	add := func(list ...string) {
		for _, topic := range list {
			if topic != "" && !slices.Contains(topics, topic) {
				topics = append(topics, topic)
			}
		}
	}
	sink, writes := p.Sink.(*config.KafkaSink)
	if source, reads := p.Source.(*config.KafkaSource); reads && (!writes || slices.Equal(source.Brokers, sink.Brokers)) {
		add(source.Topics...)
		if f.Mode(p) == config.SourceIsSink {
			add(append(p.Changelogs(), source.RepartitionTopic())...)
		}
	}
	if writes {
		add(sink.Topic)
	}
	add(p.Parked.Topic)
	client, err := kafkaClient(end)
	if err != nil {
		return nil, nil, f.RedactError(err)
	}
	admin, err := kafkaio.OpenAdmin(ctx, client)
	return admin, topics, f.RedactError(err)
}

// OpenKafkaBrokers connects to brokers that no configuration names.
func OpenKafkaBrokers(ctx context.Context, brokers []string) (*kafkaio.Admin, error) {
	client, err := kafkaClient(&config.KafkaClient{Brokers: brokers})
	if err != nil {
		return nil, err
	}
	return kafkaio.OpenAdmin(ctx, client)
}
