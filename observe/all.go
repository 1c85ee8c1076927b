package observe

import (
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// All returns an observer that passes each event to these observers, in their
// order.
func All(observers ...pipeline.Observer) pipeline.Observer { return all(slices.Clone(observers)) }

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
