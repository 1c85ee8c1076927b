// Package stdout is the kind of sink that writes lines to standard output.
package stdout

import (
	"context"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Sink writes lines to standard output.
type Sink struct{ config.SinkBase }

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "stdout" }

// Fields implements config.Kind.
func (*Sink) Fields() schema.Mapping { return schema.Mapping{Doc: "Lines on standard output."} }

// About implements config.Sink.
func (*Sink) About() config.SinkAbout {
	return config.SinkAbout{Name: "stdout", Lines: true, Stdout: true}
}

// Lint implements config.Sink.
func (*Sink) Lint(l *config.Linter) {
	l.Notice(l.At("sink.stdout"), "standard output", "a line counts as delivered when it is written to the pipe, even if its reader loses it", "nothing for a trial; otherwise use a durable sink")
}

// Open implements config.Sink.
func (*Sink) Open(_ context.Context, env *config.Env) (pipeline.Sink, error) {
	if env.Stdout == nil {
		return nil, fmt.Errorf("there is no standard output: %w", semel.ErrInvalidRequest)
	}
	return file.NewStream(env.Stdout), nil
}
