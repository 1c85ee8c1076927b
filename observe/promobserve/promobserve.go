// Package promobserve counts the events of guards and pipelines for Prometheus.
//
// README.md of package observe describes the metrics. No label is made from the
// content of a message, so the number of labels depends only on the
// configuration.
package promobserve

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/measure"
	"github.com/semel-dev/semel/pipeline"
)

// Metrics is a collector. Register it once. It is safe for concurrent use.
type Metrics struct {
	backend backend

	mu      sync.Mutex // guards the fields below
	watched map[string]func() (count int, bytes int64)
	shown   map[measured]map[string]measure.Value // the present series of sources
}

var _ prometheus.Collector = (*Metrics)(nil)

// measured is what a pipeline's source reports: its lag, or its own gauges.
type measured struct{ pipeline, what string }

// New returns empty metrics.
func New() *Metrics {
	return &Metrics{backend: newBackend(), watched: map[string]func() (count int, bytes int64){}, shown: map[measured]map[string]measure.Value{}}
}

// Guard returns the observer for the guard of a store, for
// semel.GuardOptions.Observer. The name of the store becomes a label.
func (m *Metrics) Guard(store string) semel.Observer {
	return measure.NewGuard(m.backend.bind, "", store)
}

// Pipeline returns the observer for a pipeline and its guard. Pass it to both.
// The names become labels. A window of 0 is not known.
func (m *Metrics) Pipeline(name, store string, window time.Duration) pipeline.Observer {
	p := measure.NewPipeline(m.backend.bind, name, store)
	p.Window(window)
	return p
}

// Watch reports that a pipeline runs, and its messages in flight whenever
// metrics are collected, until stop is called. See pipeline.Runner.UnderWay.
func (m *Metrics) Watch(name string, underWay func() (count int, bytes int64)) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched[name] = underWay
	m.backend.bind(measure.Running, name)(1)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watched, name)
		m.show(name, 0, 0)
		m.backend.bind(measure.Running, name)(0)
	}
}

func (m *Metrics) show(name string, count int, bytes int64) {
	m.backend.bind(measure.InFlightMessages, name)(float64(count))
	m.backend.bind(measure.InFlightBytes, name)(float64(bytes))
}

// Counted sets the counts of a store, as its semel.Inspector reports.
func (m *Metrics) Counted(store string, counts semel.Counts) {
	m.backend.bind(measure.Keys, store, semel.Claimed.String())(float64(counts.Claimed))
	m.backend.bind(measure.Keys, store, semel.Done.String())(float64(counts.Done))
	m.backend.bind(measure.Keys, store, semel.Unknown.String())(float64(counts.Unknown))
	m.backend.bind(measure.StoreBytes, store, "memory")(float64(counts.MemoryBytes))
	m.backend.bind(measure.StoreBytes, store, "disk")(float64(counts.DiskBytes))
	m.backend.bind(measure.WindowEffective, store)(counts.Oldest.Seconds())
	m.backend.bind(measure.StoreMeasured, store)(now())
}

// Lag sets how far the source of a pipeline is behind, as its traits
// reports. It removes the values of partitions that are not in the list, so nil
// removes all.
func (m *Metrics) Lag(name string, lags []pipeline.Lag) {
	m.replace(measured{name, "lag"}, measure.Lags(name, lags))
}

// Gauges sets the gauges of a pipeline's source, as its traits report them.
// It removes gauges that are not in the list, so nil removes all.
func (m *Metrics) Gauges(name string, gauges []pipeline.Gauge) {
	m.replace(measured{name, "gauges"}, measure.Gauges(name, gauges))
}

// replace shows values, and removes those of the last call.
func (m *Metrics) replace(of measured, values []measure.Value) {
	m.mu.Lock()
	defer m.mu.Unlock()
	shown := map[string]measure.Value{}
	for _, v := range values {
		m.backend.bind(v.ID, v.Labels...)(v.Value) // bind makes labels valid
		shown[fmt.Sprint(v.ID, v.Labels)] = v
	}
	for series, v := range m.shown[of] {
		if _, still := shown[series]; !still {
			m.backend[v.ID].forget(v.Labels...)
		}
	}
	m.shown[of] = shown
}

// Waiting sets the number of parked messages of a pipeline, as Runner.Waiting
// reports.
func (m *Metrics) Waiting(name string, parked int64) {
	m.backend.bind(measure.ParkedWaiting, name)(float64(parked))
}

// Loss sets the share of new messages that a pipeline with only a filter drops,
// as filter.KeyFilter.Rate reports.
func (m *Metrics) Loss(name string, ratio float64) {
	m.backend.bind(measure.LossRatio, name)(ratio)
}

// Layer sets whether a stack skips a layer: see tiered.EventDown and tiered.EventUp.
func (m *Metrics) Layer(store, layer string, down bool) {
	skipped := 0.0
	if down {
		skipped = 1
	}
	m.backend.bind(measure.LayerDown, store, layer)(skipped)
}

// Filter sets the fill of a filter in a stack, if it is not below 0, and counts
// the false positives since the last call: see tiered.LayerStatus.
func (m *Metrics) Filter(store, layer string, fill float64, falsePositives int64) {
	if fill >= 0 {
		m.backend.bind(measure.BloomFill, store, layer)(fill)
	}
	m.backend.bind(measure.BloomFalsePositives, store, layer)(float64(falsePositives))
}

// Passed counts claims that a stack let through while its durable store did not
// answer: see tiered.EventPassed. With 0 the counter exists and shows no such claim.
func (m *Metrics) Passed(store string, keys int) {
	m.backend.bind(measure.FailOpenMessages, "", store)(float64(keys))
}

// Cleaning records that this process waits for its turn to clean up a store.
// That counts as a clean-up at this time.
func (m *Metrics) Cleaning(store string) {
	m.backend.bind(measure.CleanupLast, store)(now())
	m.cleaned(store, 0, 0, 0)
}

// Cleaned counts a clean-up: the number of removed keys, and the error that
// ended it early.
func (m *Metrics) Cleaned(store string, keys int64, err error) {
	if err != nil {
		m.cleaned(store, keys, 0, 1)
		return
	}
	m.cleaned(store, keys, 1, 0)
	m.backend.bind(measure.CleanupLast, store)(now())
}

func (m *Metrics) cleaned(store string, keys int64, ok, failed float64) {
	m.backend.bind(measure.CleanupKeys, store)(float64(keys))
	m.backend.bind(measure.CleanupPasses, store, "ok")(ok)
	m.backend.bind(measure.CleanupPasses, store, "error")(failed)
}

func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(into chan<- *prometheus.Desc) {
	for _, v := range m.backend {
		v.Describe(into)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(into chan<- prometheus.Metric) {
	m.mu.Lock()
	for name, underWay := range m.watched {
		count, bytes := underWay()
		m.show(name, count, bytes)
	}
	m.mu.Unlock()
	for _, v := range m.backend {
		v.Collect(into)
	}
}

// backend has a vector for each instrument.
type backend []vector

// vector is a metric with the values of all its labels.
type vector struct {
	prometheus.Collector
	bind   func(labels ...string) func(float64)
	forget func(labels ...string) bool
}

func newBackend() backend {
	var b backend
	for _, i := range measure.Table() {
		name, help := i.Prometheus(), i.Help
		switch i.Kind {
		case measure.Counter:
			c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, i.Labels)
			b = append(b, vector{c, func(labels ...string) func(float64) { return c.WithLabelValues(labels...).Add }, c.DeleteLabelValues})
		case measure.Histogram:
			h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: i.Bounds()}, i.Labels)
			b = append(b, vector{h, func(labels ...string) func(float64) { return h.WithLabelValues(labels...).Observe }, h.DeleteLabelValues})
		default:
			g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, i.Labels)
			b = append(b, vector{g, func(labels ...string) func(float64) {
				return func(v float64) { g.WithLabelValues(labels...).Set(v) }
			}, g.DeleteLabelValues})
		}
	}
	return b
}

// bind is measure.Bind. It replaces invalid UTF-8 in labels, because a scrape would fail
// with it. Users choose some names.
func (b backend) bind(id measure.ID, labels ...string) func(float64) {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	return b[id].bind(labels...)
}
