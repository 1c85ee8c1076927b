package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// File is a configuration that was read and whose parts fit together.
type File struct {
	// Name is what the file was called.
	Name string
	// Stores are what "stores" names, in the order of the file.
	Stores []*Store

	hidden Redactor
}

// Read reads the file of this name. env looks environment variables up; "" is
// one that is not set. The error is an [*Error] if the file is wrong, and
// otherwise says why it could not be read.
func Read(name string, env func(name string) string) (*File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cause(err))
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	_ = file.Close() // it was only read: there is nothing to lose
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cause(err))
	}
	return Parse(name, data, env)
}

// Parse reads a configuration from memory. Relative paths in it begin at the
// directory of name.
func Parse(name string, data []byte, env func(name string) string) (*File, error) {
	root, problem := parseTree(data)
	if problem != nil {
		problem.Place.File = name
		return nil, errorOf([]Problem{*problem})
	}
	if root == nil {
		return nil, errorOf([]Problem{{Place{File: name}, `the file is empty: name a store under "stores"`}})
	}
	r := &reader{name: name, dir: filepath.Dir(name), env: env, aliases: targets(root)}
	f := &File{Name: name}
	r.file(root, f)
	f.hidden = r.hidden
	checkStores(r, f)
	if err := errorOf(r.problems); err != nil {
		return nil, err
	}
	return f, nil
}

// file reads the sections. A section whose name begins with x- is the user's
// own, for anchors.
func (r *reader) file(root ast.Node, f *File) {
	v := r.value(root, "")
	entries, ok := v.topLevel()
	for _, e := range entries {
		section := func() value { return r.value(e.value, e.name) }
		switch {
		case strings.HasPrefix(e.name, "x-"):
		case e.name == "stores":
			f.Stores = section().stores()
		case e.name == "pipelines":
			r.wrong(e.at, "pipelines: this version runs no pipelines yet: leave the section out")
		default:
			r.wrong(e.at, "%s is no section that is known: %s", v.unknown(e, []string{"stores"}), OneOf(e.name, []string{"stores"}))
		}
	}
	if ok && !slices.ContainsFunc(entries, func(e entry) bool { return e.name == "stores" }) {
		r.wrong(Place{}, `stores is missing: name a store, as in "stores: { keys: { embedded: { path: ./keys } } }"`)
	}
}

// topLevel is entries with a message that needs no path.
func (v value) topLevel() ([]entry, bool) {
	switch v.node.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return v.entries()
	case nil:
	default:
		v.reader.wrong(v.at, "sections such as stores: are wanted, not %s", describe(v.node))
	}
	return nil, false
}

// Store returns the store of this name.
func (f *File) Store(name string) (*Store, bool) {
	i := slices.IndexFunc(f.Stores, func(s *Store) bool { return s.Name == name })
	if i < 0 {
		return nil, false
	}
	return f.Stores[i], true
}

// StoreNames returns the names of all stores, in the order of the file.
func (f *File) StoreNames() []string {
	names := make([]string, len(f.Stores))
	for i, s := range f.Stores {
		names[i] = s.Name
	}
	return names
}

// Stack returns the store of this name and all that it stands on, the lowest
// last.
func (f *File) Stack(name string) []*Store {
	s, ok := f.Store(name)
	if !ok {
		return nil
	}
	list := []*Store{s}
	if spec, ok := s.Spec.(*Tiered); ok {
		for _, layer := range spec.Layers {
			list = append(list, f.Stack(layer.Name)...)
		}
	}
	return list
}

// LayerOf returns the stack in which a store stands above the one that decides.
func (f *File) LayerOf(name string) (*Store, bool) {
	for _, s := range f.Stores {
		if spec, ok := s.Spec.(*Tiered); ok {
			for _, layer := range spec.Layers[:len(spec.Layers)-1] {
				if layer.Name == name {
					return s, true
				}
			}
		}
	}
	return nil, false
}

// Above returns the stack in which a store is the one that decides.
func (f *File) Above(name string) (*Store, bool) {
	for _, s := range f.Stores {
		if spec, ok := s.Spec.(*Tiered); ok && spec.Layers[len(spec.Layers)-1].Name == name {
			return s, true
		}
	}
	return nil, false
}

// Redact replaces every secret of the configuration in a text that others
// wrote. Calls may run at once.
func (f *File) Redact(text string) string { return f.hidden.Text(text) }

// RedactError returns an error that has the same text but for secrets, and that
// errors.Is and errors.As see through.
func (f *File) RedactError(err error) error {
	if err == nil {
		return nil
	}
	return &redactedError{f.Redact(err.Error()), err}
}

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
