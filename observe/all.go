package observe

import (
	"context"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// All returns an observer that passes each event to these observers, in their
// order. If one of them is a pipeline.Tracer, it is a Tracer too. With several
// Tracers, the first one is used, because a message carries one trace context.
func All(observers ...pipeline.Observer) pipeline.Observer {
	a := all(slices.Clone(observers))
	for _, o := range a {
		if tracer, ok := o.(pipeline.Tracer); ok {
			return &tracing{a, tracer}
		}
	}
	return a
}

type all []pipeline.Observer

// Observe implements semel.Observer.
func (a all) Observe(e semel.Event) {
	for _, o := range a {
		o.Observe(e)
	}
}

// ObservePipeline implements pipeline.Observer.
func (a all) ObservePipeline(e pipeline.Event) {
	for _, o := range a {
		o.ObservePipeline(e)
	}
}

// tracing is all with a Tracer among them.
type tracing struct {
	all
	tracer pipeline.Tracer
}

// BeginStep implements semel.Tracer.
func (t *tracing) BeginStep(ctx context.Context, step semel.Step, keys int) (context.Context, func(semel.Decision, error)) {
	return t.tracer.BeginStep(ctx, step, keys)
}

// Begin implements pipeline.Tracer.
func (t *tracing) Begin(ctx context.Context, name string, items []*pipeline.Item) {
	t.tracer.Begin(ctx, name, items)
}

// In implements pipeline.Tracer.
func (t *tracing) In(ctx context.Context, items []*pipeline.Item) context.Context {
	return t.tracer.In(ctx, items)
}

// End implements pipeline.Tracer.
func (t *tracing) End(items []*pipeline.Item) { t.tracer.End(items) }
