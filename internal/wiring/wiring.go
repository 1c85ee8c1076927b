package wiring

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/tiered"
)

// Options configure [Open]. The zero value, and nil, mean the defaults.
type Options struct {
	// Observe is told when layers of a stack fail and return, from many
	// goroutines at once. It must not block. Defaults to none.
	Observe func(stack string, event tiered.Event)
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
	var o Options
	if opts != nil {
		o = *opts
	}
	w := &opening{file: f, opts: o}
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

// opening is one call of Open.
type opening struct {
	file   *config.File
	opts   Options
	open   map[string]semel.Store // those that are shared; nil shares none
	closes []func() error
}

// onClose adds what closes something that is open from now on.
func (w *opening) onClose(closing func() error) { w.closes = append(w.closes, closing) }

// store returns one store, which is opened if it is not open.
func (w *opening) store(ctx context.Context, name string) (semel.Store, error) {
	if store, open := w.open[name]; open {
		return store, nil
	}
	store, err := w.kind(ctx, name)
	if err == nil && w.open != nil {
		w.open[name] = store
	}
	return store, err
}

// kind opens one store. Every kind is here.
func (w *opening) kind(ctx context.Context, name string) (semel.Store, error) {
	s, ok := w.file.Store(name)
	if !ok {
		return nil, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
	}
	switch spec := s.Spec.(type) {
	case *config.Memory:
		return openMemory(spec)
	case *config.Embedded:
		return w.embedded(spec)
	case *config.Redis:
		return w.redis(ctx, spec)
	case *config.Postgres:
		return w.postgres(ctx, spec)
	case *config.Tiered:
		return w.tiered(ctx, s.Name, spec)
	case *config.Filter:
		return nil, fmt.Errorf("%s is a filter, which keeps no records: it stands above an exact store, in a tiered one: %w", name, semel.ErrInvalidRequest)
	default:
		return nil, fmt.Errorf("%s is of the kind %s, which is not known: %w", name, spec.Kind(), semel.ErrInvalidRequest)
	}
}
