package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// process is what other processes see of the daemon.
func (d *daemon) process() *admin.Process {
	return &admin.Process{
		Ready: d.ready, Status: d.status, Metrics: d.metrics.handler(), Store: d.opened, Parked: d.openParked, Journal: d.journal, Redact: d.file.Redact, Rates: d.rates,
		Tries: admin.Tries{Failed: func(user, address string) { d.log.Warn("a login failed", "user", user, "address", address) }},
	}
}

// underWay returns the messages of some keys that pipelines have read and not settled.
func (d *daemon) underWay(keys []semel.Key) (list []admin.UnderWay) {
	for i := range d.states {
		s := &d.states[i]
		s.mu.Lock()
		p, ok := s.pipeline.(*Pipeline)
		s.mu.Unlock()
		if !ok {
			continue
		}
		for _, at := range p.KeyProgress(keys...) {
			now := admin.UnderWay{Pipeline: s.name, State: admin.StateReadAhead, NextRetry: at.Next}
			switch {
			case at.Working:
				now.State = admin.StateInFlight
			case at.Retrying:
				now.State = admin.StateRetrying
			}
			list = append(list, now)
		}
	}
	return list
}

// rates returns the rates of a pipeline in the last hour.
func (d *daemon) rates(pipeline string) []float64 {
	for i := range d.states {
		if s := &d.states[i]; s.name == pipeline {
			return s.counters.hour()
		}
	}
	return nil
}

// adminAddress is the address that the admin server listens on, or admin.Off.
func (d *daemon) adminAddress() string {
	return cmp.Or(d.opts.Admin, d.file.Admin.Listen, admin.DefaultAddress)
}

// listenAdmin listens for the admin server. It returns nil if none exists: it is off, or
// another program has the default address.
func (d *daemon) listenAdmin() (net.Listener, error) {
	address := d.adminAddress()
	listener, err := admin.Listen(address, &d.file.Admin, d.opts.InsecureNoAuth)
	if _, taken := errors.AsType[*net.OpError](err); taken && d.opts.Admin == "" && address == admin.DefaultAddress {
		d.log.Warn("no admin server: the address is taken, perhaps by another semel run; write --admin ADDRESS", "address", address, "error", err)
		return nil, nil
	}
	if listener != nil {
		d.log.Info("admin server", "address", listener.Addr().String())
	}
	return listener, err
}

// ready asks every pipeline, and the service, whether it can work. It asks all concurrently, so
// that one that does not answer takes no time from the others.
func (d *daemon) ready(ctx context.Context) []admin.Readiness {
	parts := make([]admin.Readiness, len(d.states), len(d.states)+1)
	if s := d.opts.Service; s != nil {
		parts = append(parts, admin.Readiness{Name: s.Name})
	}
	var asking sync.WaitGroup
	for i := range parts {
		asking.Go(func() {
			ask := d.readyService
			if i < len(d.states) {
				parts[i].Name, ask = d.states[i].name, d.states[i].ready
			}
			if err := ask(ctx); err != nil {
				parts[i].Why = d.why(err)
			}
		})
	}
	asking.Wait()
	return parts
}

// listenInStore answers questions through a socket in the directory of a store, until
// the returned function is called. Without the socket the pipelines work as well.
func (d *daemon) listenInStore(store, dir string) (closing func() error) {
	listener, err := admin.ListenIn(dir)
	if err != nil {
		d.log.Warn("no socket in the store's directory: semel keys and semel explain cannot ask this process; name its admin server with --admin", "store", store, "error", err)
		return func() error { return nil }
	}
	server := admin.NewSocketServer(d.process(), func() (semel.Store, error) {
		// A stack above the store must forget the keys that an operator removes.
		if stack, ok := d.file.Above(store); ok {
			if found, err := d.opened(stack.Name); err == nil {
				return found, nil
			}
		}
		return d.opened(store)
	})
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			d.log.Error("the socket in the store's directory ended", "store", store, "error", err)
		}
	})
	return func() error {
		err := server.Close()
		serving.Wait()
		return err
	}
}

// opened returns a store that a pipeline has open.
func (d *daemon) opened(name string) (semel.Store, error) {
	if store, ok := d.stores.Opened(name); ok {
		return store, nil
	}
	if _, ok := d.file.Store(name); !ok {
		return nil, fmt.Errorf("the running process has no store %q: %s: %w", name, schema.OneOf(name, d.file.StoreNames()), semel.ErrInvalidRequest)
	}
	return nil, fmt.Errorf("the running process does not have the store %s open: %w", name, semel.ErrStoreUnavailable)
}

// openParked opens the parked messages of a pipeline.
func (d *daemon) openParked(ctx context.Context, name string) (pipeline.DeadLetters, bool, error) {
	spec, ok := d.file.Pipeline(name)
	if !ok {
		return nil, false, fmt.Errorf("the running process has no pipeline %q: %s: %w", name, schema.OneOf(name, d.file.PipelineNames()), semel.ErrInvalidRequest)
	}
	return ExistingDeadLetters(ctx, d.file, spec)
}
