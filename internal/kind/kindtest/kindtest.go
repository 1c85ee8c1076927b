// Package kindtest is the suite that every kind of source, sink and store passes.
// The test of a kind is one call of it.
package kindtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// Case is how a kind is written in a configuration.
type Case struct {
	// Least is the minimum that must be written, as in "{ path: out.jsonl }".
	Least string
	// Secrets are texts in which every secret contains [Secret]. The suite fails if
	// a field for secrets is in none of them. Several are for fields that exclude
	// each other.
	Secrets []string
}

// Secret is the text that a Case uses for its secrets.
const Secret = "correct-horse-battery"

// Source checks one kind of source.
func Source(t *testing.T, empty func() config.Source, c Case) {
	t.Helper()
	kinds := kind.All()
	kinds.Sources = with(kinds.Sources, empty)
	s := &suite{kinds: kinds, name: empty().Kind(), section: "source", c: c, fields: func() schema.Mapping { return empty().Fields() }}
	s.run(t, func(t *testing.T, _ *config.File, p *config.Pipeline) {
		about := p.Source.About(p)
		s.words(t, map[string]string{
			"Name": about.Name, "Again": about.Again, "AfterAck.Unsure": about.AfterAck.Unsure, "AfterAck.Again": about.AfterAck.Again, "AfterAck.Gets": about.AfterAck.Gets,
		})
		if (about.Behind == "") == (about.TakesBack == "") {
			t.Errorf("one of Behind %q and TakesBack %q must be empty", about.Behind, about.TakesBack)
		}
		if about.TakesBack != "" && strings.Count(about.TakesBack, "%s") != 1 {
			t.Errorf("TakesBack %q has no place for the time", about.TakesBack)
		}
	})
}

// Sink checks one kind of sink.
func Sink(t *testing.T, empty func() config.Sink, c Case) {
	t.Helper()
	kinds := kind.All()
	kinds.Sinks = with(kinds.Sinks, empty)
	s := &suite{kinds: kinds, name: empty().Kind(), section: "sink", c: c, fields: func() schema.Mapping { return empty().Fields() }}
	s.run(t, func(t *testing.T, _ *config.File, p *config.Pipeline) {
		about := p.Sink.About()
		s.words(t, map[string]string{"Name": about.Name})
		if about.Handed != "" {
			s.words(t, map[string]string{"Handed": about.Handed})
		}
		if about.Handed != "" && !strings.HasPrefix(about.Handed, "which ") && !strings.HasPrefix(about.Handed, "of which ") {
			t.Errorf("Handed %q follows key, attempt and token: it starts with which", about.Handed)
		}
		if (about.Place == "") != (about.PlaceName == "") {
			t.Errorf("Place %q is called %q", about.Place, about.PlaceName)
		}
	})
}

// Store checks one kind of store.
func Store(t *testing.T, empty func() config.StoreKind, c Case) {
	t.Helper()
	kinds := kind.All()
	kinds.Stores = with(kinds.Stores, empty)
	s := &suite{kinds: kinds, name: empty().Kind(), section: "store", c: c, fields: func() schema.Mapping { return empty().Fields() }}
	s.run(t, func(t *testing.T, f *config.File, p *config.Pipeline) {
		store, _ := f.Store(p.Store.Name)
		about := store.Spec.About()
		if (about.Place == "") != (about.PlaceName == "") {
			t.Errorf("Place %q is called %q", about.Place, about.PlaceName)
		}
		if about.Filter == nil && about.NoRecords != "" && about.NotLast == "" {
			t.Error("a store into which nobody can look cannot decide for others: say why in NotLast")
		}
	})
}

// with returns a list of kinds that contains this one once.
func with[T config.Kind](list []func() T, empty func() T) []func() T {
	list = slices.DeleteFunc(list, func(other func() T) bool { return other().Kind() == empty().Kind() })
	return append(list, empty)
}

type suite struct {
	kinds         *config.Kinds
	name, section string
	c             Case
	fields        func() schema.Mapping
}

// run runs the cases that all kinds share, and those of the section.
func (s *suite) run(t *testing.T, about func(*testing.T, *config.File, *config.Pipeline)) {
	t.Run("fields_are_explained", s.fieldsAreExplained)
	t.Run("an_unknown_field_is_named", s.unknownFields)
	t.Run("the_least_is_read_and_in_the_json_schema", s.least)
	t.Run("the_defaults_are_not_broken", s.defaults)
	t.Run("explain_has_words_for_every_mode", func(t *testing.T) { s.explained(t, about) })
	t.Run("secrets_are_hidden", s.secrets)
}

// file returns a configuration with one pipeline that uses the kind. more holds
// additional fields of the pipeline.
func (s *suite) file(written, more string) string {
	ends := map[string]string{
		"source": `{ file: { paths: [in.jsonl] } }`, "sink": `{ stdout: {} }`, "store": `{ embedded: { path: keys } }`,
	}
	ends[s.section] = "{ " + s.name + ": " + written + " }"
	return fmt.Sprintf(`stores:
  beside: { redis: { url: "redis://127.0.0.1:6379" } }
  rows: { postgres: { dsn: "host=127.0.0.1" } }
  keys: %s
pipelines:
  p: { source: %s, key: { id: .id }, window: 7d, store: %s, sink: %s%s }
`, ends["store"], ends["source"], "keys", ends["sink"], more)
}

func (s *suite) parse(t *testing.T, written, more string) (*config.File, *config.Pipeline) {
	t.Helper()
	text := s.file(written, more)
	f, err := s.kinds.Parse(filepath.Join(t.TempDir(), "semel.yaml"), []byte(text), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return f, f.Pipelines[0]
}

// fieldsAreExplained keeps the reference page complete.
func (s *suite) fieldsAreExplained(t *testing.T) {
	m := s.fields()
	if !strings.HasSuffix(m.Doc, ".") {
		t.Errorf("Doc of the kind is %q: it is a sentence", m.Doc)
	}
	walk("", m, func(path string, f *schema.Field) {
		if !strings.HasSuffix(f.Doc, ".") {
			t.Errorf("%s: its sentence is %q", path, f.Doc)
		}
		if f.Required && f.Fallback() != "" {
			t.Errorf("%s is required and has a default", path)
		}
	})
}

func (s *suite) unknownFields(t *testing.T) {
	text := s.file("{ no_such_field: 1 }", "")
	_, err := s.kinds.Parse("semel.yaml", []byte(text), func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), "no_such_field") || !strings.Contains(err.Error(), s.name) {
		t.Errorf("an unknown field: %v", err)
	}
}

// least reads the minimum. Values bound to the other fields get their defaults.
func (s *suite) least(t *testing.T) {
	s.parse(t, s.c.Least, s.lossy())
	page, err := s.kinds.JSONSchema()
	if err != nil || !strings.Contains(string(page), `"`+s.name+`"`) {
		t.Errorf("the JSON Schema does not know %s: %v", s.name, err)
	}
}

// lossy returns the field that a pipeline needs if its store drops new messages.
func (s *suite) lossy() string {
	if s.section == "store" {
		for _, empty := range s.kinds.Stores {
			if k := empty(); k.Kind() == s.name && k.About().Filter != nil {
				return ", lossy: true"
			}
		}
	}
	return ""
}

func (s *suite) defaults(t *testing.T) {
	f, _ := s.parse(t, s.c.Least, s.lossy())
	for _, x := range f.Lint() {
		if x.Severity == doctor.Broken {
			t.Errorf("%s: %s: %s: %s", x.Subject, x.Found, x.Cost, x.Remedy)
		}
		if x.Subject == "" || x.Found == "" || x.Remedy == "" {
			t.Errorf("a finding says too little: %+v", x)
		}
	}
}

// explained renders the promise of every mode that the kind can take part in.
func (s *suite) explained(t *testing.T, about func(*testing.T, *config.File, *config.Pipeline)) {
	for _, more := range []string{"", ", on_lease_expired: hold", ", observe: true"} {
		f, p := s.parse(t, s.c.Least, more+s.lossy())
		about(t, f, p)
		promise := explain.Explain(f, p)
		text := strings.Join(strings.Fields(promise.Text()), " ")
		for _, hole := range []string{"%!", " ,", " ;", " :", ", ,", "()"} {
			if strings.Contains(text, hole) {
				t.Errorf("mode %s%s: the promise has a hole %q:\n%s", promise.Mode, more, hole, text)
			}
		}
		if promise.From == "" || promise.To == "" || promise.Keys == "" || len(promise.Crashes) < 2 {
			t.Errorf("mode %s%s: the promise says too little:\n%s", promise.Mode, more, text)
		}
		for _, c := range promise.Crashes {
			if c.At == "" || strings.TrimSpace(c.Then) == "" || strings.HasPrefix(c.Then, ";") || strings.HasPrefix(c.Then, ":") {
				t.Errorf("mode %s%s: a crash is not explained: %+v", promise.Mode, more, c)
			}
		}
	}
}

// words checks that texts are present, start in lower case or with a name, and
// have no full stop.
func (s *suite) words(t *testing.T, words map[string]string) {
	t.Helper()
	for name, text := range words {
		if text == "" || strings.HasSuffix(text, ".") || strings.TrimSpace(text) != text {
			t.Errorf("%s is %q: it is part of a sentence", name, text)
		}
	}
}

// secrets checks that no output made from a configuration shows a secret.
func (s *suite) secrets(t *testing.T) {
	walk("", s.fields(), func(path string, f *schema.Field) {
		written := regexp.MustCompile(`\b` + f.Name + `:[^,]*` + Secret)
		if hasSecret(&f.Form) && !slices.ContainsFunc(s.c.Secrets, written.MatchString) {
			t.Errorf("%s holds a secret, and no text of Case.Secrets writes it", path)
		}
	})
	for _, written := range s.c.Secrets {
		f, p := s.parse(t, written, s.lossy())
		said := []string{fmt.Sprintf("%+v %+v", p.Source, p.Sink), explain.Explain(f, p).Text(), f.Redact("a driver says " + Secret)}
		for _, store := range f.Stores {
			said = append(said, fmt.Sprintf("%+v %+v", store.Spec, store.Spec.About()))
		}
		for _, x := range f.Lint() {
			said = append(said, fmt.Sprintf("%+v", x))
		}
		for _, text := range said {
			if strings.Contains(text, Secret) {
				t.Errorf("a secret is shown: %s", text)
			}
		}
	}
}

func hasSecret(f *schema.Form) bool {
	return f.Scalar == schema.ScalarSecret || f.Scalar == schema.ScalarAddress || f.Named != nil && hasSecret(f.Named) || f.Element != nil && hasSecret(f.Element)
}

// walk visits every field below a mapping.
func walk(path string, m schema.Mapping, visit func(path string, f *schema.Field)) {
	for i := range m.Fields {
		f := &m.Fields[i]
		at := schema.Within(path, f.Name)
		visit(at, f)
		if f.Form.Members != nil {
			walk(at, f.Form.Members(), visit)
		}
	}
}

// Parse reads a configuration with all kinds of the program, in which no variable of the
// environment is set.
func Parse(t *testing.T, text string) *config.File {
	t.Helper()
	f, err := kind.All().Parse("dir/semel.yaml", []byte(text), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return f
}

// WithSource returns a configuration whose pipeline p reads from a source, as in
// "{ file: { paths: [in] } }". more holds additional fields of the pipeline, as in
// ", window: 1d".
func WithSource(source string, more ...string) string {
	return file(source, "{ stdout: {} }", strings.Join(more, ""))
}

// WithSink returns a configuration whose pipeline p delivers to a sink.
func WithSink(sink string, more ...string) string {
	return file("{ file: { paths: [in] } }", sink, strings.Join(more, ""))
}

// WithStore returns a configuration with a store s.
func WithStore(store string) string { return "stores: { s: " + store + " }\n" }

// ReadSource returns the source that a text describes, as in "{ file: { paths: [in] } }".
func ReadSource[T config.Source](t *testing.T, written string) T {
	t.Helper()
	return as[T](t, Parse(t, WithSource(written)).Pipelines[0].Source)
}

// ReadSink returns the sink that a text describes.
func ReadSink[T config.Sink](t *testing.T, written string) T {
	t.Helper()
	return as[T](t, Parse(t, WithSink(written)).Pipelines[0].Sink)
}

// ReadStore returns the store that a text describes.
func ReadStore[T config.StoreKind](t *testing.T, written string) T {
	t.Helper()
	return as[T](t, Parse(t, WithStore(written)).Stores[0].Spec)
}

func as[T config.Kind](t *testing.T, read config.Kind) T {
	t.Helper()
	kind, ok := read.(T)
	if !ok {
		t.Fatalf("the kind is %T", read)
	}
	return kind
}

// file returns a configuration with one pipeline, whose keys are in an embedded store.
func file(source, sink, more string) string {
	return "stores: { keys: { embedded: { path: keys } }, db: { postgres: { dsn: 'host=h dbname=d' } } }\n" +
		"pipelines: { p: { key: { id: .id }, store: keys, source: " + source + ", sink: " + sink + more + " } }\n"
}

// Refused checks the problems of configurations. Each row is a configuration and the words
// of its problems, one line each.
func Refused(t *testing.T, rows [][2]string) {
	t.Helper()
	for _, row := range rows {
		text, want := row[0], row[1]
		_, err := kind.All().Parse("semel.yaml", []byte(text), func(string) string { return "" })
		var wrong *schema.Error
		if !errors.As(err, &wrong) {
			t.Errorf("%s\nis refused with %v, want:\n%s", text, err, want)
			continue
		}
		lines := strings.Split(want, "\n")
		for i, line := range lines {
			if len(wrong.Problems) != len(lines) || !strings.Contains(wrong.Problems[i].Text, line) {
				t.Errorf("%s\ngot:\n%v\nwant:\n%s", text, err, want)
				break
			}
		}
	}
}

// Warned checks what the linter finds. Each row is a configuration and how the line of its
// only finding ends, apart from notices: severity, risk, field and words; "" if it has none.
func Warned(t *testing.T, rows [][2]string) {
	t.Helper()
	for _, row := range rows {
		text, want := row[0], row[1]
		serious := slices.DeleteFunc(Findings(Parse(t, text)), func(line string) bool { return strings.Contains(line, " notice ") })
		if want == "" && len(serious) > 0 || want != "" && (len(serious) != 1 || !strings.HasSuffix(serious[0], want)) {
			t.Errorf("%s\ngot  %q\nwant %q", text, serious, want)
		}
	}
}

// Findings returns the findings of the linter, one line each: line:column, severity, risk,
// field and words.
func Findings(f *config.File) (lines []string) {
	for _, x := range f.Lint() {
		lines = append(lines, fmt.Sprintf("%d:%d %s %s %s: %s", x.Place.Line, x.Place.Column, x.Severity, x.Risk, x.Subject, x.Found))
	}
	return lines
}

// Examine returns what `semel doctor` finds about a kind of a file, one line each: severity,
// subject and words. A source or sink is that of the first pipeline. err says why something
// could not be checked.
func Examine(t *testing.T, f *config.File, of config.Kind) (lines []string, err error) {
	t.Helper()
	x := &config.Examination{File: f}
	if _, isStore := of.(config.StoreKind); isStore {
		i := slices.IndexFunc(f.Stores, func(s *config.Store) bool { return s.Spec == of })
		x.Store = f.Stores[i]
	} else {
		x.Pipeline = f.Pipelines[0]
	}
	of.Examine(t.Context(), x)
	for _, found := range x.Findings {
		lines = append(lines, fmt.Sprintf("%s %s: %s", found.Severity, found.Subject, found.Found))
	}
	return lines, x.Err
}

// Deliver delivers messages with the sink of the first pipeline, as attempts of keys that
// are their bodies.
func Deliver(t *testing.T, f *config.File, bodies ...string) {
	t.Helper()
	p := f.Pipelines[0]
	sink, err := p.Sink.Open(t.Context(), &config.Env{File: f, Pipeline: p})
	if err != nil {
		t.Fatal(err)
	}
	var items []*pipeline.Item
	for _, body := range bodies {
		it := &pipeline.Item{Attempt: 1}
		it.Message.Body = []byte(body)
		it.Call.Key = semel.Key{Scope: p.Key.Scope, ID: body}
		items = append(items, it)
	}
	sink.Deliver(t.Context(), items)
	for i, it := range items {
		if it.Err != nil {
			t.Errorf("deliver %s: %v", bodies[i], it.Err)
		}
	}
	if err := sink.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Receive reads some messages with the source of the first pipeline, acknowledges them, and
// returns their bodies, sorted.
func Receive(t *testing.T, f *config.File, count int) (bodies []string) {
	t.Helper()
	p := f.Pipelines[0]
	source, err := p.Source.Open(t.Context(), &config.Env{File: f, Pipeline: p})
	if err != nil {
		t.Fatal(err)
	}
	for len(bodies) < count {
		items, err := source.Read(t.Context())
		if err != nil {
			t.Fatalf("after %q: %v", bodies, err)
		}
		for _, it := range items {
			bodies = append(bodies, string(it.Message.Body))
		}
		if err := source.Ack(t.Context(), items); err != nil {
			t.Fatal(err)
		}
	}
	if err := source.Close(t.Context()); err != nil {
		t.Error(err)
	}
	slices.Sort(bodies)
	return bodies
}

// Sample returns the bodies of a sample from the source of the first pipeline, sorted.
func Sample(t *testing.T, f *config.File) (bodies []string) {
	t.Helper()
	p := f.Pipelines[0]
	if err := p.Source.Sample(t.Context(), p, func(m *semel.Message) bool {
		bodies = append(bodies, string(m.Body))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(bodies)
	return bodies
}

// OpenStore opens a store of a file with those that it is built on. The end of the test
// closes it.
func OpenStore(t *testing.T, f *config.File, name string) (semel.Store, error) {
	t.Helper()
	of, ok := f.Store(name)
	if !ok {
		t.Fatalf("there is no store %s", name)
	}
	return of.Spec.Open(t.Context(), StoreEnv(t, f, name))
}

// StoreEnv returns the environment in which a store of a file opens.
func StoreEnv(t *testing.T, f *config.File, name string) *config.StoreEnv {
	return &config.StoreEnv{
		File: f, Name: name,
		Store: func(_ context.Context, name string) (semel.Store, error) { return OpenStore(t, f, name) },
		OnClose: func(closing func() error) {
			t.Cleanup(func() {
				if err := closing(); err != nil {
					t.Error(err)
				}
			})
		},
	}
}

// Remembers checks that a store remembers what is done with it: the effect of a key happens
// once, and its second delivery gets the result of the first.
func Remembers(t *testing.T, store semel.Store, id string) {
	t.Helper()
	g, err := semel.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	effects := 0
	for _, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		got, err := g.Do(t.Context(), semel.Key{Scope: "orders", ID: id}, func(context.Context, semel.Claim) ([]byte, error) {
			effects++
			return []byte("paid"), nil
		})
		if err != nil || got.Decision != want || string(got.Result.Data) != "paid" {
			t.Errorf("%+v, %v; want %v with the result", got, err, want)
		}
	}
	if effects != 1 {
		t.Errorf("%d effects", effects)
	}
}

// Tracer is a source or a sink.
type Tracer interface {
	Trace(ctx context.Context, p *config.Pipeline, t *config.Tracing) error
}

// Trace searches the messages of a key that a source or sink of the first pipeline keeps,
// and returns their places and where it looked.
func Trace(t *testing.T, f *config.File, of Tracer, ids ...string) (found, looked []string) {
	t.Helper()
	p := f.Pipelines[0]
	search := &config.Tracing{
		File: f, Most: 1000, Since: time.Now().Add(-time.Hour),
		Found:  func(s config.Sighting) { found = append(found, s.Place+": "+s.What) },
		Looked: func(text string) { looked = append(looked, text) },
	}
	for _, id := range ids {
		search.Keys = append(search.Keys, semel.Key{Scope: p.Key.Scope, ID: id})
	}
	if err := of.Trace(t.Context(), p, search); err != nil {
		t.Fatal(err)
	}
	return found, looked
}
