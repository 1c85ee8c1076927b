package config

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// File is a configuration that was read and checked.
type File struct {
	// Name is the name under which the file was read.
	Name string
	// Stores are the members of "stores", in the order of the file.
	Stores []*Store
	// Pipelines are the members of "pipelines", in the order of the file.
	Pipelines []*Pipeline
	// Proxy is the section "proxy", or nil.
	Proxy *Proxy
	// Serve is the section "serve", or nil.
	Serve *Serve
	Admin Admin
	// Shutdown is the maximum duration of a drain.
	Shutdown time.Duration
	Log      Log

	hidden schema.Redactor
	places map[string]schema.Place   // places of field values, by path
	lacks  map[string]schema.Problem // values that this machine lacks, by path
	bare   []schema.Exposed          // secrets that others may read
	holds  func(path string) bool    // whether a field has a placeholder; nil if none can have one
	needed map[string]bool           // the stores that it was read for; nil for all
}

// Store is one member of "stores".
type Store struct {
	Name string
	// At is the place of its name.
	At   schema.Place
	Spec StoreKind
}

// Read reads the file with this name. env looks up environment variables and
// returns "" if one is not set. If the file is invalid, the error is an [*Error].
// Otherwise the error says why the file could not be read.
func (k *Kinds) Read(name string, env func(name string) string) (*File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, schema.Cause(err))
	}
	defer func() { _ = file.Close() }() // the file was only read, so nothing can be lost
	return k.ReadForStore(name, file, env, Everything)
}

// Everything selects the whole file; see ReadForStore.
func Everything(*File) (store string, only bool) { return "", false }

// ReadForStore is Read for an open file and the use of one store. choose returns the name of
// the store, or false if the whole file is needed. An unset variable or an
// unreadable secret file is an error only in that store and in the stores that it
// is built on. Any other part that refers to one is incomplete, and is not
// checked.
func (k *Kinds) ReadForStore(name string, file io.Reader, env func(name string) string, choose func(*File) (store string, only bool)) (*File, error) {
	data, err := readAll(name, file)
	if err != nil {
		return nil, err
	}
	return k.parseFor(name, data, env, choose)
}

// ReadWithPlaceholders is Read for an open file that is only described, not used. A
// reference that this machine cannot resolve stands for itself, and the field that
// has it is not checked.
func (k *Kinds) ReadWithPlaceholders(name string, file io.Reader, env func(name string) string) (*File, error) {
	data, err := readAll(name, file)
	if err != nil {
		return nil, err
	}
	d, err := schema.Parse(name, data, env)
	if err != nil {
		return nil, err
	}
	d.Placeholders = true
	f := k.read(d)
	f.holds = d.Lacks
	if err := d.ErrOfRest(); err != nil {
		return nil, err
	}
	return f, nil
}

func readAll(name string, file io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, schema.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, schema.Cause(err))
	}
	return data, nil
}

// Parse reads a configuration from memory. Relative paths in it start at the
// directory of name.
func (k *Kinds) Parse(name string, data []byte, env func(name string) string) (*File, error) {
	return k.parseFor(name, data, env, Everything)
}

func (k *Kinds) parseFor(name string, data []byte, env func(name string) string, choose func(*File) (store string, only bool)) (*File, error) {
	d, err := schema.Parse(name, data, env)
	if err != nil {
		return nil, err
	}
	f := k.read(d)
	if store, only := choose(f); only {
		f.needed = f.standsOn(store)
	}
	if err := d.ErrWithout(f.part); err != nil {
		return nil, err
	}
	return f, nil
}

// read reads a document and adds its problems to it.
func (k *Kinds) read(d *schema.Document) *File {
	f := &File{Name: d.Name}
	k.readFile(d.Root(), f)
	f.hidden, f.places, f.lacks, f.bare = d.Hidden, d.Places, d.Lacking(), d.Exposed
	checkStores(d, f)
	checkPipelines(d, f)
	checkProxy(d, f)
	checkServe(d, f)
	return f
}

// HasPlaceholder reports whether the field at a path has a placeholder instead of its
// value.
func (f *File) HasPlaceholder(path string) bool { return f.holds != nil && f.holds(path) }

// Needs reports whether the file was read for this store, among others.
func (f *File) Needs(store string) bool { return f.needed == nil || f.needed[store] }

// Lacks returns the problem of a pipeline's field whose value this machine lacks. It
// can only be there if the file was read for the use of one store.
func (f *File) Lacks(pipeline, field string) (schema.Problem, bool) {
	problem, lacks := f.lacks[schema.Within(schema.Within("pipelines", pipeline), field)]
	return problem, lacks
}

// LacksAny reports whether this machine lacks the value of a field of a pipeline, or of a
// store.
func (f *File) LacksAny(pipeline string) bool {
	of := schema.Within("pipelines", pipeline) + "."
	for path := range f.lacks {
		if strings.HasPrefix(path, of) || strings.HasPrefix(path, "stores.") {
			return true
		}
	}
	return false
}

// standsOn returns the names of a store, of its layers and of the stores whose
// servers they use.
func (f *File) standsOn(name string) map[string]bool {
	names := map[string]bool{name: true}
	for _, s := range f.Stack(name) {
		names[s.Name] = true
		if server := s.Spec.About().Server.Name; server != "" {
			names[server] = true
		}
	}
	return names
}

// part returns the store or pipeline that the path of a field belongs to, or else
// the section. mayLack reports whether it may lack values of this machine.
func (f *File) part(path string) (name string, mayLack bool) {
	section, rest, _ := strings.Cut(path, ".")
	if section != "stores" && section != "pipelines" {
		return section, f.needed != nil
	}
	member, _, _ := strings.Cut(rest, ".")
	// The stacks built on a store decide what may be done to it.
	needed := section == "stores" && (f.Needs(member) || strings.Contains(path, ".tiered"))
	return schema.Within(section, member), f.needed != nil && !needed
}

// Sections returns the fields of a file. Reading fills them in.
func (k *Kinds) Sections(f *File) []schema.Field {
	return []schema.Field{
		{Name: "stores", Doc: "Stores by name. A store remembers keys.", Form: schema.Form{Named: &schema.Form{Members: func() schema.Mapping { return kindsMapping(new(StoreKind), k.Stores) }}}, Read: func(v schema.Value) { f.Stores = k.readStores(v) }},
		{Name: "pipelines", Doc: "Pipelines by name. A pipeline moves messages.", Form: schema.Form{Named: &schema.Form{Members: func() schema.Mapping { return k.pipelineMapping(&Pipeline{}) }}}, Read: func(v schema.Value) { f.Pipelines = k.readPipelines(v) }},
		{Name: "proxy", Doc: "An HTTP proxy with which requests that carry a key take effect once. `semel proxy FILE` runs it.", Form: schema.Form{Members: func() schema.Mapping { return proxyMapping(&Proxy{}) }}, Read: func(v schema.Value) { f.Proxy = readProxy(v) }},
		{Name: "serve", Doc: "A server with which programs in any language use a store. `semel serve FILE` runs it.", Form: schema.Form{Members: func() schema.Mapping { return serveMapping(&Serve{}) }}, Read: func(v schema.Value) { f.Serve = readServe(v) }},
		schema.PartField("admin", func() schema.Mapping { return adminMapping(&f.Admin) }, "The server for probes and metrics of a daemon.").Always(),
		schema.DurationField("shutdown", &f.Shutdown, "How long a drain may take: messages in progress finish, or go back to their source.").Or("25s"),
		schema.PartField("log", func() schema.Mapping { return logMapping(&f.Log) }, "What a daemon logs.").Always(),
	}
}

// readFile reads the sections. A section whose name starts with x- belongs to the
// user, for anchors.
func (k *Kinds) readFile(root schema.Value, f *File) {
	there, ok := root.Sections(k.Sections(f), "x-")
	if ok && !slices.Contains(there, "stores") && !slices.Contains(there, "pipelines") {
		root.WrongAt(schema.Place{}, `stores is missing: name a store, as in "stores: { keys: { embedded: { path: ./keys } } }"`)
	}
}

// Store returns the store with this name.
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

// Tables returns the tables of a store, or of the one in its stack that has any, whose server
// may not answer for longer than patience. The error wraps semel.ErrInvalidRequest if there is
// none.
func (f *File) Tables(name string, patience time.Duration) (Tables, error) {
	for _, s := range f.Stack(name) {
		if of, ok := s.Spec.(Database); ok {
			return of.Tables(f, patience), nil
		}
	}
	return nil, fmt.Errorf("%s has no schema: only a store of the kind postgres has one: %w", name, semel.ErrInvalidRequest)
}

// Stack returns the store with this name and all stores that it is built on, the
// lowest last.
func (f *File) Stack(name string) []*Store {
	s, ok := f.Store(name)
	if !ok {
		return nil
	}
	list := []*Store{s}
	for _, layer := range s.Spec.About().Layers {
		list = append(list, f.Stack(layer.Name)...)
	}
	return list
}

// Shareable reports whether a second process can run a pipeline in parallel with the first. Its
// source must hand messages to several, its store must not be one of a single process, and its
// target must be no file.
func (f *File) Shareable(p *Pipeline) bool {
	if !p.Source.About(p).Shared || p.Sink.About().Lines {
		return false
	}
	decider := f.Decider(p.Store.Name)
	return decider == nil || decider.Spec.About().Shared && !slices.ContainsFunc(f.Stack(p.Store.Name), func(s *Store) bool { return s.Spec.About().Directory != "" })
}

// PipelinesOn returns the pipelines whose keys are in a store: in the store itself,
// in a stack that it is a layer of, or in one of its layers.
func (f *File) PipelinesOn(store string) []*Pipeline {
	var list []*Pipeline
	for _, p := range f.Pipelines {
		if f.onStore(p.Store.Name, store) {
			list = append(list, p)
		}
	}
	return list
}

// HasNoKeys reports whether pipelines use the database of a store for an outbox, rows or
// parked messages, and none uses it for keys.
func (f *File) HasNoKeys(store string) bool {
	if _, proxy := f.ProxyOn(store); proxy || f.ServedOn(store) || len(f.PipelinesOn(store)) > 0 {
		return false
	}
	return slices.ContainsFunc(f.Pipelines, func(p *Pipeline) bool {
		return p.Source.About(p).Outbox.Name == store || p.Sink.About().Store.Name == store || p.Parked.Store.Name == store
	})
}

// ProxyOn returns the proxy whose keys are in a store, as PipelinesOn does for pipelines.
func (f *File) ProxyOn(store string) (*Proxy, bool) {
	return f.Proxy, f.Proxy != nil && f.onStore(f.Proxy.Store.Name, store)
}

// ServedOn reports whether the keys of the section "serve" are in a store, as PipelinesOn does
// for pipelines.
func (f *File) ServedOn(store string) bool {
	return f.Serve != nil && f.onStore(f.Serve.Store.Name, store)
}

// onStore reports whether the keys in one store are also those of another: the same store, a
// stack above, or a layer.
func (f *File) onStore(keys, store string) bool {
	named := func(name string) func(*Store) bool {
		return func(s *Store) bool { return s.Name == name }
	}
	return slices.ContainsFunc(f.Stack(keys), named(store)) || slices.ContainsFunc(f.Stack(store), named(keys))
}

// LayerOf returns the stack that contains a store above its deciding layer.
func (f *File) LayerOf(name string) (*Store, bool) {
	for _, s := range f.Stores {
		layers := s.Spec.About().Layers
		i := slices.IndexFunc(layers, func(layer schema.Reference) bool { return layer.Name == name })
		if i >= 0 && i < len(layers)-1 {
			return s, true
		}
	}
	return nil, false
}

// Above returns the stack in which a store is the deciding layer.
func (f *File) Above(name string) (*Store, bool) {
	for _, s := range f.Stores {
		layers := s.Spec.About().Layers
		if len(layers) > 0 && layers[len(layers)-1].Name == name {
			return s, true
		}
	}
	return nil, false
}

// Redact replaces every secret of the configuration in a text from another
// source. It is safe for concurrent use.
func (f *File) Redact(text string) string { return f.hidden.Text(text) }

// RedactError returns an error with the same text, except for secrets. errors.Is
// and errors.As still reach the original error.
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

// JSONSchema returns the JSON Schema (draft 2020-12) of a configuration. Editors
// use it to complete and check a file. It accepts what it cannot express, such as
// a reference to a store that does not exist.
func (k *Kinds) JSONSchema() ([]byte, error) {
	return schema.JSONSchema("Configuration of semel", k.Sections(&File{}), "stores", "pipelines")
}
