package otelobserve

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/semel-dev/semel/internal/measure"
	"github.com/semel-dev/semel/pipeline"
)

// messaging keeps the metrics of OpenTelemetry's messaging conventions, in
// addition to Semel's own.
type messaging struct {
	*measure.Pipeline
	consumed             metric.Int64Counter
	process              metric.Float64Histogram
	receive              []metric.AddOption
	processed, unhandled []metric.RecordOption
}

func newMessaging(meter metric.Meter, p *measure.Pipeline, o *PipelineOptions) (*messaging, error) {
	consumed, err := meter.Int64Counter("messaging.client.consumed.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Number of messages that were delivered to the application."))
	process, err2 := meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of processing operation."),
		metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10))
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("otelobserve: %w", err)
	}
	attributes := func(more ...attribute.KeyValue) metric.MeasurementOption {
		all := append([]attribute.KeyValue{attribute.String("messaging.system", o.System)}, more...)
		if o.Destination != "" {
			all = append(all, attribute.String("messaging.destination.name", o.Destination))
		}
		return metric.WithAttributeSet(attribute.NewSet(all...))
	}
	operation := attribute.String("messaging.operation.name", "process")
	return &messaging{
		Pipeline: p, consumed: consumed, process: process,
		receive:   []metric.AddOption{attributes(attribute.String("messaging.operation.name", "receive"))},
		processed: []metric.RecordOption{attributes(operation)},
		unhandled: []metric.RecordOption{attributes(operation, attribute.String("error.type", "_OTHER"))},
	}, nil
}

// ObservePipeline implements pipeline.Observer.
func (m *messaging) ObservePipeline(e pipeline.Event) {
	m.Pipeline.ObservePipeline(e)
	ctx := context.Background()
	switch {
	case e.Kind == pipeline.EventRead:
		m.consumed.Add(ctx, int64(e.Count), m.receive...)
	case e.Kind == pipeline.EventDelivered && e.Err != nil:
		m.process.Record(ctx, e.Elapsed.Seconds(), m.unhandled...)
	case e.Kind == pipeline.EventDelivered:
		m.process.Record(ctx, e.Elapsed.Seconds(), m.processed...)
	}
}
