// Package memory is the kind of store that keeps keys in process memory.
package memory

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/memstore"
)

// Store keeps keys in process memory.
type Store struct {
	config.StoreBase
	// MaxKeys is the maximum number of keys. 0 means no limit.
	MaxKeys int64
}

// NewStore returns an empty Store.
func NewStore() config.StoreKind { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "memory" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{Doc: "Keys in the memory of the process. They are lost when it ends.", Fields: []schema.Field{
		schema.CountField("max_keys", &s.MaxKeys, "The maximum number of keys. A full store refuses new keys and forgets none.").Means("no limit"),
	}}
}

// About implements config.StoreKind.
func (s *Store) About() config.StoreAbout {
	return config.StoreAbout{
		Upper: true, NotLast: "memory loses all keys when the process ends: put a durable store below it",
		NoRecords: "lives in the memory of the process that uses it: there is nothing to look into from here", ClaimsEnd: true,
	}
}

// Lint implements config.StoreKind.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if !l.Decides(of) {
		return
	}
	l.Add(doctor.Warning, config.Repeat, l.At("store"), of.Name+" is memory", "every key is lost when the process ends, and repeated messages have their effect again", "use a durable store: embedded, redis or postgres")
	if l.Holds() {
		l.Add(doctor.Broken, config.Repeat, l.At("on_lease_expired"), "hold, in memory", "a crash forgets the held key", "use a durable store: embedded or postgres")
	}
}

// Open implements config.StoreKind.
func (s *Store) Open(context.Context, *config.StoreEnv) (semel.Store, error) {
	store, err := memstore.New(&memstore.Options{MaxKeys: s.MaxKeys, MaxResult: config.MaxResult})
	if err != nil {
		return nil, err // not store: a nil *Store becomes a non-nil interface
	}
	return store, nil
}

// Examine implements config.Kind.
func (s *Store) Examine(_ context.Context, x *config.Examination) {
	x.Note(doctor.Notice, "memory", "the keys live in this process", "every key is lost when it ends", "use a durable store, unless you want that")
}
