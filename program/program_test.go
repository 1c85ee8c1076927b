package program_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/outside"
	"github.com/semel-dev/semel/store/memstore"
)

// TestAModuleOutsideAddsKinds builds the example, which is a module of its own, and runs every verb
// with its kinds.
func TestAModuleOutsideAddsKinds(t *testing.T) {
	t.Parallel()
	module, dir := filepath.Join("..", "examples", "own-kinds"), t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "go", "test", "-C", module, "-short", "-vet=off", "-ldflags=-w", ".").CombinedOutput(); err != nil {
		t.Fatalf("its own tests: %v\n%s", err, output)
	}
	program := filepath.Join(dir, "semel-with-kinds")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-C", module, "-ldflags=-w", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	conf, err := os.ReadFile(filepath.Join(module, "semel.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(status int, want []string, args ...string) (stdout string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), program, args...)
		command.Dir = dir
		var stderr bytes.Buffer
		command.Stderr = &stderr
		output, _ := command.Output() // the status says it
		if got := command.ProcessState.ExitCode(); got != status {
			t.Errorf("%v: exit status %d, want %d\n%s%s", args, got, status, output, &stderr)
		}
		for _, text := range want {
			if !strings.Contains(string(output)+stderr.String(), text) {
				t.Errorf("%v: no %q in\n%s%s", args, text, output, &stderr)
			}
		}
		return string(output)
	}
	write("semel.yaml", string(conf))
	run(3, []string{"spool does not exist", "create it"}, "doctor", "semel.yaml")
	for i := range 6 {
		write(fmt.Sprintf("spool/%d.json", i), fmt.Sprintf(`{"id":%d}`, i/2))
	}
	run(3, []string{"a shelf forgets its keys at the end of the process"}, "lint", "semel.yaml")
	run(0, []string{"mail: spool spool → stdout", "the file is read again", "no second effect  best effort"}, "explain", "semel.yaml")
	run(0, []string{"6 files"}, "doctor", "semel.yaml")
	run(3, []string{"6"}, "dry-run", "semel.yaml")
	run(0, []string{`"spool"`, "Keys in memory, for one process."}, "schema")
	if got := run(0, nil, "run", "semel.yaml", "--admin", "off"); strings.Count(got, "{") != 3 {
		t.Errorf("each id once: %s", got)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "spool")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	write("wrong.yaml", strings.Replace(string(conf), "most: 1000", "most: 0", 1))
	run(2, []string{"stores.keys.shelf.most"}, "lint", "wrong.yaml")
}

// everything is a kind with a field of each type.
type everything struct {
	connector.Store
	text   string
	secret connector.Secret
	size   connector.Size
	texts  []string
	path   connector.Path
	yes    bool
	word   string
	number int
	wrong  error
}

func (*everything) Kind() string   { return "everything" }
func (e *everything) Check() error { return e.wrong }
func (e *everything) Fields() (string, []connector.Field) {
	return "A field of each type.", []connector.Field{
		{Name: "text", Value: &e.text, Doc: "A text.", Required: true},
		{Name: "secret", Value: &e.secret, Doc: "A secret.", Absent: "none"},
		{Name: "size", Value: &e.size, Doc: "A size.", Default: "1KiB"},
		{Name: "texts", Value: &e.texts, Doc: "Some texts.", Absent: "none"},
		{Name: "path", Value: &e.path, Doc: "A path.", Absent: "none"},
		{Name: "yes", Value: &e.yes, Doc: "Yes or no.", Absent: "none"},
		{Name: "word", Value: &e.word, Doc: "A word.", Words: []string{"one", "two"}},
		{Name: "number", Value: &e.number, Doc: "A number.", Least: 1, Most: 9, Absent: "none"},
	}
}

func (*everything) About() connector.StoreAbout { return connector.StoreAbout{} }

func TestFieldsOfEachTypeAreRead(t *testing.T) {
	t.Parallel()
	read := func(fields string, wrong error) (*everything, error) {
		e := &everything{wrong: wrong}
		kinds := kind.All()
		outside.Add(kinds, connector.Kinds{Stores: []func() connector.Store{func() connector.Store { return e }}})
		_, err := kinds.Parse("c.yaml", []byte("stores: { k: { everything: { "+fields+" } } }"), func(name string) string { return "of " + name })
		return e, err
	}
	const least = "text: a, "
	e, err := read(least+"secret: '${env:SECRET}', texts: [b, c], path: d, yes: true, word: two, number: 9", nil)
	if err != nil || e.text != "a" || e.secret.Reveal() != "of SECRET" || e.size != 1024 || strings.Join(e.texts, " ") != "b c" || e.path != "d" || !e.yes || e.word != "two" || e.number != 9 {
		t.Errorf("%+v, %v", e, err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", e.secret, *e, e.secret, e.secret); strings.Contains(text, "of SECRET") {
		t.Errorf("a secret is shown: %s", text)
	}
	for fields, want := range map[string]string{
		"size: 2KiB":             "stores.k.everything: text is missing",
		least + "word: three":    "stores.k.everything.word",
		least + "number: 10":     "stores.k.everything.number",
		least + "nubmer: 1":      "did you mean number?",
		least + "size: -1":       "stores.k.everything.size",
		least + "yes: 'perhaps'": "stores.k.everything.yes",
	} {
		if _, err := read(fields, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", fields, err, want)
		}
	}
	if _, err := read(least, errors.New("text and word exclude each other: leave one out")); err == nil || !strings.Contains(err.Error(), "stores.k.everything: text and word exclude each other") {
		t.Errorf("a contradiction: %v", err)
	}
}

type named struct {
	everything
	name  string
	value any
}

func (n *named) Kind() string { return n.name }
func (n *named) Fields() (string, []connector.Field) {
	return "A kind.", []connector.Field{{Name: "field", Value: n.value, Doc: "A field.", Absent: "none"}}
}

func TestKindsThatAreDeclaredWrongPanic(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]named{
		"it is taken": {name: "redis", value: new(string)}, "other characters": {name: "a b", value: new(string)}, "type *float32": {name: "a", value: new(float32)},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("got %s, want %s", got, want)
				}
			}()
			outside.Add(kind.All(), connector.Kinds{Stores: []func() connector.Store{func() connector.Store { return &n }}})
		}()
	}
}

// declared is a kind with fields of a test.
type declared struct {
	everything
	fields []connector.Field
}

func (d *declared) Kind() string                        { return "declared" }
func (d *declared) Fields() (string, []connector.Field) { return "A kind.", d.fields }

func TestFieldsThatAreDeclaredWrongPanic(t *testing.T) {
	t.Parallel()
	field := func(value any, change func(*connector.Field)) connector.Field {
		f := connector.Field{Name: "field", Value: value, Doc: "A field.", Absent: "none"}
		change(&f)
		return f
	}
	right := field(new(string), func(*connector.Field) {})
	for want, fields := range map[string][]connector.Field{
		"<nil>":                 {right},
		"is declared twice":     {right, right},
		"with other characters": {field(new(string), func(f *connector.Field) { f.Name = "a b" })},
		"more than one of Required, Default and Absent":   {field(new(string), func(f *connector.Field) { f.Required, f.Default, f.Absent = true, "a", "" })},
		"numbers from 0 to 0: set Least and Most":         {field(new(int), func(*connector.Field) {})},
		"only a *string has them":                         {field(new(bool), func(f *connector.Field) { f.Words = []string{"yes"} })},
		`has the default "x", which is none of its Words`: {field(new(string), func(f *connector.Field) { f.Words, f.Default, f.Absent = []string{"y"}, "x", "" })},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("got %s, want %s", got, want)
				}
			}()
			outside.Add(kind.All(), connector.Kinds{Stores: []func() connector.Store{func() connector.Store { return &declared{fields: fields} }}})
		}()
	}
}

// lasting is a kind of store in memory that lasts as long as the test.
type lasting struct {
	everything
	of semel.Store
}

func (*lasting) Kind() string                                                { return "lasting" }
func (*lasting) About() connector.StoreAbout                                 { return connector.StoreAbout{Settles: true} }
func (*lasting) Fields() (string, []connector.Field)                         { return "A kind.", nil }
func (l *lasting) Open(context.Context, *connector.Env) (semel.Store, error) { return l.of, nil }

// unclosed is a store that no verb closes.
type unclosed struct{ semel.Store }

// Unwrap is for semel.As.
func (u unclosed) Unwrap() semel.Store { return u.Store }

// ownLog is a store with an audit log of its own.
type ownLog struct{ unclosed }

func (ownLog) Audit(context.Context, []byte) error { return nil }

// looked is a kind of store that notes how it is opened. The first opening that writes makes it.
type looked struct {
	lasting
	modes *[]bool
}

func (*looked) Kind() string { return "looked" }
func (l *looked) Open(ctx context.Context, env *connector.Env) (semel.Store, error) {
	*l.modes = append(*l.modes, env.ReadOnly)
	if env.ReadOnly && !slices.Contains(*l.modes, false) {
		return nil, fmt.Errorf("open keys: %w", fs.ErrNotExist)
	}
	return l.lasting.Open(ctx, env)
}

// TestVerbsThatChangeNothingOpenAnOwnStoreToReadIt runs such verbs before there is a store, and
// after a run.
func TestVerbsThatChangeNothingOpenAnOwnStoreToReadIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "semel.yaml")
	const text = `
stores: { k: { looked: {} } }
pipelines: { p: { source: { file: { paths: [in] } }, sink: { stdout: {} }, store: k, key: { id: .id }, window: 1h } }
`
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "in"), []byte("{\"id\":\"1\"}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	memory, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var modes []bool
	run := func(args ...string) (int, string) {
		var output bytes.Buffer
		kinds := kind.All()
		outside.Add(kinds, connector.Kinds{Stores: []func() connector.Store{func() connector.Store { return &looked{lasting{of: unclosed{memory}}, &modes} }}})
		status := cli.Main(t.Context(), kinds, args, strings.NewReader(""), &output, &output, func(string) string { return "" })
		return status, output.String()
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{0, "compared only with each other: open the store k: there is no store yet", []string{"dry-run", conf}},
		{1, "there is no store yet", []string{"keys", "show", "1", "--config", conf}},
		{1, "there is no store yet", []string{"keys", "stats", "--config", conf}},
		{0, "", []string{"run", conf, "--admin", "off"}},
		{3, "duplicate", []string{"dry-run", conf}},
		{0, "done", []string{"keys", "show", "1", "--config", conf}},
		{0, `"state":"done"`, []string{"keys", "export", "--config", conf}},
		{0, "done", []string{"why", "1", "--config", conf}},
	} {
		modes = slices.DeleteFunc(modes, func(readOnly bool) bool { return readOnly })
		status, output := run(c.args...)
		if status != c.status || !strings.Contains(output, c.want) {
			t.Errorf("%v: %d, want %d with %q\n%s", c.args, status, c.status, c.want, output)
		}
		if reads := c.args[0] != "run"; reads != (len(modes) > 0 && modes[len(modes)-1]) {
			t.Errorf("%v opens the store, and the last one only to read it: %t", c.args, modes)
		}
	}
	if status, output := run("keys", "rm", "1", "--config", conf, "--scope", "p", "--reason", "why not"); status != 0 || modes[len(modes)-1] {
		t.Errorf("keys rm: %d, %t\n%s", status, modes, output)
	}
}

// broken is a kind of source that cannot be read, and knows why.
type broken struct{ connector.Source }

func (broken) Kind() string                        { return "broken" }
func (broken) Fields() (string, []connector.Field) { return "A kind.", nil }
func (broken) Sample(context.Context, func(*semel.Message) bool) error {
	return errors.New("code 17")
}

func (broken) About() connector.SourceAbout {
	return connector.SourceAbout{Name: "broken", Again: "it comes again", Behind: "nothing"}
}

func (broken) Advise(err error) (cause, remedy string) {
	if strings.Contains(err.Error(), "code 17") {
		return "the server has no such stream", "create it"
	}
	return "", ""
}

// forgetful is a kind of store whose keys no operator can settle.
type forgetful struct{ lasting }

func (*forgetful) About() connector.StoreAbout { return connector.StoreAbout{} }

func TestKindsAreAskedForCausesAndAbilities(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "semel.yaml")
	const text = `
stores: { k: { lasting: {} } }
pipelines: { p: { source: { broken: {} }, sink: { stdout: {} }, store: k, key: { id: .id }, window: 1h, on_lease_expired: hold } }
serve: { store: k }
`
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	memory, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	run := func(store connector.Store, args ...string) (int, string) {
		var output bytes.Buffer
		kinds := kind.All()
		outside.Add(kinds, connector.Kinds{Sources: []func() connector.Source{func() connector.Source { return broken{} }}, Stores: []func() connector.Store{func() connector.Store { return store }}})
		status := cli.Main(t.Context(), kinds, args, strings.NewReader(""), &output, &output, func(string) string { return "" })
		return status, output.String()
	}
	settles := &lasting{of: unclosed{memory}}
	if status, output := run(settles, "dry-run", conf); status != 1 || !strings.Contains(output, "the server has no such stream: create it") {
		t.Errorf("a sample fails: %d\n%s", status, output)
	}
	const finding = "no operator can settle keys of a lasting"
	if _, output := run(settles, "lint", conf); strings.Contains(output, finding) {
		t.Errorf("keys of this store can be settled:\n%s", output)
	}
	if status, output := run(&forgetful{*settles}, "lint", conf); status != 3 || strings.Count(output, finding) != 2 {
		t.Errorf("a pipeline and a server hold keys: %d\n%s", status, output)
	}
	if status, output := run(&forgetful{*settles}, "keys", "stats", "--config", conf); status != 1 || !strings.Contains(output, "has Settles: false") {
		t.Errorf("a kind denies what its store can do: %d\n%s", status, output)
	}
}

// TestKeysOfAnOwnKindAreSettledAndTold settles a key by hand, with its audit log in a file, and
// looks for the place where the message of another came from.
func TestKeysOfAnOwnKindAreSettledAndTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf, file := filepath.Join(dir, "semel.yaml"), filepath.Join(dir, "semel-audit-k.jsonl")
	const text = `
stores: { k: { lasting: {} } }
pipelines: { p: { source: { file: { paths: [in] } }, sink: { stdout: {} }, store: k, key: { id: .id }, window: 1h } }
`
	if err := errors.Join(os.WriteFile(conf, []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "in"), []byte("{\"id\":\"1\"}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	memory, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys := unclosed{memory}
	run := func(of semel.Store, args ...string) (int, string) {
		var output bytes.Buffer
		kinds := kind.All()
		outside.Add(kinds, connector.Kinds{Stores: []func() connector.Store{func() connector.Store { return &lasting{of: of} }}})
		status := cli.Main(t.Context(), kinds, args, strings.NewReader(""), &output, &output, func(string) string { return "" })
		return status, output.String()
	}
	if status, output := run(keys, "run", conf, "--admin", "off"); status != 0 {
		t.Fatalf("run: %d\n%s", status, output)
	}
	if _, output := run(keys, "keys", "show", "1", "--config", conf, "--scope", "p"); !strings.Contains(output, "origin") {
		t.Errorf("keys show says nothing of the origin:\n%s", output)
	}
	status, output := run(keys, "keys", "rm", "1", "--config", conf, "--scope", "p", "--reason", "why not")
	if log, err := os.ReadFile(file); status != 0 || err != nil || strings.Count(string(log), "why not") == 0 {
		t.Errorf("keys rm: %d, %v\n%s%s", status, err, output, log)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte("{\"id\":\"1\"}\n{\"id\":\"2\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, output := run(ownLog{keys}, "run", conf, "--admin", "off"); status != 0 {
		t.Errorf("run again: %d\n%s", status, output)
	}
	if status, output := run(ownLog{keys}, "keys", "rm", "2", "--config", conf, "--scope", "p", "--reason", "why not"); status != 0 {
		t.Errorf("keys rm with a log of its own: %d\n%s", status, output)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a store with an audit log of its own has a file too: %v", err)
	}
}
