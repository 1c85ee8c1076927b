package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// Sink appends lines to a file.
type Sink struct {
	config.SinkBase
	Path   string
	Append bool
}

// NewSink returns an empty Sink.
func NewSink() config.Sink { return &Sink{} }

// Kind implements config.Kind.
func (*Sink) Kind() string { return "file" }

// Fields implements config.Kind.
func (s *Sink) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Lines of a file: the body and a line end. With an `embedded` store, keys and lines become durable together.",
		Fields: []schema.Field{
			schema.PathField("path", &s.Path, "File that lines are appended to.").Need(),
			schema.TruthField("append", &s.Append, "Append to a file with content that an `embedded` store does not know. If the store is new because the old one is lost, every line is written again.").Or("false"),
		},
	}
}

// About implements config.Sink.
func (s *Sink) About() config.SinkAbout {
	return config.SinkAbout{Name: "file " + s.Path, Lines: true, Place: s.Path, PlaceName: "file"}
}

// Open implements config.Sink.
func (s *Sink) Open(_ context.Context, env *config.Env) (pipeline.Sink, error) {
	opts := &file.SinkOptions{}
	if env.Keys != nil {
		// The same pipeline may write checkpoints when it is not in observe mode.
		if keys, ok := semel.As[*logstore.Store](env.Keys); ok {
			opts.Beside = keys
		}
	}
	return config.AsSink(file.OpenSink(s.Path, opts))
}

// OpenSession implements config.SessionSink. Keys, the length of the output and,
// for file sources, positions are one record of an embedded store.
func (s *Sink) OpenSession(ctx context.Context, env *config.Env) (pipeline.Session, pipeline.Source, error) {
	keys, ok := env.Keys.(*logstore.Store)
	if !ok {
		return nil, nil, fmt.Errorf("store %s is not of the kind embedded: %w", env.Pipeline.Store.Name, semel.ErrInvalidRequest)
	}
	policy := env.Guard()
	opts := &file.SessionOptions{Window: policy.Window, OnLate: policy.OnLate, FilterMap: env.Pipeline.FilterMap, Append: s.Append}
	var source pipeline.Source
	if files, ok := env.Pipeline.Source.(*Source); ok && !env.Redrive {
		opened, err := files.open(env.Pipeline, "")
		if err != nil {
			return nil, nil, fmt.Errorf("source: %w", err)
		}
		source, opts.Source = opened, opened
	}
	session, err := file.OpenSession(ctx, keys, s.Path, opts)
	if _, ok := errors.AsType[*file.UnknownOutputError](err); ok {
		err = fmt.Errorf("%w: move the file away, or write sink.file.append: true to append to it", err)
	}
	if err != nil {
		return nil, source, fmt.Errorf("sink: %w", err)
	}
	return session, source, nil
}

// Examine implements config.Kind.
func (s *Sink) Examine(_ context.Context, x *config.Examination) {
	if x.IsFile("sink.file.path", s.Path, "nothing can be written") {
		x.Directory("sink.file.path", filepath.Dir(s.Path), "nothing can be written")
	}
}

var _ config.SessionSink = (*Sink)(nil)
