package kind_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestANewKindIsOnePackageAndOneLine adds a kind to a copy of the module, as DESIGN.md says: a
// package, and its entry in the list with the import. Everything else must be right by itself, or
// be written by the command that a failure names.
func TestANewKindIsOnePackageAndOneLine(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the program and the tests of a copy of the module")
	}
	t.Parallel()
	module := filepath.Join("..", "..")
	copied := t.TempDir()
	before := filesOf(t, module)
	for name, text := range before {
		writeIn(t, copied, name, text)
	}
	writeIn(t, copied, "internal/kind/toy/toy.go", before["internal/kind/kindtest/toy/toy.go"])
	writeIn(t, copied, "internal/kind/toy/toy_test.go", []byte(`package toy_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/toy"
)

func TestToy(t *testing.T) {
	t.Run("source", func(t *testing.T) { kindtest.Source(t, toy.NewSource, kindtest.Case{Least: "{}"}) })
	t.Run("sink", func(t *testing.T) { kindtest.Sink(t, toy.NewSink, kindtest.Case{Least: "{}"}) })
}
`))
	list := string(before["internal/kind/kinds.go"])
	for _, entry := range [][2]string{
		{"internal/kind/tiered\"\n", "\t\"github.com/semel-dev/semel/internal/kind/toy\"\n"},
		{"sqs.NewSource", ", toy.NewSource"},
		{"sqs.NewSink", ", toy.NewSink"},
	} {
		if strings.Count(list, entry[0]) != 1 {
			t.Fatalf("the list has not one %q", entry[0])
		}
		list = strings.Replace(list, entry[0], entry[0]+entry[1], 1)
	}
	writeIn(t, copied, "internal/kind/kinds.go", []byte(list))

	run := func(right bool, want string, name string, args ...string) {
		t.Helper()
		command := exec.CommandContext(t.Context(), name, args...)
		command.Dir = copied
		output, err := command.CombinedOutput()
		if (err == nil) != right || !bytes.Contains(output, []byte(want)) {
			t.Fatalf("%s %s: %v, want that it says %q\n%s", name, strings.Join(args, " "), err, want, output)
		}
	}
	update := []string{"go", "test", "./internal/kind", "-run", "ReferencePage", "-update"}
	run(false, strings.Join(update, " "), "go", "test", "-trimpath", "./internal/kind", "-run", "ReferencePage")
	run(true, "ok", update[0], append([]string{"test", "-trimpath"}, update[2:]...)...)
	run(true, "ok", "go", "test", "-trimpath", "./internal/kind", "./internal/kind/toy", "./internal/config", "-short")
	run(true, "ok", "go", "test", "-trimpath", "-run", "^TestArchitecture", ".")
	writeIn(t, copied, "semel.yaml", []byte(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  count: { source: { toy: { last: 101 } }, key: { id: .id }, store: keys, sink: { toy: { before: number } } }
`))
	run(true, "", "go", "build", "-trimpath", "-o", "semel-with-toy", "./cmd/semel")
	program := filepath.Join(copied, "semel-with-toy")
	run(true, "source.toy.last: 101: it takes long", program, "lint", "semel.yaml")
	run(true, "toy up to 101", program, "explain", "semel.yaml")
	run(true, `number {"id":101}`, program, "run", "semel.yaml", "--admin", "off")

	var changed []string
	for name, text := range filesOf(t, copied) {
		if old, was := before[name]; was && !bytes.Equal(old, text) {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	if want := []string{"docs/configuration.md", "internal/kind/kinds.go"}; !slices.Equal(changed, want) {
		t.Errorf("these files had to change: %q, want %q", changed, want)
	}
}

// filesOf returns the files of a module, without those that tools have made.
func filesOf(t *testing.T, root string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules" || name == "bench/work"):
			return fs.SkipDir
		case entry.Type().IsRegular():
			files[name], err = os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func writeIn(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644)); err != nil {
		t.Fatal(err)
	}
}
