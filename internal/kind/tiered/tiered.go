// Package tiered is the kind of store that puts layers above one durable store.
package tiered

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/tiered"
)

// Store is layers above one durable store.
type Store struct {
	config.StoreBase
	// Layers are the names of the stores, from the top; the last one decides.
	Layers []schema.Reference
	// OnStoreError is what happens while the last store is down: stop, wait or
	// pass.
	OnStoreError string
	// MaxAge limits how long a layer answers without the store below. 0 means the
	// store's default.
	MaxAge time.Duration
	// LayerTimeout limits one call of an upper layer. 0 means the store's default.
	LayerTimeout time.Duration
	// SeesEveryWriter means that the filters know every key that is done in the
	// last store: no other process writes there, or all processes share the
	// filters.
	SeesEveryWriter bool
}

// NewStore returns an empty Store.
func NewStore() config.Spec { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "tiered" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	m := schema.Mapping{Fields: []schema.Field{
		schema.ListField("layers", schema.Form{Scalar: schema.ScalarStoreName}, func(v schema.Value) { v.References(&s.Layers) }, "The names, from the top; the last one decides.").Need(),
		schema.ChoiceField("on_store_error", &s.OnStoreError, "While the last layer does not answer: refuse, ask again, or let every message through unremembered.", "stop", "wait", "pass").Or("stop"),
		schema.WindowField("max_age", &s.MaxAge, "How long a copy in a layer answers without the store below.").Means("10m"),
		schema.DurationField("layer_timeout", &s.LayerTimeout, "How long one call of an upper layer may take.").Means("250ms"),
		schema.TruthField("sees_every_writer", &s.SeesEveryWriter, "No other process writes to the last layer, or all who do share the filter. A `filter` layer needs it.").Means("false"),
	}}
	m.Doc = "Layers above one durable store: a list of names from the top, the one that decides last, or fields. Above the last layer stand `memory`, `redis` and `filter`."
	m.Short = &schema.Shorthand{
		Form: schema.Form{Element: &schema.Form{Scalar: schema.ScalarStoreName}},
		Read: func(v schema.Value) {
			s.OnStoreError = "stop"
			v.References(&s.Layers)
		},
	}
	return m
}

// About implements config.Spec.
func (s *Store) About() config.StoreAbout { return config.StoreAbout{Layers: s.Layers} }

// Check implements config.Spec.
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
		c.Report(s.Layers[0].At, "stores."+of.Name+".tiered", "a filter saves nothing where others write to %s past it: write { layers: [%s], sees_every_writer: true } if nobody does, or leave the filter out", last, strings.Join(names, ", "))
	}
}

// Lint implements config.Spec.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if l.Pipeline == nil {
		return
	}
	path := l.At("store")
	if above, ok := l.File.Above(l.Pipeline.Store.Name); ok && above == of { // the pipeline bypasses the stack
		if s.SeesEveryWriter {
			l.Add(semel.Broken, config.Repeat, path, fmt.Sprintf("%s, on which %s stands with sees_every_writer", l.Pipeline.Store.Name, of.Name),
				"its filter does not hear of keys that this pipeline writes", "store: "+of.Name+", or no sees_every_writer there")
		}
		return
	}
	if s.OnStoreError == "pass" {
		decider := l.File.Decider(l.Pipeline.Store.Name)
		l.Add(semel.Warning, config.Repeat, path, of.Name+" has on_store_error: pass", "while "+decider.Name+" does not answer, effects happen and are not remembered", "on_store_error: stop, or wait")
	}
}

// layered is a kind of store that opens differently as a layer.
type layered interface {
	OpenLayer(ctx context.Context, env *config.StoreEnv) (tiered.Layer, error)
}

// Open implements config.Spec. It opens the stack from the bottom. Until the
// server that decides answers, no upper layer can open. The upper layers may open
// later.
func (s *Store) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	last := len(s.Layers) - 1
	durable, err := env.Store(ctx, s.Layers[last].Name)
	if err != nil {
		return nil, layerError(s.Layers[last].Name, err)
	}
	opts := &tiered.Options{SoleWriter: s.SeesEveryWriter, MaxAge: s.MaxAge, Timeout: s.LayerTimeout}
	if opts.OnOutage, err = outagePolicy(s.OnStoreError); err != nil {
		return nil, err
	}
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

func outagePolicy(name string) (tiered.OutagePolicy, error) {
	switch name {
	case "stop":
		return tiered.Stop, nil
	case "wait":
		return tiered.Wait, nil
	case "pass":
		return tiered.Pass, nil
	}
	return 0, fmt.Errorf("on_store_error %q is not stop, wait or pass: %w", name, semel.ErrInvalidRequest)
}

// Examine implements config.Kind.
func (s *Store) Examine(_ context.Context, x *config.Examination) {
	decides := s.Layers[len(s.Layers)-1].Name
	if s.OnStoreError == "pass" {
		x.Note(semel.Warning, "on_store_error", s.OnStoreError, "while "+decides+" does not answer, effects happen and are not remembered: every repeat has its effect again",
			"on_store_error: stop, or wait")
		return
	}
	x.Note(semel.Fine, "on_store_error", s.OnStoreError, "", "")
}
