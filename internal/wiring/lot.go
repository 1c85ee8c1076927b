package wiring

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// Lot is what a pipeline put aside, wherever that is: see pipeline.Lot.
type Lot interface {
	Parked(ctx context.Context, pipeline string, fn func(*pipeline.Parked) bool) error
	Get(ctx context.Context, id string) (*pipeline.Parked, error)
	Remove(ctx context.Context, id, how, actor, reason string) error
	Close() error
}

var (
	_ Lot = pipeline.Lot(nil)
	_ Lot = (*kafkaio.TopicLot)(nil)
)

// ExistingLot opens what a pipeline put aside for who looks and settles: it makes
// no directory and no topic, and reports whether there is one. It is a pipeline.Lot
// or a *kafkaio.TopicLot.
func ExistingLot(ctx context.Context, f *config.File, p *config.Pipeline) (Lot, bool, error) {
	switch {
	case p.Parked.Topic != "":
		lot, err := openTopicLot(ctx, f, p)
		if errors.Is(err, kafkaio.ErrNoTopic) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, f.RedactError(err)
		}
		return lot, true, nil
	case p.Parked.Path != "":
		if _, err := os.Stat(p.Parked.Path); errors.Is(err, fs.ErrNotExist) {
			return nil, false, nil
		}
	}
	lot, err := OpenLot(ctx, f, p)
	return lot, err == nil, f.RedactError(err)
}

func openTopicLot(ctx context.Context, f *config.File, p *config.Pipeline) (*kafkaio.TopicLot, error) {
	end, ok := kafkaEnd(p)
	if !ok {
		return nil, errNoKafka
	}
	client, err := kafkaClient(end)
	if err != nil {
		return nil, err
	}
	policy := (&building{file: f, spec: p}).options()
	opts := &kafkaio.TopicLotOptions{
		Client: client, Topic: p.Parked.Topic, Name: p.Name, Key: policy.Key, Scope: policy.Scope, OnMissing: policy.OnMissing,
		Transactional: f.Mode(p) == config.SourceIsSink,
	}
	if source, ok := p.Source.(*config.KafkaSource); ok {
		opts.Group, opts.Inputs = source.Group, source.Topics
		opts.Reset, opts.Repartition = reset(source.Start), source.Repartition != nil
		if opts.Source, err = kafkaClient(&source.KafkaClient); err != nil {
			return nil, err
		}
	}
	return kafkaio.OpenTopicLot(ctx, opts)
}
