package sqs

import (
	"context"

	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/internal/advice"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Sink sends to a queue.
type Sink struct {
	config.SinkBase
	Queue
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "sqs" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{
		Doc:    "Messages in a queue of Amazon SQS, with the headers of the message and headers with its key as attributes. In a FIFO queue the record key, or else the key, becomes the message group, and the key becomes the MessageDeduplicationId, so that SQS stores a repeated attempt once within five minutes. A redriven message has another one.",
		Check:  s.check,
		Fields: s.fields(),
	}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	about := config.SinkAbout{
		Name:       "sqs " + s.name(),
		Drops:      s.drops(),
		Handed:     ", which stand in the attributes semel-key, semel-token and, from the second attempt on, semel-attempt",
		Exceptions: []string{"a standard queue recognises no repeated attempt, and may itself deliver a message more than once"},
	}
	if s.fifo() {
		about.Handed = ", which stand in MessageDeduplicationId and in the attributes semel-key, semel-token and, from the second attempt on, semel-attempt"
		about.Exceptions = []string{"SQS recognises a repeated attempt for five minutes only"}
	}
	return about
}

// Open implements config.Sink.
func (s *Sink) Open(ctx context.Context, env *config.Env) (pipeline.Sink, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	sink, err := sqs.OpenSink(ctx, &sqs.SinkOptions{Client: client, Queue: s.URL, Name: env.Pipeline.Name})
	if err != nil {
		return nil, err // not sink: a nil *Sink becomes a non-nil interface
	}
	return sink, nil
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) { s.examine(ctx, x, false, true) }

// Advise implements config.Advisor.
func (s *Sink) Advise(_ *config.File, _ *config.Pipeline, path string, err error) *advice.Error {
	return s.advise(path, toWrite, err)
}
