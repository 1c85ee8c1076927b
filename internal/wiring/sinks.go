package wiring

import (
	"context"
	"fmt"
	"net/http"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/fileio"
	"github.com/semel-dev/semel/broker/pgsink"
	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// sink opens the sink of a pipeline, whose keys are in store; nil if a filter
// decides. Every kind is here.
func (b *building) sink(ctx context.Context, store semel.Store) (pipeline.Sink, error) {
	switch spec := b.spec.Sink.(type) {
	case *config.FileSink:
		opts := &fileio.SinkOptions{}
		if store != nil {
			// The same pipeline may write checkpoints when it does not observe.
			if keys, ok := semel.Ability[*logstore.Store](store); ok {
				opts.Beside = keys
			}
		}
		sink, err := fileio.OpenSink(spec.Path, opts)
		if err != nil {
			return nil, err // not sink: a nil *Sink in an interface is no nil
		}
		return sink, nil
	case *config.StdoutSink:
		if b.opts.Stdout == nil {
			return nil, fmt.Errorf("there is no standard output: %w", semel.ErrInvalidRequest)
		}
		return fileio.NewStream(b.opts.Stdout), nil
	case *config.KafkaSink:
		return b.kafkaSink(ctx, spec)
	case *config.WebhookSink:
		return b.webhook(spec)
	case *config.PostgresSink:
		return b.postgres(ctx, spec)
	default:
		return nil, fmt.Errorf("this version has no sink %s: %w", spec.Kind(), semel.ErrInvalidRequest)
	}
}

// postgres opens a sink whose keys are elsewhere.
func (b *building) postgres(ctx context.Context, spec *config.PostgresSink) (pipeline.Sink, error) {
	dsn := spec.DSN
	if name := spec.Store.Name; name != "" {
		s, ok := b.file.Store(name)
		if !ok {
			return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
		}
		store, ok := s.Spec.(*config.Postgres)
		if !ok {
			return nil, fmt.Errorf("store %s is not of the kind postgres: %w", name, semel.ErrInvalidRequest)
		}
		dsn = store.DSN
	}
	sink, err := pgsink.Open(ctx, dsn.Reveal(), postgresOptions(spec))
	if err != nil {
		return nil, err // not sink: a nil *Sink in an interface is no nil
	}
	return sink, nil
}

func postgresOptions(spec *config.PostgresSink) *pgsink.Options {
	columns := func(list []config.Column) []pgsink.Column {
		var all []pgsink.Column
		for _, c := range list {
			all = append(all, pgsink.Column{Name: c.Name, From: c.From})
		}
		return all
	}
	opts := &pgsink.Options{Statement: spec.Statement, Args: spec.Args, Table: spec.Table, Columns: columns(spec.Columns)}
	if u := spec.Upsert; u != nil {
		opts.Upsert = &pgsink.Upsert{Table: u.Table, Columns: columns(u.Columns), Key: u.Key, Version: u.Version}
	}
	return opts
}

func (b *building) webhook(spec *config.WebhookSink) (pipeline.Sink, error) {
	opts := &webhook.Options{
		URL: spec.URL.Reveal(), Method: spec.Method, Headers: http.Header{}, Timeout: spec.Timeout,
		Allowed: spec.AllowPrivate, MaxResponse: spec.MaxResponse, Parallel: b.spec.Parallel, Pipeline: b.spec.Name,
		Success: spec.Success, Retry: spec.Retry, Forward: spec.Forward,
	}
	for _, h := range spec.Headers {
		opts.Headers.Add(h.Name, h.Value.Reveal())
	}
	var err error
	if opts.TLS, err = clientTLS(spec.TLS); err != nil {
		return nil, err
	}
	sink, err := webhook.New(opts)
	if err != nil {
		return nil, err // not sink: a nil *Sink in an interface is no nil
	}
	return sink, nil
}
