package config

import (
	"context"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// kindsMapping is a mapping that contains one of several kinds.
func kindsMapping[T Kind](target *T, kinds []func() T) schema.Mapping {
	var fields []schema.Field
	for _, empty := range kinds {
		shown := empty()
		fields = append(fields, schema.KindField(shown.Kind(), target, func() (T, schema.Mapping) {
			kind := empty()
			return kind, kind.Fields()
		}, shown.Fields().Doc))
	}
	return schema.KindsOf(fields...)
}

// readNamed reads a section whose members have names. what is the word for a
// member.
func readNamed(v schema.Value, what string, read func(name string, at schema.Place, member schema.Value)) {
	before := len(v.Problems)
	entries, ok := v.Entries()
	if ok && len(entries) == 0 && len(v.Problems) == before {
		v.Wrong("it is empty: write at least one %s", what)
	}
	for _, e := range entries {
		if !schema.IsName(e.Name) {
			v.WrongAt(e.At, "%s: this is not a %s name: write letters, digits, - and _, at most 64", v.Path, what)
			continue
		}
		at := e.At
		at.File = v.Name
		read(e.Name, at, v.Value(e.Value, schema.Within(v.Path, e.Name)))
	}
}

// readStores reads the section "stores".
func (k *Kinds) readStores(v schema.Value) (list []*Store) {
	readNamed(v, "store", func(name string, at schema.Place, member schema.Value) {
		s := &Store{Name: name, At: at, Spec: invalidStore{}}
		member.Kind(kindsMapping(&s.Spec, k.Stores), "store", "{ embedded: { path: ./keys } }")
		list = append(list, s)
	})
	return list
}

// A file with an unreadable value is refused. Until then, the values below
// replace the unreadable ones, so that references to store names still resolve.
type (
	invalidSource struct{ SourceBase }
	invalidSink   struct{ SinkBase }
	invalidStore  struct{ StoreBase }
)

var errInvalid = fmt.Errorf("it could not be read: %w", semel.ErrInvalidRequest)

func (invalidSource) Kind() string                { return "" }
func (invalidSink) Kind() string                  { return "" }
func (invalidStore) Kind() string                 { return "" }
func (invalidSource) Fields() schema.Mapping      { return schema.Mapping{} }
func (invalidSink) Fields() schema.Mapping        { return schema.Mapping{} }
func (invalidStore) Fields() schema.Mapping       { return schema.Mapping{} }
func (invalidSource) About(*Pipeline) SourceAbout { return SourceAbout{} }
func (invalidSink) About() SinkAbout              { return SinkAbout{} }
func (invalidStore) About() StoreAbout            { return StoreAbout{} }
func (invalidSource) Open(context.Context, *Env) (pipeline.Source, error) {
	return nil, errInvalid
}
func (invalidSink) Open(context.Context, *Env) (pipeline.Sink, error) { return nil, errInvalid }
func (invalidStore) Open(context.Context, *StoreEnv) (semel.Store, error) {
	return nil, errInvalid
}

// IDs says whether a store keeps the readable ids of keys.
type IDs int

// These are the values of [IDs].
const (
	IDsIfNeeded IDs = iota // see File.KeepsIDs
	IDsKept
	IDsLeftOut
)

// KeepIDsField keeps the readable ids of keys in a store.
func KeepIDsField(target *IDs) schema.Field {
	field := schema.TruthField("keep_ids", nil, "Keep the scope and id of each key readable, in addition to its digest.").
		Means("true for a proxy and for a pipeline with `on_lease_expired: hold`, whose keys a person may have to settle; otherwise false")
	field.Read = func(v schema.Value) {
		var keep bool
		if v.Truth(&keep); keep {
			*target = IDsKept
		} else {
			*target = IDsLeftOut
		}
	}
	return field
}

// KeepOriginField keeps the origins of keys in a store. cost says what that takes.
func KeepOriginField(target *bool, initial, cost string) schema.Field {
	return schema.TruthField("keep_origin", target, "Keep where the message of each key came from, and which process claimed it, for `why` and `keys show`. "+cost).Or(initial)
}
