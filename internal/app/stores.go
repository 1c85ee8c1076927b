package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/tiered"
)

// StoresOptions configure [OpenStore] and [NewStores]. The zero value and nil mean the defaults.
type StoresOptions struct {
	// OnLayer is called when a layer of a stack fails or recovers. It is called
	// concurrently and must not block. Defaults to none.
	OnLayer func(stack string, event tiered.Event)
	// OnDirectory is called when a store in a directory is open, while Get waits. It must
	// not call Get. The function that it returns is called before the
	// store is closed. Defaults to none.
	OnDirectory func(store, dir string) (closing func() error)
	// KeepIDs, KeepClaims and ReadOnly are those of config.StoreEnv.
	KeepIDs, KeepClaims, ReadOnly bool
}

// Stores are the stores of a configuration. Each is opened on first use and then
// shared, because an embedded store can be open only once. Its methods are safe
// for concurrent use.
type Stores struct {
	file *config.File
	opts StoresOptions

	opening sync.Mutex // held while a store opens or closes; guards filters and closes
	filters map[string]filter.KeyFilter
	closes  []func() error

	mu   sync.Mutex // guards open; taken after opening
	open map[string]semel.Store
}

// NewStores returns the stores of a configuration. It does not open them. Nil
// options are valid.
func NewStores(f *config.File, opts *StoresOptions) *Stores {
	s := &Stores{file: f, open: map[string]semel.Store{}, filters: map[string]filter.KeyFilter{}}
	if opts != nil {
		s.opts = *opts
	}
	return s
}

// OpenStore opens one store, with all stores that it is built on; see Get. The caller must
// close the Stores.
func OpenStore(ctx context.Context, f *config.File, name string, opts *StoresOptions) (semel.Store, *Stores, error) {
	stores := NewStores(f, opts)
	store, err := stores.Get(ctx, name)
	if err != nil {
		return nil, nil, errors.Join(err, stores.Close())
	}
	return store, stores, nil
}

// Get returns the store with this name and opens it if necessary, with all stores
// that it is built on. It blocks until their servers have answered. The store
// belongs to s. Errors have the class that the store gave them.
func (s *Stores) Get(ctx context.Context, name string) (semel.Store, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	store, err := s.store(ctx, name)
	return store, s.file.RedactError(err)
}

// store is Get for a caller that holds the lock.
func (s *Stores) store(ctx context.Context, name string) (semel.Store, error) {
	if store, open := s.Opened(name); open {
		return store, nil
	}
	of, ok := s.file.Store(name)
	if !ok {
		return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
	}
	store, err := of.Spec.Open(ctx, s.env(name))
	if err != nil {
		return store, err
	}
	s.setOpen(func() { s.open[name] = store })
	if dir := of.Spec.About().Directory; dir != "" && s.opts.OnDirectory != nil {
		s.closes = append(s.closes, s.opts.OnDirectory(name, dir))
	}
	return store, nil
}

func (s *Stores) setOpen(set func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set()
}

// Opened returns the store with this name if it is open. It opens nothing, and does not
// wait for a store that opens.
func (s *Stores) Opened(name string) (semel.Store, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store, open := s.open[name]
	return store, open
}

// env returns the environment in which the store with this name opens.
func (s *Stores) env(name string) *config.StoreEnv {
	env := &config.StoreEnv{
		File: s.file, Name: name, Store: s.store, KeepIDs: s.opts.KeepIDs, KeepClaims: s.opts.KeepClaims, ReadOnly: s.opts.ReadOnly,
		OnClose: func(closing func() error) { s.closes = append(s.closes, closing) },
	}
	if s.opts.OnLayer != nil {
		env.OnLayer = func(event tiered.Event) { s.opts.OnLayer(name, event) }
	}
	return env
}

// Filter returns the filter with this name, for a pipeline in which it decides
// alone. It blocks until its server has answered. The filter belongs to s.
func (s *Stores) Filter(ctx context.Context, name string) (filter.KeyFilter, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if filter, open := s.filters[name]; open {
		return filter, nil
	}
	var spec config.FilterStore
	if of, ok := s.file.Store(name); ok {
		spec, _ = of.Spec.(config.FilterStore) // nil if it is no filter
	}
	if spec == nil {
		return nil, fmt.Errorf("there is no filter %q: %w", name, semel.ErrInvalidRequest)
	}
	filter, err := spec.OpenFilter(ctx, s.env(name))
	if err != nil {
		return nil, s.file.RedactError(err)
	}
	s.filters[name] = filter
	return filter, nil
}

// Close closes the open stores in reverse order of opening. It waits for running
// calls. Closing twice is allowed.
func (s *Stores) Close() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	s.setOpen(func() { s.open = map[string]semel.Store{} })
	var errs []error
	for _, closing := range slices.Backward(s.closes) {
		errs = append(errs, closing())
	}
	s.closes, s.filters = nil, map[string]filter.KeyFilter{}
	return s.file.RedactError(errors.Join(errs...))
}

// CheckAddresses returns the faults in store addresses that can be found without
// connecting: an invalid port, an unknown setting, a certificate file that cannot
// be read. Each problem names the store. Of the address it shows only what the
// driver says.
func CheckAddresses(f *config.File) []schema.Problem {
	var problems []schema.Problem
	for _, s := range f.Stores {
		if field, err := s.Spec.CheckAddress(f.Needs(s.Name)); err != nil && !f.HasPlaceholder("stores."+s.Name+"."+s.Spec.Kind()+"."+field) {
			text := f.Redact(err.Error())
			// The driver shows the address before the reason.
			text = text[strings.LastIndex(text, "`: ")+1:]
			text = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(text, ": "), "redisstore: "), ": invalid request")
			problems = append(problems, schema.Problem{Place: s.At, Text: "stores." + s.Name + "." + s.Spec.Kind() + "." + field + ": " + text})
		}
	}
	return problems
}

// Maintain returns a function that cleans up the store with this name until its
// context ends, as configured. For each clean-up it reports how many keys are
// gone and why it ended early. Maintain returns nil if the store deletes expired
// keys itself.
func Maintain(f *config.File, name string, store semel.Store) func(ctx context.Context, pass func(gone int64, err error)) error {
	if s := f.Decider(name); s != nil {
		if database, ok := s.Spec.(config.Database); ok {
			return database.Clean(store)
		}
	}
	return nil
}
