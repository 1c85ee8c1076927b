// Package memory is the kind of store that keeps keys in process memory.
package memory

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/memstore"
)

// Store keeps keys in process memory.
type Store struct {
	config.StoreBase
	// MaxKeys is the maximum number of keys. 0 means no limit.
	MaxKeys int64
	// KeepIDs keeps scope and id readable.
	KeepIDs bool
	// MaxResult is the maximum size of a result in bytes. 0 means the store's
	// default.
	MaxResult int64
}

// NewStore returns an empty Store.
func NewStore() config.Spec { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "memory" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{Doc: "Keys in the memory of the process, which forgets them at its end.", Fields: []schema.Field{
		schema.CountField("max_keys", &s.MaxKeys, "The most keys it holds; a store that is full refuses, and forgets nothing for it.").Means("no limit"),
		config.KeepIDsField(&s.KeepIDs),
		config.MaxResultField(&s.MaxResult).Means("16MiB"),
	}}
}

// About implements config.Spec.
func (s *Store) About() config.StoreAbout {
	return config.StoreAbout{
		Upper: true, NotLast: "memory forgets everything at its end: put a store that lasts behind it",
		NoRecords: "lives in the memory of the process that uses it: there is nothing to look into from here", ClaimsEnd: true,
	}
}

// Lint implements config.Spec.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if !l.Decides(of) {
		return
	}
	l.Add(semel.Warning, config.Repeat, l.At("store"), of.Name+" is memory", "the end of the process forgets every key: what comes again has its effect again", "a store that lasts: embedded, redis or postgres")
	if l.Holds() {
		l.Add(semel.Broken, config.Repeat, l.At("on_lease_expired"), "hold, in memory", "a crash forgets the key that is to be held", "a store that lasts: embedded or postgres")
	}
}

// Open implements config.Spec.
func (s *Store) Open(context.Context, *config.StoreEnv) (semel.Store, error) {
	store, err := memstore.New(&memstore.Options{MaxKeys: s.MaxKeys, KeepIDs: s.KeepIDs, MaxResult: s.MaxResult})
	if err != nil {
		return nil, err // not store: a nil *Store becomes a non-nil interface
	}
	return store, nil
}

// Examine implements config.Kind.
func (s *Store) Examine(_ context.Context, x *config.Examination) {
	x.Note(semel.Notice, "memory", "keys live in this process", "its end forgets every key", "name a store that lasts, unless that is what you want")
}
