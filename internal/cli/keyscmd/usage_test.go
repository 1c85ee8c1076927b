package keyscmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestChangesOfKeysAreJSONWhereAskedFor(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	for args, want := range map[string][]string{
		"keys rm order-1 --reason x":                {`{"verb":"rm","before":{`, `"id":"order-1"`, `"state":"done"`, `"after":"absent"}`},
		"keys resolve order-2 --as done --reason x": {`{"verb":"resolve","before":{`, `"id":"order-2"`, `"state":"unknown"`, `"after":"done","window":"forever"}`},
	} {
		got := programtest.Run(t, "", append(strings.Fields(args), "--json", "--store", dir)...)
		got.Check(t, term.ExitDone)
		for _, text := range want {
			if !strings.Contains(got.Stdout, text) {
				t.Errorf("%s: %q lacks %s", args, got.Stdout, text)
			}
		}
	}
}

func TestListHintsAtKeysWhoseScopesAreNotStored(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	programtest.Run(t, "a\n", "dedup", "--store", dir).Check(t, term.ExitDone, "fresh 1")
	for _, verb := range []string{"ls", "export"} {
		programtest.Run(t, "", "keys", verb, "--scope", "default", "--store", dir).Check(t, term.ExitDone, "no listed key has the scope default. The store has 1 keys", "keys show")
		programtest.Run(t, "", "keys", verb, "--store", dir, "--quiet").Check(t, term.ExitDone)
	}
}
