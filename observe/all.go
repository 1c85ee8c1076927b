package observe

import (
	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// All returns an observer that tells each of these, in their order.
func All(observers ...pipeline.Observer) pipeline.Observer {
	return all(append([]pipeline.Observer(nil), observers...))
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
