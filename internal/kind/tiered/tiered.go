// Package tiered is the kind of store that puts layers above one durable store.
package tiered

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/tiered"
)

// Store is layers above one durable store.
type Store struct {
	config.StoreBase
	// Layers are the names of the stores, from the top; the last one decides.
	Layers []schema.Reference
	// MaxAge limits how long a layer answers without the store below. 0 means the
	// store's default.
	MaxAge time.Duration
	// SeesEveryWriter means that the filters know every key that is done in the
	// last store: no other process writes there, or all processes share the
	// filters.
	SeesEveryWriter bool
}

// NewStore returns an empty Store.
func NewStore() config.StoreKind { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "tiered" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	m := schema.Mapping{Fields: []schema.Field{
		schema.ListField("layers", schema.Form{Scalar: schema.ScalarStoreName}, func(v schema.Value) { v.References(&s.Layers) }, "The names of the stores, from the top. The last one decides.").Need(),
		schema.WindowField("max_age", &s.MaxAge, "How long a copy in an upper layer may answer.").Means("10m"),
		schema.TruthField("sees_every_writer", &s.SeesEveryWriter, "States that no other process writes to the last layer, or that all writers share the filter, as a `filter` layer needs.").Means("false"),
	}}
	m.Doc = "Layers above one durable store, which decides: a list of store names from the top, or fields. `memory`, `redis` and `filter` can be upper layers."
	m.Short = &schema.Shorthand{
		Form: schema.Form{Element: &schema.Form{Scalar: schema.ScalarStoreName}},
		Read: func(v schema.Value) { v.References(&s.Layers) },
	}
	return m
}

// About implements config.StoreKind.
func (s *Store) About() config.StoreAbout { return config.StoreAbout{Layers: s.Layers} }

// Check implements config.StoreKind.
func (s *Store) Check(c *config.Checker, of *config.Store) {
	if len(s.Layers) < 2 || s.SeesEveryWriter {
		return
	}
	var names []string
	filters := 0
	for _, layer := range s.Layers {
		names = append(names, layer.Name)
		if below, ok := c.File.Store(layer.Name); ok && below.Spec.About().Filter != nil {
			filters++
		}
	}
	if last := names[len(names)-1]; filters > 0 {
		c.Report(s.Layers[0].At, "stores."+of.Name+".tiered", "a filter saves no work if other processes write to %s without it: write { layers: [%s], sees_every_writer: true } if none does, or leave the filter out", last, strings.Join(names, ", "))
	}
}

// Lint implements config.StoreKind.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if l.Pipeline == nil {
		return
	}
	path := l.At("store")
	if above, ok := l.File.Above(l.Pipeline.Store.Name); ok && above == of { // the pipeline bypasses the stack
		if s.SeesEveryWriter {
			l.Add(doctor.Broken, config.Repeat, path, fmt.Sprintf("%s, which is below %s with sees_every_writer", l.Pipeline.Store.Name, of.Name),
				"its filter does not see the keys that this pipeline writes", "write store: "+of.Name+", or remove sees_every_writer there")
		}
	}
}

// layered is a kind of store that opens differently as a layer.
type layered interface {
	OpenLayer(ctx context.Context, env *config.StoreEnv) (tiered.Layer, error)
}

// Open implements config.StoreKind. It opens the stack from the bottom. Until the
// server that decides answers, no upper layer can open. The upper layers may open
// later.
func (s *Store) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	last := len(s.Layers) - 1
	durable, err := env.Store(ctx, s.Layers[last].Name)
	if err != nil {
		return nil, layerError(s.Layers[last].Name, err)
	}
	opts := &tiered.Options{MaxAge: s.MaxAge, Timeout: s.LayerTimeout(env.File)}
	if env.OnLayer != nil {
		opts.Observe = func(e tiered.Event) {
			e.Err = env.File.RedactError(e.Err)
			env.OnLayer(e)
		}
	}
	for _, reference := range s.Layers[:last] {
		layer, err := openLayer(ctx, env, reference.Name)
		if err != nil {
			return nil, layerError(reference.Name, err)
		}
		opts.Layers = append(opts.Layers, layer)
	}
	store, err := tiered.New(durable, opts)
	if err != nil {
		return nil, err
	}
	return store, nil
}

// LayerTimeout is the longest timeout that the upper layers set for their servers,
// or 0, which means the default of a stack.
func (s *Store) LayerTimeout(f *config.File) (longest time.Duration) {
	for _, reference := range s.Layers[:len(s.Layers)-1] {
		layer, ok := f.Store(reference.Name)
		if ok {
			about := layer.Spec.About()
			if server, ok := f.Store(about.Server.Name); ok { // a filter on the server of another store
				about = server.Spec.About()
			}
			longest = max(longest, about.Timeout)
		}
	}
	return longest
}

func openLayer(ctx context.Context, env *config.StoreEnv, name string) (layer tiered.Layer, err error) {
	s, ok := env.File.Store(name)
	if !ok {
		return layer, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
	}
	if kind, ok := s.Spec.(layered); ok {
		own := *env
		own.Name = name
		layer, err = kind.OpenLayer(ctx, &own)
	} else {
		layer.Cache, err = env.Store(ctx, name)
	}
	layer.Name = name
	return layer, err
}

func layerError(name string, err error) error { return fmt.Errorf("its layer %s: %w", name, err) }

// Examine implements config.Kind.
func (s *Store) Examine(_ context.Context, x *config.Examination) {
	x.Note(doctor.Fine, "decides", s.Layers[len(s.Layers)-1].Name, "", "")
}
