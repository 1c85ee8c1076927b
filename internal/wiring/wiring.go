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

// Options configure [Open] and [NewStores]. The zero value, and nil, mean the defaults.
type Options struct {
	// OnLayer is told when layers of a stack fail and return, from many goroutines
	// concurrently. It must not block. Defaults to none.
	OnLayer func(stack string, event tiered.Event)
}

// Opened is an open store with everything below it.
type Opened struct {
	// Store is the store itself. Abilities are found by semel.Ability.
	Store semel.Store

	file   *config.File
	closes []func() error
}

// Open opens the store of this name and everything below it, and blocks until
// its servers have answered. Nil options are valid. The caller closes what it
// returns. Errors have the class of the store's own.
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

// Close closes the store and everything below it, what was opened last first,
// and waits for the calls that run. Closing twice is legal.
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
	open   map[string]semel.Store // those that are shared; nil shares none
	closes []func() error
}

// env is what the store of a name has at hand while it opens.
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

// store returns one store, which is opened if it is not open.
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

// Stores are the stores of a configuration, each opened when it is first asked
// for and then shared: an embedded store can only be open once. Its methods may
// be called concurrently.
type Stores struct {
	mu      sync.Mutex // guards all
	w       *opening
	filters map[string]semel.KeyFilter
}

// NewStores returns the stores of a configuration. It opens none. Nil options
// are valid.
func NewStores(f *config.File, opts *Options) *Stores {
	var o Options
	if opts != nil {
		o = *opts
	}
	return &Stores{w: &opening{file: f, opts: o, open: map[string]semel.Store{}}, filters: map[string]semel.KeyFilter{}}
}

// Get returns the store of this name, with everything below it. It blocks until
// its servers have answered. It belongs to the Stores.
func (s *Stores) Get(ctx context.Context, name string) (semel.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store, err := s.w.store(ctx, name)
	return store, s.w.file.RedactError(err)
}

// Filter returns the filter of this name, for a pipeline in which it decides
// alone. It blocks until its server has answered, and belongs to the Stores.
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

// Close closes what is open, what was opened last first, and waits for the calls
// that run. Closing twice is legal.
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

// CheckAddresses returns what stores know to be wrong with their addresses without
// connecting: a port that is none, a setting that there is not, a file of
// certificates that cannot be read. It names the store, and of the address
// nothing but what the driver says of it.
func CheckAddresses(f *config.File) []schema.Problem {
	var problems []schema.Problem
	for _, s := range f.Stores {
		checker, ok := s.Spec.(config.AddressChecker)
		if !ok {
			continue
		}
		if field, err := checker.CheckAddress(f.Needs(s.Name)); err != nil {
			text := f.Redact(err.Error())
			// A driver shows the address before the reason.
			text = text[strings.LastIndex(text, "`: ")+1:]
			text = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, ": "), "redisstore: "), ": invalid request")
			problems = append(problems, schema.Problem{Place: s.At, Text: "stores." + s.Name + "." + s.Spec.Kind() + "." + field + ": " + text})
		}
	}
	return problems
}
