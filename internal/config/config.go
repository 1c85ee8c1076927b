package config

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// File is a configuration that was read and whose parts fit together.
type File struct {
	// Name is what the file was called.
	Name string
	// Stores are what "stores" names, in the order of the file.
	Stores []*Store
	// Pipelines are what "pipelines" names, in the order of the file.
	Pipelines []*Pipeline
	Admin     Admin
	// Shutdown is how long a drain may take.
	Shutdown time.Duration
	Log      Log

	hidden Redactor
	places map[string]Place // of the values of fields, by their paths
}

// Read reads the file of this name. env looks environment variables up; "" is
// one that is not set. The error is an [*Error] if the file is wrong, and
// otherwise says why it could not be read.
func Read(name string, env func(name string) string) (*File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cause(err))
	}
	defer func() { _ = file.Close() }() // it was only read: there is nothing to lose
	return ReadFrom(name, file, env)
}

// ReadFrom is Read of a file that is open.
func ReadFrom(name string, file io.Reader, env func(name string) string) (*File, error) {
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
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
	r := &reader{name: name, dir: filepath.Dir(name), env: env, aliases: targets(root), places: map[string]Place{}}
	f := &File{Name: name}
	r.file(root, f)
	f.hidden, f.places = r.hidden, r.places
	checkStores(r, f)
	checkPipelines(r, f)
	if err := errorOf(r.problems); err != nil {
		return nil, err
	}
	return f, nil
}

// sections are the fields of a file.
func sections(f *File) []field {
	return []field{
		{name: "stores", doc: "Stores by their names: what remembers keys.", form: form{named: &form{members: func() mapping { return storeMapping(new(Spec)) }}}, read: func(v value) { f.Stores = v.stores() }},
		{name: "pipelines", doc: "Pipelines by their names: what moves messages.", form: form{named: &form{members: func() mapping { return pipelineMapping(&Pipeline{}) }}}, read: func(v value) { f.Pipelines = v.pipelines() }},
		partField("admin", func() mapping { return adminMapping(&f.Admin) }, "The server for probes and metrics of a daemon.").always(),
		durationField("shutdown", &f.Shutdown, "How long a daemon may take to drain: what is under way then ends or goes back.").or("25s"),
		partField("log", func() mapping { return logMapping(&f.Log) }, "What a daemon logs.").always(),
	}
}

// file reads the sections. A section whose name begins with x- is the user's
// own, for anchors.
func (r *reader) file(root ast.Node, f *File) {
	v := r.value(root, "")
	entries, ok := v.topLevel()
	m := mapping{fields: sections(f)}
	there := map[string]bool{}
	for _, e := range entries {
		i := slices.Index(m.names(), e.name)
		switch {
		case strings.HasPrefix(e.name, "x-"):
		case i >= 0:
			there[e.name] = true
			section := r.value(e.value, e.name)
			r.places[e.name] = section.at
			m.fields[i].read(section)
		default:
			r.wrong(e.at, "%s is no section that is known: %s", v.unknown(e, m.names()), OneOf(e.name, m.names()))
		}
	}
	if ok && !there["stores"] && !there["pipelines"] {
		r.wrong(Place{}, `stores is missing: name a store, as in "stores: { keys: { embedded: { path: ./keys } } }"`)
	}
	for _, section := range m.fields {
		if !there[section.name] {
			section.fillIn(value{r, nil, Place{}, section.name})
		}
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
			for _, layer := range spec.Layers[:max(len(spec.Layers)-1, 0)] {
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
		if spec, ok := s.Spec.(*Tiered); ok && len(spec.Layers) > 0 && spec.Layers[len(spec.Layers)-1].Name == name {
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
