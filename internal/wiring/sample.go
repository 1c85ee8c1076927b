package wiring

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/fileio"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
)

// Sample hands what a pipeline's source holds to fn, from the beginning, until fn
// returns false, nothing more is there, or ctx ends, which is no error. Nothing
// is acknowledged, no position is moved and no group is joined. A source to
// which messages come by themselves cannot be sampled: the error then wraps
// semel.ErrInvalidRequest.
func Sample(ctx context.Context, f *config.File, p *config.Pipeline, fn func(*semel.Message) bool) error {
	var err error
	switch spec := p.Source.(type) {
	case *config.FileSource:
		err = sampleFiles(ctx, spec, fn)
	case *config.KafkaSource:
		err = sampleKafka(ctx, spec, fn)
	default:
		err = fmt.Errorf("messages come to a source of the kind %s by themselves: there is nothing to read beforehand: %w", spec.Kind(), semel.ErrInvalidRequest)
	}
	return f.RedactError(err)
}

func sampleFiles(ctx context.Context, spec *config.FileSource, fn func(*semel.Message) bool) (err error) {
	source, err := fileio.OpenSource(spec.Paths, &fileio.SourceOptions{MaxLine: int(spec.MaxLine), KeepBlank: spec.Format == "text"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close(context.WithoutCancel(ctx))) }()
	for {
		items, err := source.Read(ctx)
		for _, it := range items {
			if !fn(&it.Message) {
				return nil
			}
		}
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

// sampleKafka reads without a group: nobody is told.
func sampleKafka(ctx context.Context, spec *config.KafkaSource, fn func(*semel.Message) bool) error {
	opts, err := kafkaClient(&spec.KafkaClient)
	if err != nil {
		return err
	}
	err = kafkaio.ReadAll(ctx, opts, spec.Topics, func(r *kgo.Record) bool { return fn(messageOf(r)) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// messageOf is a record as pipelines see it.
func messageOf(r *kgo.Record) *semel.Message {
	m := &semel.Message{
		RecordKey: r.Key, Body: r.Value, Time: r.Timestamp,
		Origin: semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset},
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: h.Key, Value: h.Value})
	}
	return m
}
