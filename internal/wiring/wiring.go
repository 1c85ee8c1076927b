package wiring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/tiered"
)

// Options configure [Open] and [NewStores]. The zero value and nil mean the
// defaults.
type Options struct {
	// OnLayer is called when a layer of a stack fails or recovers. It is called
	// concurrently and must not block. Defaults to none.
	OnLayer func(stack string, event tiered.Event)
}

// Opened is an open store with all stores that it is built on.
type Opened struct {
	// Store is the store itself. Use semel.Ability to find its optional interfaces.
	Store semel.Store

	file   *config.File
	closes []func() error
}

// Open opens the store with this name and all stores that it is built on. It
// blocks until their servers have answered. Nil options are valid. The caller
// must close the result. Errors have the class that the store gave them.
func Open(ctx context.Context, f *config.File, name string, opts *Options) (*Opened, error) {
	w := &opening{file: f}
	if opts != nil {
		w.opts = *opts
	}
	store, err := w.store(ctx, name)
	opened := &Opened{Store: store, file: f, closes: w.closes}
	if err != nil {
		return nil, errors.Join(f.RedactError(err), opened.Close())
	}
	return opened, nil
}

// Close closes the store and all stores that it is built on, in reverse order of
// opening. It waits for running calls. Closing twice is allowed.
func (o *Opened) Close() error {
	var errs []error
	for _, closing := range slices.Backward(o.closes) {
		errs = append(errs, closing())
	}
	o.closes = nil
	return o.file.RedactError(errors.Join(errs...))
}

// opening opens stores of one file.
type opening struct {
	file   *config.File
	opts   Options
	open   map[string]semel.Store // shared stores; nil means that none are shared
	closes []func() error
}

// env returns the environment in which the store with this name opens.
func (w *opening) env(name string) *config.StoreEnv {
	env := &config.StoreEnv{
		File: w.file, Name: name, Store: w.store,
		OnClose: func(closing func() error) { w.closes = append(w.closes, closing) },
	}
	if w.opts.OnLayer != nil {
		env.OnLayer = func(event tiered.Event) { w.opts.OnLayer(name, event) }
	}
	return env
}

// store returns one store and opens it if necessary.
func (w *opening) store(ctx context.Context, name string) (semel.Store, error) {
	if store, open := w.open[name]; open {
		return store, nil
	}
	s, ok := w.file.Store(name)
	if !ok {
		return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
	}
	store, err := s.Spec.Open(ctx, w.env(name))
	if err == nil && w.open != nil {
		w.open[name] = store
	}
	return store, err
}

// Stores are the stores of a configuration. Each is opened on first use and then
// shared, because an embedded store can be open only once. Its methods are safe
// for concurrent use.
type Stores struct {
	mu      sync.Mutex // guards everything
	w       *opening
	filters map[string]semel.KeyFilter
}

// NewStores returns the stores of a configuration. It does not open them. Nil
// options are valid.
func NewStores(f *config.File, opts *Options) *Stores {
	var o Options
	if opts != nil {
		o = *opts
	}
	return &Stores{w: &opening{file: f, opts: o, open: map[string]semel.Store{}}, filters: map[string]semel.KeyFilter{}}
}

// Get returns the store with this name and opens it if necessary, with all stores
// that it is built on. It blocks until their servers have answered. The store
// belongs to s.
func (s *Stores) Get(ctx context.Context, name string) (semel.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store, err := s.w.store(ctx, name)
	return store, s.w.file.RedactError(err)
}

// Filter returns the filter with this name, for a pipeline in which it decides
// alone. It blocks until its server has answered. The filter belongs to s.
func (s *Stores) Filter(ctx context.Context, name string) (semel.KeyFilter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if filter, open := s.filters[name]; open {
		return filter, nil
	}
	var spec config.FilterSpec
	if of, ok := s.w.file.Store(name); ok {
		spec, _ = of.Spec.(config.FilterSpec)
	}
	if spec == nil {
		return nil, fmt.Errorf("there is no filter %q: %w", name, semel.ErrInvalidRequest)
	}
	filter, err := spec.OpenFilter(ctx, s.w.env(name))
	if err != nil {
		return nil, s.w.file.RedactError(err)
	}
	s.filters[name] = filter
	return filter, nil
}

// Close closes the open stores in reverse order of opening. It waits for running
// calls. Closing twice is allowed.
func (s *Stores) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, closing := range slices.Backward(s.w.closes) {
		errs = append(errs, closing())
	}
	s.w.closes, s.w.open, s.filters = nil, map[string]semel.Store{}, map[string]semel.KeyFilter{}
	return s.w.file.RedactError(errors.Join(errs...))
}

// CheckAddresses returns the faults in store addresses that can be found without
// connecting: an invalid port, an unknown setting, a certificate file that cannot
// be read. Each problem names the store. Of the address it shows only what the
// driver says.
func CheckAddresses(f *config.File) []schema.Problem {
	var problems []schema.Problem
	for _, s := range f.Stores {
		checker, ok := s.Spec.(config.AddressChecker)
		if !ok {
			continue
		}
		if field, err := checker.CheckAddress(f.Needs(s.Name)); err != nil {
			text := f.Redact(err.Error())
			// The driver shows the address before the reason.
			text = text[strings.LastIndex(text, "`: ")+1:]
			text = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, ": "), "redisstore: "), ": invalid request")
			problems = append(problems, schema.Problem{Place: s.At, Text: "stores." + s.Name + "." + s.Spec.Kind() + "." + field + ": " + text})
		}
	}
	return problems
}
