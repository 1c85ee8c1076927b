package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/memory"
	"github.com/semel-dev/semel/internal/schema"
)

func noEnv(string) string { return "" }

func TestStoresHaveTheirNamesInTheOrderOfTheFile(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, "stores:\n  mem: { memory: {} }\n  plain:\n    memory:\n  disk: { embedded: { path: k } }\n  both: { tiered: [mem, disk] }\n")
	if got := strings.Join(f.StoreNames(), " "); got != "mem plain disk both" {
		t.Errorf("names: %s", got)
	}
	if s, ok := f.Store("disk"); !ok || s.Name != "disk" || s.Spec.Kind() != "embedded" || s.At.String() != "dir/semel.yaml:5:3" {
		t.Errorf("disk: %+v, %v", s, ok)
	}
	if s, ok := f.Store("plain"); !ok || !reflect.DeepEqual(s.Spec, &memory.Store{}) {
		t.Errorf("a kind without settings: %+v, %v", s, ok)
	}
	if _, ok := f.Store("none"); ok {
		t.Error("there is a store none")
	}
}

// TestErrorsSayWhereAndWhatToDo has one configuration for each case, and every
// line that is reported for it.
func TestErrorsSayWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	var words []string // of the kinds of stores
	for _, empty := range kind.All().Stores {
		words = append(words, empty().Kind())
	}
	for _, c := range []struct{ text, want string }{
		{"", `c.yaml: the file is empty: name a store under "stores"`},
		{"- a\n", `c.yaml:1:1: expected sections such as stores:, got a list`},
		{"storse: {}\n", "c.yaml: stores is missing: name a store, as in \"stores: { keys: { embedded: { path: ./keys } } }\"\nc.yaml:1:1: unknown section storse: did you mean stores?"},
		{"stores: {}\n", "c.yaml:1:9: stores: it is empty: write at least one store"},
		{"stores:\n  a: { memory: {} }\npipelines: {}\n", "c.yaml:3:12: pipelines: it is empty: write at least one pipeline"},
		{"stores:\n  a: { memory: {} }\n  a: { memory: {} }\n", "c.yaml:3:3: stores.a is defined twice"},
		{"stores:\n  a b: { memory: {} }\n", "c.yaml:2:3: stores: this is not a store name: write letters, digits, - and _, at most 64"},
		{"stores:\n  a: memory\n", "c.yaml:2:6: stores.a: expected fields, got a text: write { memory: {} } with its settings between the inner braces"},
		{"stores:\n  a: {}\n", "c.yaml:2:6: stores.a: one of " + strings.Join(words, ", ") + " is missing"},
		{"stores:\n  a: { memory: {}, embedded: { path: x } }\n", "c.yaml:2:30: stores.a.embedded: memory and embedded exclude each other: keep one"},
		{"stores:\n  a: { memroy: {} }\n", "c.yaml:2:8: unknown field stores.a.memroy: did you mean memory?"},
		{"stores:\n  a: *b\n", "c.yaml:2:6: stores.a: this alias has no anchor before it: put a text that begins with * in quotes"},
		{"stores: &s\n  a: *s\n", "c.yaml:2:6: stores.a: this alias has no anchor before it: put a text that begins with * in quotes"},
		{"stores:\n  1: { memory: {} }\n", "c.yaml:2:3: stores: this is not a field name: put it in quotes if it is one"},
		{"stores: { k: { memory: {} } }\nlog: { duplicates: 1.5 }\n", "c.yaml:2:20: log.duplicates: \"1.5\": not a share: write a number from 0 to 1, like 0.01"},
	} {
		_, err := kind.All().Parse("c.yaml", []byte(c.text), noEnv)
		if err == nil || err.Error() != c.want {
			t.Errorf("in:\n%s\ngot:\n%v\nwant:\n%s\n", c.text, err, c.want)
		}
	}
}

func TestStoresThatDoNotFitTogetherAreRefused(t *testing.T) {
	t.Parallel()
	const some = `stores:
  cache: { memory: {} }
  other: { memory: {} }
  disk: { embedded: { path: x } }
  shared: { redis: { url: "redis://h" } }
  db: { postgres: { dsn: "host=h" } }
  seen: { filter: { rate: 0.01, expect: 1, window: 1d } }
`
	for _, c := range []struct{ text, want string }{
		{"s: { tiered: [cache] }", "a stack needs two layers or more"},
		{"s: { tiered: [] }", "the list is empty"},
		{"s: { tiered: [cache, dbb] }", `8:24: stores.s.tiered: there is no store "dbb": did you mean db?`},
		{"s: { tiered: [cache, zzzzzzzzz] }", `there is no store "zzzzzzzzz": the stores are cache, other, disk, shared, db, seen, s`},
		{"s: { tiered: [cache, cache, db] }", "cache is defined twice"},
		{"s: { tiered: [cache, s] }", "the store would be a layer of itself, s over s: take one of them out"},
		{"s: { tiered: [cache, t] }\n  t: { tiered: [other, s] }", "the store would be a layer of itself, s over t over s"},
		{"s: { tiered: [shared, cache] }", "cache cannot be the last layer, which decides: memory loses all keys when the process ends: put a durable store below it"},
		{"s: { tiered: { layers: [cache, seen], sees_every_writer: true } }", "seen cannot be the last layer, which decides: a filter drops some new messages: put an exact store below it"},
		{"s: { tiered: [db, disk] }", "db is postgres, which cannot be an upper layer: memory, redis and filter can"},
		{"s: { tiered: [cache, db] }\n  t: { tiered: [cache, disk] }", "cache is a layer of s already: a key that is done there would be a duplicate here"},
		{`s: { redis: { url: "redis://h" } }`, "8:3: stores.s: it has the same server and prefix as shared (line 5), so a key that is done in one would be done in the other: give each store its own"},
		{"s: { embedded: { path: ./x } }", "it has the same directory as disk (line 4)"},
	} {
		_, err := kind.All().Parse("c.yaml", []byte(some+"  "+c.text+"\n"), noEnv)
		var wrong *schema.Error
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || !strings.Contains(wrong.Error(), c.want) {
			t.Errorf("%s\ngot:\n%v\nwant one problem with:\n%s", c.text, err, c.want)
		}
	}
	f := kindtest.Parse(t, some+"  s: { tiered: [other, shared, db] }\n  t: { tiered: [cache, s] }\n")
	var below []string
	for _, s := range f.Stack("t") {
		below = append(below, s.Name)
	}
	if got := strings.Join(below, " "); got != "t cache s other shared db" || len(f.Stack("none")) != 0 {
		t.Errorf("below t: %s", got)
	}
	if above, ok := f.LayerOf("shared"); !ok || above.Name != "s" {
		t.Errorf("shared is a layer of %v, %t", above, ok)
	}
	if above, ok := f.LayerOf("db"); ok {
		t.Errorf("db decides, and is no layer of %v", above)
	}
}

func TestEveryProblemIsReportedAtOnceInTheOrderOfTheFile(t *testing.T) {
	t.Parallel()
	_, err := kind.All().Parse("c.yaml", []byte(`stores:
  a: { memory: { max_keys: x } }
  b: { tiered: [a, nope] }
  c: { embedded: { pth: y } }
queues: {}
`), noEnv)
	var wrong *schema.Error
	if !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	var lines []int
	for _, p := range wrong.Problems {
		lines = append(lines, p.Place.Line)
	}
	if len(lines) != 5 || lines[0] != 2 || lines[1] != 3 || lines[2] != 4 || lines[3] != 4 || lines[4] != 5 {
		t.Errorf("lines %v:\n%v", lines, err)
	}
}

func TestFileThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "none.yaml")
	_, err := kind.All().Read(name, noEnv)
	if err == nil || err.Error() != name+": no such file or directory" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err = kind.All().Read(filepath.Dir(name), noEnv); err == nil || err.Error() != filepath.Dir(name)+": is a directory" {
		t.Errorf("got %v", err)
	}
}
