// Package otelobserve has OpenTelemetry metrics and traces of guards and pipelines.
//
// README.md of package observe describes the metrics and the spans. Exported to Prometheus,
// the metrics have the same names as those of promobserve. No attribute is made from
// the content of a message.
package otelobserve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/measure"
	"github.com/semel-dev/semel/pipeline"
)

// Metrics has an instrument for each metric. It is safe for concurrent use.
type Metrics struct {
	meter     metric.Meter
	backend   *backend
	messaging bool

	mu     sync.Mutex // guards values
	values map[measured][]measure.Value
}

// measured is what a pipeline's source reports: its lag, or its own gauges.
type measured struct{ pipeline, what string }

// New makes the instruments. It returns the errors of the meter.
//
// The messaging conventions of OpenTelemetry are not stable yet. If the
// environment variable OTEL_SEMCONV_STABILITY_OPT_IN lists "messaging" or
// "messaging/dup", pipelines also count messaging.client.consumed.messages and
// messaging.process.duration.
func New(meter metric.Meter) (*Metrics, error) {
	b, err := newBackend(meter)
	if err != nil {
		return nil, fmt.Errorf("otelobserve: %w", err)
	}
	chosen := strings.Split(os.Getenv("OTEL_SEMCONV_STABILITY_OPT_IN"), ",")
	messaging := slices.ContainsFunc(chosen, func(s string) bool {
		s = strings.TrimSpace(s)
		return s == "messaging" || s == "messaging/dup"
	})
	m := &Metrics{meter: meter, backend: b, messaging: messaging, values: map[measured][]measure.Value{}}
	instruments := []metric.Observable{b.observed[measure.SourceLagMessages], b.observed[measure.SourceLagBytes]}
	for _, g := range b.gauges {
		instruments = append(instruments, g)
	}
	if _, err := meter.RegisterCallback(m.observeSources, instruments...); err != nil { // the registration lives as long as the meter
		return nil, fmt.Errorf("otelobserve: %w", err)
	}
	return m, nil
}

// observeSources reports the present values of sources. Those of earlier calls disappear.
func (m *Metrics) observeSources(_ context.Context, o metric.Observer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, values := range m.values {
		for _, v := range values {
			by := metric.WithAttributeSet(m.backend.attributes(v.ID, v.Labels))
			if g, ok := m.backend.gauges[v.ID]; ok {
				o.ObserveFloat64(g, v.Value, by)
			} else {
				o.ObserveInt64(m.backend.observed[v.ID], int64(v.Value), by)
			}
		}
	}
	return nil
}

// Lag sets how far the source of a pipeline is behind, as its traits
// reports. The value stays until the next call. Nil removes it.
func (m *Metrics) Lag(name string, lags []pipeline.Lag) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[measured{name, "lag"}] = measure.Lags(name, lags)
}

// Gauges sets the gauges of a pipeline's source, as its traits report them.
// They stay until the next call. Nil removes them.
func (m *Metrics) Gauges(name string, gauges []pipeline.Gauge) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[measured{name, "gauges"}] = measure.Gauges(name, gauges)
}

// Waiting sets the number of parked messages of a pipeline, as Runner.Waiting
// reports.
func (m *Metrics) Waiting(name string, parked int64) {
	m.backend.Bind(measure.ParkedWaiting, name)(float64(parked))
}

// Loss sets the share of new messages that a pipeline with only a filter drops,
// as semel.KeyFilter.Rate reports.
func (m *Metrics) Loss(name string, ratio float64) {
	m.backend.Bind(measure.LossRatio, name)(ratio)
}

// Guard returns the observer for the guard of a store, for
// semel.GuardOptions.Observer. The name of the store becomes an attribute.
func (m *Metrics) Guard(store string) semel.Observer { return measure.NewGuard(m.backend, "", store) }

// PipelineOptions are the options of Pipeline. The zero value is valid.
type PipelineOptions struct {
	// Store is the name of the pipeline's store. Defaults to none.
	Store string
	// Window is the window of the keys. Defaults to 0: not known.
	Window time.Duration
	// System is the messaging.system of the source, such as "kafka".
	// Destination is its messaging.destination.name, the topic or queue.
	// Default to none: without a system the messaging conventions are not used.
	System, Destination string
}

// Pipeline returns the observer for a pipeline and its guard. Pass it to both.
// The name becomes an attribute. Nil options are the zero options. Pipeline
// returns the errors of the meter.
func (m *Metrics) Pipeline(name string, opts *PipelineOptions) (pipeline.Observer, error) {
	var o PipelineOptions
	if opts != nil {
		o = *opts
	}
	p := measure.NewPipeline(m.backend, name, o.Store)
	p.Window(o.Window)
	if !m.messaging || o.System == "" {
		return p, nil
	}
	return newMessaging(m.meter, p, &o)
}

// Watch reports that a pipeline runs, and its messages in flight whenever
// metrics are collected, until stop is called. See pipeline.Runner.UnderWay.
// Watch returns the errors of the meter.
func (m *Metrics) Watch(name string, underWay func() (count int, bytes int64)) (stop func() error, err error) {
	running := m.backend.Bind(measure.Running, name)
	by := metric.WithAttributes(attribute.String("pipeline", name))
	messages, size := m.backend.observed[measure.InFlightMessages], m.backend.observed[measure.InFlightBytes]
	registration, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		count, bytes := underWay()
		o.ObserveInt64(messages, int64(count), by)
		o.ObserveInt64(size, bytes, by)
		return nil
	}, messages, size)
	if err != nil {
		return nil, fmt.Errorf("otelobserve: %w", err)
	}
	running(1)
	return func() error {
		running(0)
		return registration.Unregister()
	}, nil
}

// Counted sets the counts of a store, as its semel.Inspector reports.
func (m *Metrics) Counted(store string, counts semel.Counts) {
	measure.Counted(m.backend, store, &counts, time.Now())
}

// Layer sets whether a stack skips a layer: see tiered.EventDown and tiered.EventUp.
func (m *Metrics) Layer(store, layer string, down bool) {
	measure.Layer(m.backend, store, layer, down)
}

// Filter sets the fill of a filter in a stack, if it is not below 0, and counts
// the false positives since the last call: see tiered.LayerStatus.
func (m *Metrics) Filter(store, layer string, fill float64, falsePositives int64) {
	measure.Filter(m.backend, store, layer, fill, falsePositives)
}

// Passed counts claims that a stack let through while its durable store did not
// answer: see tiered.EventPassed. With 0 the counter exists and shows no such claim.
func (m *Metrics) Passed(store string, keys int) { measure.Passed(m.backend, store, keys) }

// Cleaning records that this process waits for its turn to clean up a store.
// That counts as a clean-up at this time.
func (m *Metrics) Cleaning(store string) { measure.Cleaning(m.backend, store, time.Now()) }

// Cleaned counts a clean-up: the number of removed keys, and the error that
// ended it early.
func (m *Metrics) Cleaned(store string, keys int64, err error) {
	measure.Cleaned(m.backend, store, keys, err, time.Now())
}

// backend has the recording functions of each instrument.
type backend struct {
	table    []measure.Instrument
	record   []func(set attribute.Set) func(float64)
	observed map[measure.ID]metric.Int64ObservableGauge   // those that are read by callback
	gauges   map[measure.ID]metric.Float64ObservableGauge // likewise
}

func newBackend(meter metric.Meter) (*backend, error) {
	b := &backend{table: measure.Table(), observed: map[measure.ID]metric.Int64ObservableGauge{}, gauges: map[measure.ID]metric.Float64ObservableGauge{}}
	var errs []error
	for id := range b.table {
		record, err := b.instrument(meter, measure.ID(id))
		b.record = append(b.record, record)
		errs = append(errs, err)
	}
	return b, errors.Join(errs...)
}

// instrument makes an instrument and returns the function that binds attributes
// to it.
func (b *backend) instrument(meter metric.Meter, id measure.ID) (func(attribute.Set) func(float64), error) {
	i := &b.table[id]
	about, unit := metric.WithDescription(i.Help), metric.WithUnit(i.Unit)
	ctx := context.Background()
	switch {
	case id == measure.InFlightMessages, id == measure.InFlightBytes, id == measure.SourceLagMessages, id == measure.SourceLagBytes:
		g, err := meter.Int64ObservableGauge(i.Name, about, unit)
		b.observed[id] = g
		return nil, err
	case measure.OfSource(id):
		g, err := meter.Float64ObservableGauge(i.Name, about, unit)
		b.gauges[id] = g
		return nil, err
	case i.Kind == measure.Counter:
		c, err := meter.Int64Counter(i.Name, about, unit)
		return func(set attribute.Set) func(float64) {
			by := []metric.AddOption{metric.WithAttributeSet(set)}
			add := func(n float64) { c.Add(ctx, int64(n), by...) }
			add(0) // the counter exists from the start
			return add
		}, err
	case i.Kind == measure.Histogram:
		h, err := meter.Float64Histogram(i.Name, about, unit, metric.WithExplicitBucketBoundaries(i.Bounds()...))
		return func(set attribute.Set) func(float64) {
			by := []metric.RecordOption{metric.WithAttributeSet(set)}
			return func(v float64) { h.Record(ctx, v, by...) }
		}, err
	default:
		g, err := meter.Float64Gauge(i.Name, about, unit)
		return func(set attribute.Set) func(float64) {
			by := []metric.RecordOption{metric.WithAttributeSet(set)}
			return func(v float64) { g.Record(ctx, v, by...) }
		}, err
	}
}

// Bind implements measure.Backend.
func (b *backend) Bind(id measure.ID, labels ...string) func(float64) {
	return b.record[id](b.attributes(id, labels))
}

// attributes returns the labels of an instrument with their names.
func (b *backend) attributes(id measure.ID, labels []string) attribute.Set {
	list := make([]attribute.KeyValue, len(labels))
	for i, name := range b.table[id].Labels {
		list[i] = attribute.String(name, strings.ToValidUTF8(labels[i], "\uFFFD"))
	}
	return attribute.NewSet(list...)
}
