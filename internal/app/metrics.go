package app

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/observe/promobserve"
	"github.com/semel-dev/semel/store/tiered"
)

const (
	// measureEvery is how often a store is measured, if that is quick. A slow store
	// is measured less often, so that measuring takes at most a hundredth of the
	// time.
	measureEvery = time.Minute
	// measureFor limits one measurement.
	measureFor = 5 * time.Minute
)

// metrics counts the events of pipelines.
type metrics struct {
	*promobserve.Metrics
	registry *prometheus.Registry
}

func newMetrics() (*metrics, error) {
	m := &metrics{promobserve.New(), prometheus.NewRegistry()}
	for _, c := range []prometheus.Collector{m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := m.registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 30 * time.Second})
}

// maintain measures a store and cleans it up as long as the daemon runs. It ignores a
// store that is already tended, or that has no name. It does not block.
func (d *daemon) maintain(ctx context.Context, name string) {
	d.tendingMu.Lock()
	defer d.tendingMu.Unlock()
	if _, already := d.tended[name]; name == "" || already {
		return
	}
	d.tended[name] = tended{}
	d.showLayers(name)
	d.tending.Go(func() {
		store, err := d.stores.Get(ctx, name) // already open: a pipeline uses it
		if err != nil {
			return
		}
		d.tendingMu.Lock()
		d.tended[name] = tended{store: store, asked: &admin.Inquiry{}}
		d.tended[name].asked.Heard(nil) // it was opened
		d.tendingMu.Unlock()
		if counter, ok := semel.As[semel.Inspector](store); ok {
			d.tending.Go(func() { d.measure(ctx, name, store, counter) })
		}
		if stack, ok := semel.As[*tiered.Store](store); ok {
			d.tending.Go(func() { d.showFilters(ctx, name, stack) })
		}
		if maintain := Maintain(d.file, name, store); maintain != nil {
			d.clean(ctx, name, maintain)
		}
	})
}

// showLayers initializes the metrics of the layers of a stack, before any event.
func (d *daemon) showLayers(name string) {
	s, ok := d.file.Store(name)
	if !ok {
		return
	}
	layers := s.Spec.About().Layers
	if layers == nil {
		return
	}
	for _, layer := range layers[:len(layers)-1] {
		d.metrics.Layer(name, layer.Name, false)
	}
	d.metrics.Layer(name, durable, false)
	d.metrics.Passed(name, 0)
}

// showFilters updates the metrics of a stack's filters periodically until ctx
// ends.
func (d *daemon) showFilters(ctx context.Context, name string, stack *tiered.Store) {
	told := map[string]int64{} // false positives counted so far
	a := &polled{ask: func(context.Context) error {
		for _, l := range stack.Status().Layers {
			if l.Filter {
				d.metrics.Filter(name, l.Name, l.Fill, l.FalsePositives-told[l.Name])
				told[l.Name] = l.FalsePositives
			}
		}
		if len(told) == 0 {
			return errors.ErrUnsupported
		}
		return nil
	}}
	a.now(ctx, d.log)
}

// clean cleans a store up until ctx ends.
func (d *daemon) clean(ctx context.Context, name string, maintain func(context.Context, func(int64, error)) error) {
	d.metrics.Cleaning(name)
	d.cleaned(name, &admin.CleanUp{})
	err := maintain(ctx, func(gone int64, err error) {
		d.metrics.Cleaned(name, gone, err)
		last := &admin.CleanUp{At: time.Now(), Keys: gone}
		if err != nil {
			last.Error = inLog("it ended early", err).Error()
		}
		d.cleaned(name, last)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("a clean-up of expired keys ended early", "store", name, "gone", gone, "error", d.file.AdviseStores(d.file.Stack(name), err))
		}
	})
	if err != nil && ctx.Err() == nil {
		d.log.Error("expired keys are no longer cleaned up", "store", name, "error", d.file.AdviseStores(d.file.Stack(name), err))
	}
}

// cleaned notes the last clean-up of a store for the status.
func (d *daemon) cleaned(name string, last *admin.CleanUp) {
	d.tendingMu.Lock()
	defer d.tendingMu.Unlock()
	of := d.tended[name]
	of.cleanUp = last
	d.tended[name] = of
}

// warnOfEmptied logs that a table of a store has lost all its rows in one step.
func (d *daemon) warnOfEmptied(ctx context.Context, name string, store semel.Store) error {
	of, ok := semel.As[interface {
		Emptied(ctx context.Context) ([]string, error)
	}](store)
	if !ok {
		return nil
	}
	tables, err := of.Emptied(ctx)
	for _, table := range tables {
		d.log.Warn("a table has lost all its rows at once", "store", name, "table", table,
			"cost", "what it knew is forgotten: of keys, repeated messages have their effect again",
			"remedy", "was it TRUNCATE, or a restore? put the rows back from a backup; semel doctor shows this for a week")
	}
	return err
}

// measure updates the metrics of a store's contents periodically.
func (d *daemon) measure(ctx context.Context, name string, store semel.Store, counter semel.Inspector) {
	for failed := false; ; {
		limited, cancel := context.WithTimeout(ctx, measureFor)
		took, err := d.counted(limited, name, counter)
		if err == nil {
			err = d.warnOfEmptied(limited, name, store)
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failed && !errors.Is(err, semel.ErrClosed):
			d.log.Warn("a store cannot be measured", "store", name, "error", d.file.AdviseStores(d.file.Stack(name), err))
		}
		failed = err != nil
		pause := max(measureEvery, 100*took)
		if retry.Sleep(ctx, retry.Around(pause, 0.1)) != nil {
			return
		}
	}
}
