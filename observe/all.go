package observe

import (
	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// All returns an observer that passes each event to these observers, in their
// order.
func All(observers ...pipeline.Observer) pipeline.Observer {
	a := all(append([]pipeline.Observer(nil), observers...))
	many := make([]semel.ManyObserver, 0, len(a))
	for _, o := range a {
		if m, ok := o.(semel.ManyObserver); ok {
			many = append(many, m)
		}
	}
	if len(many) < len(a) {
		return a // an observer needs the keys
	}
	return allMany{a, many}
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

// allMany is used if all observers accept equal events together.
type allMany struct {
	all
	many []semel.ManyObserver
}

// ObserveMany implements semel.ManyObserver.
func (a allMany) ObserveMany(e semel.Event, n int) {
	for _, o := range a.many {
		o.ObserveMany(e, n)
	}
}
