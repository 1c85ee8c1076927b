package open_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestEnvFileSetsTheVariablesOfEveryVerb(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ledger := programtest.MixedStore(t)
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `stores: { ledger: { embedded: { path: "${env:SEMEL_TEST_DIR}" } } }
pipelines:
  p: { source: { file: { paths: ["${env:SEMEL_TEST_IN}"] } }, key: { id: .id, scope: default }, store: ledger, sink: { stdout: {} }, parked: { path: ./parked } }
`)
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), `{"id":"new-1"}`+"\n")
	env := programtest.WriteFile(t, filepath.Join(dir, "prod.env"), "# the ledger\n\nexport SEMEL_TEST_DIR='"+ledger+"'\nSEMEL_TEST_IN = \"./in.jsonl\"\n")
	for args, want := range map[string]string{
		"keys show order-1 --config FILE":       "state        done\n",
		"explain FILE":                          "p: file ",
		"why order-2 --config FILE":             "--env-file " + env + " --scope default\n",
		"lint FILE":                             "",
		"doctor FILE":                           "",
		"dry-run FILE":                          "",
		"parked ls --config FILE":               "",
		"run FILE --admin off --log-level warn": `{"id":"new-1"}` + "\n",
	} {
		words := strings.Fields(strings.ReplaceAll(args, "FILE", file))
		if got := programtest.Run(t, "", words...); got.Status != term.ExitUsage || !strings.Contains(got.Stderr, "SEMEL_TEST_DIR is not set") || !strings.Contains(got.Stderr, "--env-file FILE") {
			t.Errorf("%s without the file: %+v", args, got)
		}
		got := programtest.Run(t, "", append(words, "--env-file", env)...)
		if got.Status == term.ExitUsage || got.Status == term.ExitFailed || !strings.Contains(got.Stdout, want) {
			t.Errorf("%s: %+v; want %q", args, got, want)
		}
	}
	for text, want := range map[string]string{
		"A=1\ncanary secret\n":    ":2: expected NAME=VALUE\n",
		"A='canary\n":             ":1: A: the quote is not closed at the end of the line\n",
		"SEMEL_TEST_OTHER=canary": "SEMEL_TEST_DIR is not set",
	} {
		bad := programtest.WriteFile(t, filepath.Join(t.TempDir(), "bad.env"), text)
		got := programtest.Run(t, "", "lint", file, "--env-file", bad)
		got.Check(t, term.ExitUsage, want)
		if strings.Contains(got.Stderr, "canary") {
			t.Errorf("a value is shown: %s", got.Stderr)
		}
	}
	programtest.Run(t, "", "lint", file, "--env-file", filepath.Join(dir, "none.env")).Check(t, term.ExitUsage, "none.env: there is no such file\n")
}
