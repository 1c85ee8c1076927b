package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/tiered"
)

// durable is the name in tiered.Event of the store that decides.
const durable = "durable"

// observer counts and logs the events of one pipeline, until closed is called.
func (d *daemon) observer(spec *config.Pipeline, s *state, log *slog.Logger) (_ pipeline.Observer, closed func(), err error) {
	lines, err := observe.NewLog(log, &observe.LogOptions{Redact: d.file.Redact, Duplicates: d.file.Log.Duplicates, First: d.first(spec.Store.Name)})
	if err != nil {
		return nil, nil, err
	}
	s.gauges = d.metrics.Pipeline(spec.Name, spec.Store.Name, spec.Window)
	return observe.All(s.gauges, d.journal.Observer(spec.Name), advised{observe.All(&s.counters, lines), s.readiness}), lines.Close, nil
}

// firstFor limits the time for reading the origins of one batch of duplicates.
const firstFor = time.Second

// first returns a function that reads where the first messages of some keys came
// from, in the records of a store.
func (d *daemon) first(name string) func(keys []semel.Key) []string {
	return func(keys []semel.Key) []string {
		store, ok := d.stores.Opened(name)
		if !ok {
			return nil
		}
		inspector, ok := semel.As[semel.Inspector](store)
		if !ok {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), firstFor)
		defer cancel()
		records, origins := make([]semel.Record, len(keys)), make([]string, len(keys))
		if inspector.Look(ctx, keys, records) != nil {
			return nil // the lines say it without the origins
		}
		for i := range records {
			origins[i] = records[i].Origin
		}
		return origins
	}
}

// layer counts and logs the events of the layers of a stack.
func (d *daemon) layer(stack string, e tiered.Event) {
	switch e.Kind {
	case tiered.EventPassed: // reported for each call
		d.metrics.Passed(stack, e.Keys)
		d.lines.ObservePipeline(pipeline.Event{Kind: pipeline.EventFailedOpen, Count: e.Keys, Reason: "stack " + stack, Err: e.Err})
		return
	case tiered.EventDown, tiered.EventUp:
		d.metrics.Layer(stack, e.Layer, e.Kind == tiered.EventDown)
	}
	d.log.Warn("layer of a store", "store", stack, "layer", e.Layer, "event", e.Kind.String(), "error", d.file.AdviseStores(d.file.Stack(stack), e.Err))
}
