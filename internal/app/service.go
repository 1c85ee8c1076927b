package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/pipeline"
)

// Service is what a daemon serves instead of pipelines, such as a proxy. All fields are
// required.
type Service struct {
	// Name names it in probes and in the log.
	Name string
	// Store is the store of its keys.
	Store string
	// Serve serves until ctx ends, and then drains.
	Serve func(ctx context.Context) error
	// Open is called when the store is open, while Serve runs.
	Open func(store semel.Store, observer semel.Observer) error
	// Ready returns nil if the service can work, and otherwise the reason why not.
	Ready func(ctx context.Context) error
	// Metrics are its own metrics.
	Metrics prometheus.Collector
}

// serve runs the service of the daemon.
func (d *daemon) serve(ctx context.Context) error {
	s := d.opts.Service
	if err := d.metrics.registry.Register(s.Metrics); err != nil {
		return err
	}
	lines, err := observe.NewLog(d.log, &observe.LogOptions{Redact: d.file.Redact})
	if err != nil {
		return err
	}
	defer lines.Close()
	faults := &storeFaults{log: d.log.With("store", s.Store), advise: func(err error) error {
		return d.file.AdviseStores(d.file.Stack(s.Store), err)
	}}
	ctx, end := context.WithCancelCause(ctx)
	var opening sync.WaitGroup
	opening.Go(func() {
		if err := d.openService(ctx, observe.All(guarding{d.metrics.Guard(s.Store)}, guarding{hashed{lines}}, guarding{faults})); err != nil {
			end(err)
		}
	})
	served := s.Serve(ctx)
	end(served)
	opening.Wait()
	if cause := context.Cause(ctx); served == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return served
}

// openService opens the store of the service. It waits as a pipeline does; see waits.
func (d *daemon) openService(ctx context.Context, observer semel.Observer) error {
	s := d.opts.Service
	said := func(err error, _ bool) (logged, shown error) { return err, err }
	return d.persist(ctx, &d.service, d.log.With("store", s.Store), "", said, func(opened func()) error {
		store, err := d.stores.Get(ctx, s.Store)
		if err != nil {
			return d.file.AdviseStores(d.file.Stack(s.Store), err)
		}
		if err := s.Open(store, observer); err != nil {
			return err
		}
		d.service.set(func(s *state) { s.waiting = nil })
		opened()
		d.serving.Heard(nil)
		d.maintain(ctx, s.Store)
		return nil
	})
}

// readyService returns nil if the service can work, and otherwise the reason why not.
func (d *daemon) readyService(ctx context.Context) error {
	d.service.mu.Lock()
	waiting := d.service.waiting
	d.service.mu.Unlock()
	if waiting != nil {
		return waiting
	}
	if err := d.opts.Service.Ready(ctx); err != nil {
		return d.ofStore(d.opts.Service.Store, err)
	}
	return nil
}

// guarding is the observer of a guard that no pipeline uses.
type guarding struct{ semel.Observer }

// ObservePipeline implements pipeline.Observer.
func (guarding) ObservePipeline(pipeline.Event) {}

// hashed hides the keys of events, which are chosen by clients and may say who they are.
type hashed struct{ next semel.Observer }

// Observe implements semel.Observer.
func (h hashed) Observe(e semel.Event) {
	if e.Key.ID != "" {
		sum := sha256.Sum256([]byte(e.Key.ID))
		e.Key.ID = "sha256:" + hex.EncodeToString(sum[:8])
	}
	h.next.Observe(e)
}
