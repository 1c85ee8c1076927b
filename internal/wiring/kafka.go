package wiring

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// kafkaClient says how Kafka is reached.
func kafkaClient(spec *config.KafkaClient) ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(spec.Brokers...), kgo.ClientID("semel")}
	if spec.TLS != nil {
		c, err := clientTLS(spec.TLS)
		if err != nil {
			return nil, err
		}
		if c == nil {
			c = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		opts = append(opts, kgo.DialTLSConfig(c))
	}
	if s := spec.SASL; s != nil {
		switch strings.ToLower(s.Mechanism) {
		case "plain":
			opts = append(opts, kgo.SASL(plain.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsMechanism()))
		case "scram-sha-256":
			opts = append(opts, kgo.SASL(scram.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsSha256Mechanism()))
		case "scram-sha-512":
			opts = append(opts, kgo.SASL(scram.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsSha512Mechanism()))
		default:
			return nil, fmt.Errorf("sasl mechanism %q is not plain, scram-sha-256 or scram-sha-512: %w", s.Mechanism, semel.ErrInvalidRequest)
		}
	}
	return opts, nil
}

func compression(name string) kgo.CompressionCodec {
	codec := kgo.NoCompression()
	switch name {
	case "gzip":
		codec = kgo.GzipCompression()
	case "snappy":
		codec = kgo.SnappyCompression()
	case "lz4":
		codec = kgo.Lz4Compression()
	case "zstd":
		codec = kgo.ZstdCompression()
	}
	return codec
}

func reset(start string) kafkaio.Reset {
	if start == "latest" {
		return kafkaio.ResetEnd
	}
	return kafkaio.ResetStart
}

func (b *building) kafkaSource(ctx context.Context, spec *config.KafkaSource) (pipeline.Source, error) {
	client, err := kafkaClient(&spec.KafkaClient)
	if err != nil {
		return nil, err
	}
	instance, lock, err := member(b.spec.Name, spec, membersDir())
	if err != nil {
		return nil, err
	}
	source, err := kafkaio.OpenSource(ctx, &kafkaio.SourceOptions{
		Name: b.spec.Name, Client: client, Group: spec.Group, Topics: spec.Topics, Instance: instance,
		SessionTimeout: spec.SessionTimeout, Reset: reset(spec.Start), ServerSide: spec.Protocol == "consumer",
		MaxPoll: int(spec.MaxPoll), Observer: b.opts.Observer,
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &lockedSource{source, lock}, nil
}

func (b *building) kafkaSink(ctx context.Context, spec *config.KafkaSink) (pipeline.Sink, error) {
	client, err := kafkaClient(&spec.KafkaClient)
	if err != nil {
		return nil, err
	}
	sink, err := kafkaio.OpenSink(ctx, &kafkaio.SinkOptions{
		Name: b.spec.Name, Client: append(client, kgo.ProducerBatchCompression(compression(spec.Compression))), Topic: spec.Topic, SamePartition: spec.Partition == "same",
		NoKeyHeaders: !spec.KeyHeaders,
	})
	if err != nil {
		return nil, err // not sink: a nil *Sink in an interface is no nil
	}
	return sink, nil
}

// kafkaEnd is the Kafka that is source or sink of a pipeline.
func kafkaEnd(p *config.Pipeline) (*config.KafkaClient, bool) {
	if s, ok := p.Sink.(*config.KafkaSink); ok {
		return &s.KafkaClient, true
	}
	if s, ok := p.Source.(*config.KafkaSource); ok {
		return &s.KafkaClient, true
	}
	return nil, false
}

var errNoKafka = fmt.Errorf("a topic needs a Kafka that is source or sink: %w", semel.ErrInvalidRequest)

// openParker opens the topic in which a pipeline puts messages aside.
func openParker(ctx context.Context, p *config.Pipeline) (*kafkaio.Parker, error) {
	end, ok := kafkaEnd(p)
	if !ok {
		return nil, errNoKafka
	}
	client, err := kafkaClient(end)
	if err != nil {
		return nil, err
	}
	return kafkaio.OpenParker(ctx, client, p.Parked.Topic)
}

// transactor is outputs, keys and offsets in one transaction of Kafka.
func (b *building) transactor() (Pipeline, error) {
	source := b.spec.Source.(*config.KafkaSource)
	instance, lock, err := member(b.spec.Name, source, membersDir())
	if err != nil {
		return nil, err
	}
	t, err := b.newTransactor(instance)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lockedTransactor{t, lock}, nil
}

// LookInKafka returns what a pipeline whose keys live in Kafka knows of keys,
// whoever runs it and whether anybody does: see kafkaio.Transactor.Look. It
// writes nothing, and gives up when no broker answers within ten seconds.
func LookInKafka(ctx context.Context, f *config.File, p *config.Pipeline, keys []semel.Key) ([]kafkaio.KnownKey, error) {
	b := &building{file: f, spec: p}
	t, err := b.newTransactor("") // it joins no group
	if err != nil {
		return nil, f.RedactError(err)
	}
	known, err := t.Look(ctx, keys)
	return known, f.RedactError(err)
}

func (b *building) newTransactor(instance string) (*kafkaio.Transactor, error) {
	source, sink := b.spec.Source.(*config.KafkaSource), b.spec.Sink.(*config.KafkaSink)
	client, err := kafkaClient(&source.KafkaClient)
	if err != nil {
		return nil, err
	}
	t, o := &b.spec.Transaction, b.options()
	var between *kafkaio.Repartition
	if source.Repartition != nil {
		between = &kafkaio.Repartition{Topic: source.RepartitionTopic(), Partitions: source.Repartition.Partitions}
	}
	return kafkaio.NewTransactor(&kafkaio.TransactorOptions{
		Name: b.spec.Name, Client: client, Compression: compression(sink.Compression), Group: source.Group, Instance: instance,
		TransactionalID: transactionalID(source, t, instance), Inputs: source.Topics, Repartition: between, Output: sink.Topic, SamePartition: sink.Partition == "same",
		Changelog: t.Changelog, Parked: b.spec.Parked.Topic, Key: o.Key, Scope: o.Scope, KeyHeaders: sink.KeyHeaders,
		Window: o.Window, EventTime: t.Time == "event", Grace: t.Grace, OnLate: o.OnLate, DeliverLate: b.spec.OnLate == "run", OnMissing: o.OnMissing, Failure: pipeline.Failure{Then: o.Failure.Then},
		Interval: t.Interval, MaxRecords: int(t.MaxRecords), MaxBytes: t.MaxBytes, SessionTimeout: source.SessionTimeout,
		Sessions: t.Sessions, Standby: t.Standby, Reset: reset(source.Start), StateDir: stateDir(t.State, b.spec.Name), Shutdown: o.Shutdown, Observer: o.Observer,
	})
}

// transactionalID returns what the transactional ids of a process begin with. No
// host or pipeline has a slash in its name, so that two groups do not make the same.
func transactionalID(source *config.KafkaSource, t *config.Transaction, instance string) string {
	return cmp.Or(t.ID, source.Group) + "/" + instance
}

func stateDir(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// lockedTransactor lets go of its member's name when it has run.
type lockedTransactor struct {
	*kafkaio.Transactor
	lock io.Closer
}

func (l lockedTransactor) Run(ctx context.Context) error {
	return errors.Join(l.Transactor.Run(ctx), l.lock.Close())
}
