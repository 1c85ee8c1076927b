package wiring

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// Stores are the stores of a configuration, each opened when it is first asked
// for and then shared: an embedded store can only be open once. Its methods may
// be called at once.
type Stores struct {
	mu      sync.Mutex // guards all
	w       *opening
	filters map[string]pipeline.KeyFilter
}

// NewStores returns the stores of a configuration. It opens none. Nil options
// are valid.
func NewStores(f *config.File, opts *Options) *Stores {
	var o Options
	if opts != nil {
		o = *opts
	}
	return &Stores{w: &opening{file: f, opts: o, open: map[string]semel.Store{}}, filters: map[string]pipeline.KeyFilter{}}
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
func (s *Stores) Filter(ctx context.Context, name string) (pipeline.KeyFilter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if filter, open := s.filters[name]; open {
		return filter, nil
	}
	filter, err := s.w.alone(ctx, name)
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
	s.w.closes, s.w.open, s.filters = nil, map[string]semel.Store{}, map[string]pipeline.KeyFilter{}
	return s.w.file.RedactError(errors.Join(errs...))
}
