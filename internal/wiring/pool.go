package wiring

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

// Stores are the stores of a configuration, each opened when it is first asked
// for and then shared: an embedded store can only be open once. Its methods may
// be called at once.
type Stores struct {
	mu sync.Mutex
	w  *opening
}

// NewStores returns the stores of a configuration. It opens none. Nil options
// are valid.
func NewStores(f *config.File, opts *Options) *Stores {
	var o Options
	if opts != nil {
		o = *opts
	}
	return &Stores{w: &opening{file: f, opts: o, open: map[string]semel.Store{}}}
}

// Get returns the store of this name, with everything below it. It blocks until
// its servers have answered. It belongs to the Stores.
func (s *Stores) Get(ctx context.Context, name string) (semel.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	store, err := s.w.store(ctx, name)
	return store, s.w.file.RedactError(err)
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
	s.w.closes, s.w.open = nil, map[string]semel.Store{}
	return s.w.file.RedactError(errors.Join(errs...))
}
