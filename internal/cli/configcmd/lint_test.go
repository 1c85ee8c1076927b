package configcmd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestLintPrintsPlaceCostAndRemedyOfAFinding(t *testing.T) {
	t.Parallel()
	const fine = "pipelines:\n  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } }\n"
	const keys = "stores: { keys: { embedded: { path: keys } } }\n"
	file := func(text string) string { return programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), text) }

	clean := file(keys + fine)
	programtest.Run(t, "", "lint", clean).Check(t, term.ExitDone, "1 file: 0 to note, 0 with a warning, 0 broken")
	programtest.Run(t, "", "lint", clean, "--quiet").Check(t, term.ExitDone)

	weak := file(keys + strings.Replace(fine, "sink", "on_failure: { then: drop }, sink", 1))
	got := programtest.Run(t, "", "lint", clean, weak)
	got.Check(t, term.ExitFound, "2 files: 0 to note, 1 with a warning, 0 broken")
	if want := weak + ":3:94: warning: pipelines.p.on_failure.then: drop: a message whose last attempt failed is lost: write then: park\n"; got.Stdout != want {
		t.Errorf("got  %q\nwant %q", got.Stdout, want)
	}
	got = programtest.Run(t, "", "lint", weak, "--json")
	var line configcmd.LintLine
	if err := json.Unmarshal([]byte(got.Stdout), &line); err != nil || got.Status != term.ExitFound ||
		line != (configcmd.LintLine{File: weak, Line: 3, Column: 94, Severity: "warning", Pipeline: "p", Subject: "pipelines.p.on_failure.then", Found: "drop", Risk: "loss", Cost: "a message whose last attempt failed is lost", Remedy: "write then: park"}) {
		t.Errorf("%v %+v", err, line)
	}

	broken := file(keys + strings.Replace(fine, ".id", "offset", 1))
	if got = programtest.Run(t, "", "lint", broken); got.Status != term.ExitFound || !strings.Contains(got.Stdout, ":3:54: broken: pipelines.p.key.id: offset is not stable: ") {
		t.Errorf("%+v", got)
	}

	wrong := file("stores: { keys: { memroy: {} } }\npipelines: { p: { windwo: 1d } }\n")
	got = programtest.Run(t, "", "lint", wrong, weak)
	got.Check(t, term.ExitUsage, wrong+":1:19: unknown field stores.keys.memroy: did you mean memory?\n", "did you mean window?\n")
	if !strings.Contains(got.Stdout, "on_failure") || strings.Count(got.Stderr, "\n") != 5 {
		t.Errorf("all that is wrong is reported together: %+v", got)
	}
	got = programtest.Run(t, "", "lint", wrong, weak, "none.yaml", "--json", "--env-file", "none.env")
	got.Check(t, term.ExitUsage, "none.env: there is no such file\n")
	got = programtest.Run(t, "", "lint", wrong, weak, "none.yaml", "--json")
	got.Check(t, term.ExitUsage, "did you mean window?\n", "none.yaml: ")
	var places []string
	for text := range strings.Lines(got.Stdout) {
		var line configcmd.LintLine
		if err := json.Unmarshal([]byte(text), &line); err != nil || line.Found == "" {
			t.Errorf("%v: %s", err, text)
		}
		places = append(places, fmt.Sprintf("%s %s:%d:%d", line.Severity, line.File, line.Line, line.Column))
	}
	if got, want := strings.Join(places, ", "), fmt.Sprintf("warning %s:3:94, error %s:1:19, error %[2]s:2:17", weak, wrong); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "error none.yaml:0:0") {
		t.Errorf("got  %s\nwant %s…", got, want)
	}
	programtest.Run(t, "", "lint").Check(t, term.ExitUsage, "semel lint: FILE is missing: name the configuration\n")
	programtest.Run(t, "", "lint", "none.yaml").Check(t, term.ExitUsage, "semel lint: none.yaml: ")
}

// TestLintWarnsOfASecretInPlainText follows the remedy of the warning.
func TestLintWarnsOfASecretInPlainText(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const plain = "stores: { db: { postgres: { dsn: 'postgres://app:canary@db/app' } } }\n"
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), plain)
	got := programtest.Run(t, "", "lint", file)
	got.Check(t, term.ExitFound, "1 with a warning")
	if want := file + ":1:34: warning: stores.db.postgres.dsn: a secret as plain text: all who read the file, its backups or its history have it: write ${env:NAME} or ${file:PATH} instead\n"; got.Stdout != want {
		t.Errorf("got  %swant %s", got.Stdout, want)
	}
	secret := programtest.WriteFile(t, filepath.Join(dir, "password"), "canary\n")
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, file, strings.Replace(plain, "canary", "${file:password}", 1))
	programtest.Run(t, "", "lint", file, "-q").Check(t, term.ExitDone)
}

func TestSchemaIsJSON(t *testing.T) {
	t.Parallel()
	got := programtest.Run(t, "", "schema")
	got.Check(t, term.ExitDone)
	var schema map[string]any
	if err := json.Unmarshal([]byte(got.Stdout), &schema); err != nil || schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Error(err, schema["$schema"])
	}
}
