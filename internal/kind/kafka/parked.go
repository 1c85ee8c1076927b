package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// OpenParker implements config.Topics.
func (c *Client) OpenParker(ctx context.Context, p *config.Pipeline) (config.ClosingParker, error) {
	opts, err := endOf(p).options()
	if err != nil {
		return nil, err
	}
	parker, err := kafka.OpenParker(ctx, opts, p.Parked.Topic)
	if err != nil {
		return nil, err // not parker: a nil *Parker becomes a non-nil interface
	}
	return parker, nil
}

// OpenParked implements config.Topics.
func (c *Client) OpenParked(ctx context.Context, f *config.File, p *config.Pipeline) (pipeline.DeadLetters, error) {
	client, err := endOf(p).options()
	if err != nil {
		return nil, err
	}
	policy := f.Options(p, nil)
	opts := &kafka.DeadLetterTopicOptions{
		Client: client, Topic: p.Parked.Topic, Name: p.Name, Key: policy.Key, Scope: policy.Scope, OnMissing: policy.OnMissing, Unwrap: policy.Unwrap,
		Transactional: f.Mode(p) == config.SourceIsSink,
	}
	if source, ok := p.Source.(*Source); ok {
		opts.Group, opts.Inputs, opts.Pattern = source.Group, source.Topics, source.Pattern
		opts.Reset, opts.Repartition = reset(source.Start), source.Repartition
		if opts.Source, err = source.options(); err != nil {
			return nil, err
		}
	}
	letters, err := kafka.OpenDeadLetterTopic(ctx, opts)
	switch {
	case errors.Is(err, kafka.ErrNoTopic):
		return nil, fmt.Errorf("%w: %w", config.ErrNoTopic, err)
	case err != nil:
		return nil, err // not dead-letter store: a nil *DeadLetterTopic becomes a non-nil interface
	}
	return letters, nil
}
