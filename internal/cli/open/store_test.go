package open_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestVerbsRefuseStoresThatTheyCannotRead(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores:
  mem:   { memory: {} }
  seen:  { filter: { rate: 0.01, expect: 1000, window: 1d } }
  files: { embedded: { path: ./files } }
  stack: { tiered: [mem, files] }
`)
	dir := filepath.Join(filepath.Dir(file), "files")
	for _, c := range []struct{ args, want string }{
		{"keys ls --store-name mem", "semel keys ls: mem lives in the memory of the process that uses it: there is nothing to look into from here\n"},
		{"keys ls --store-name seen", "semel keys ls: seen is a filter, which keeps no records: there is nothing to look into\n"},
		{"keys import --store-name mem", "semel keys import: mem is of the kind memory: imported keys would not be kept\n"},
		{"keys ls --store-name files", "semel keys ls: store files: " + dir + ": there is no store in this directory\n"},
		{"keys rm x --reason y --store-name stack", "semel keys rm: store files: " + dir + ": there is no store in this directory\n"},
		{"keys ls --store-name flies", "semel keys ls: --store-name flies: " + file + " has no such store: did you mean files?\n"},
		{"keys ls", "semel keys ls: --store-name NAME is missing: " + file + " names mem, seen, files, stack\n"},
		{"keys ls --store x", "semel keys ls: --store and --config exclude each other: name the store one way\n"},
		{"keys import --keep-ids --store-name files", "semel keys import: --keep-ids is for --store: in a configuration the store says keep_ids: true\n"},
		{"migrate sql --store-name files", "semel migrate sql: --store-name files has no schema: only a store of the kind postgres has one\n"},
	} {
		got := programtest.Run(t, "", append(strings.Fields(c.args), "--config", file)...)
		if got.Status != term.ExitUsage || got.Stderr != c.want || got.Stdout != "" {
			t.Errorf("semel %s: %+v, want %s", c.args, got, c.want)
		}
	}
	programtest.Run(t, "", "keys", "ls", "--store-name", "x").Check(t, term.ExitUsage, "--config FILE is missing: name the configuration that has the store x")
	programtest.Run(t, "", "migrate", "up").Check(t, term.ExitUsage, "--config FILE is missing: name the configuration, and the store with --store-name NAME")
	programtest.Run(t, "", "keys", "ls", "--config", file+"x").Check(t, term.ExitUsage, "semel keys ls: "+file+"x: there is no such file\n")
	for _, words := range [][]string{{"keys", "ls", "--store-name", "x"}, {"keys", "ls"}, {"migrate", "up", "--store-name", "x"}, {"migrate", "up"}} {
		got := programtest.Run(t, "", append(words, "--config", "")...)
		if got.Status != term.ExitUsage || !strings.HasSuffix(got.Stderr, `: --config "": the value is empty: is a variable not set? Give the flag a value, or leave it out`+"\n") || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("semel %s: %+v", words, got)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("looking has made a store")
	}
}
