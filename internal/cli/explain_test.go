package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
)

func TestLintTellsWithPlaceCostAndRemedy(t *testing.T) {
	t.Parallel()
	const fine = "pipelines:\n  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } }\n"
	const keys = "stores: { keys: { embedded: { path: keys } } }\n"
	file := func(text string) string { return writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), text) }

	clean := file(keys + fine)
	run(t, "", "lint", clean).check(t, term.ExitDone, "1 file: 0 to note, 0 with a warning, 0 broken")
	run(t, "", "lint", clean, "--quiet").check(t, term.ExitDone)

	weak := file(keys + strings.Replace(fine, "sink", "on_failure: { then: drop }, sink", 1))
	got := run(t, "", "lint", clean, weak)
	got.check(t, term.ExitFound, "2 files: 0 to note, 1 with a warning, 0 broken")
	if want := weak + ":3:94: warning: pipelines.p.on_failure.then: drop: a message whose last attempt failed is lost: write then: park\n"; got.stdout != want {
		t.Errorf("got  %q\nwant %q", got.stdout, want)
	}
	got = run(t, "", "lint", weak, "--json")
	var line configcmd.LintLine
	if err := json.Unmarshal([]byte(got.stdout), &line); err != nil || got.status != term.ExitFound ||
		line != (configcmd.LintLine{File: weak, Line: 3, Column: 94, Severity: "warning", Pipeline: "p", Subject: "pipelines.p.on_failure.then", Found: "drop", Risk: "loss", Cost: "a message whose last attempt failed is lost", Remedy: "write then: park"}) {
		t.Errorf("%v %+v", err, line)
	}

	broken := file(keys + strings.Replace(fine, ".id", "offset", 1))
	if got = run(t, "", "lint", broken); got.status != term.ExitFound || !strings.Contains(got.stdout, ":3:54: broken: pipelines.p.key.id: offset is not stable: ") {
		t.Errorf("%+v", got)
	}

	wrong := file("stores: { keys: { memroy: {} } }\npipelines: { p: { windwo: 1d } }\n")
	got = run(t, "", "lint", wrong, weak)
	got.check(t, term.ExitUsage, wrong+":1:19: unknown field stores.keys.memroy: did you mean memory?\n", "did you mean window?\n")
	if !strings.Contains(got.stdout, "on_failure") || strings.Count(got.stderr, "\n") != 5 {
		t.Errorf("all that is wrong is reported at once: %+v", got)
	}
	run(t, "", "lint").check(t, term.ExitUsage, "semel lint: FILE is missing: name the configuration\n")
	run(t, "", "lint", "none.yaml").check(t, term.ExitUsage, "semel lint: none.yaml: ")
}

func TestExplainPrintsThePromise(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), pipelinesExample+`  hooks:
    source: { http: { listen: "127.0.0.1:80" } }
    key: { id: .id }
    store: ledger
    sink: { webhook: { url: "https://u:canary-5d1e@example.com" } }
`)
	got := run(t, "", "explain", file)
	got.check(t, term.ExitDone)
	if !strings.Contains(got.stdout, "\n  commits by        one checkpoint on the disk\n") || !strings.Contains(got.stdout, "\n\nhooks: http 127.0.0.1:80/ → webhook POST https://u:[hidden]@example.com\n") {
		t.Errorf("%s", got.stdout)
	}
	got = run(t, "", "explain", file, "hooks", "--json")
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	var promise map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &promise); err != nil || len(lines) != 1 || got.status != term.ExitDone {
		t.Fatal(err, got)
	}
	for _, name := range []string{"pipeline", "from", "to", "keys", "mode", "nothing_lost", "no_second_effect", "window", "exceptions", "crashes"} {
		if promise[name] == nil {
			t.Errorf("the promise lacks %s: %s", name, lines[0])
		}
	}
	if strings.Contains(got.stdout, "canary-5d1e") {
		t.Errorf("a secret is shown: %s", got.stdout)
	}
	run(t, "", "explain", file, "hoks").check(t, term.ExitUsage, "has no such pipeline or route: did you mean hooks?")
	run(t, "", "explain", file, "a", "b").check(t, term.ExitUsage, `unexpected argument "b"`)
	run(t, "", "explain").check(t, term.ExitUsage, "FILE is missing: name the configuration\n")
	stores := writeFile(t, filepath.Join(t.TempDir(), "s.yaml"), "stores: { a: { memory: {} } }")
	run(t, "", "explain", stores).check(t, term.ExitUsage, "it names no pipeline")
	proxy := writeFile(t, filepath.Join(t.TempDir(), "api.yaml"), "stores: { a: { memory: {} } }\nproxy: { store: a, scope: global, upstream: \"http://127.0.0.1:1\" }")
	run(t, "", "run", proxy).check(t, term.ExitUsage, "semel proxy "+proxy+" runs it, and semel keys show KEY --caller CALLER --config "+proxy+" shows a key")
}

func TestExplainPrintsAPageAndAFigure(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), pipelinesExample)
	got := run(t, "", "explain", file, "--format", "markdown")
	got.check(t, term.ExitDone)
	for _, want := range []string{
		"# Pipeline lines\n\nFrom file ", "| commits by | one checkpoint on the disk |\n", "| nothing lost | yes |\n",
		"\n## Exceptions\n\n- ", "\n## Crashes and failures\n\n| moment | outcome of the message |\n|---|---|\n| before the checkpoint | ",
		"\n```mermaid\nflowchart TD\n",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("the page lacks %q:\n%s", want, got.stdout)
		}
	}
	figure := run(t, "", "explain", file, "lines", "--format", "mermaid")
	figure.check(t, term.ExitDone)
	if !strings.HasPrefix(figure.stdout, "flowchart TD\n") || !strings.HasSuffix(got.stdout, "```mermaid\n"+figure.stdout+"```\n") {
		t.Errorf("the figure of the page is another one:\n%s", figure.stdout)
	}
	// The moments are in the order of the commit, and each has its outcome.
	at := 0
	for _, want := range []string{"pipeline[", "m1[\"before the checkpoint\"]", "pipeline --> m1", "m1 -.->|crash| o1", "m2[\"at the checkpoint\"]", "m1 --> m2", "m4[\"after the acknowledgement\"]", "m4 -.->|crash| o4", "m5{{\"the sink cannot be reached\"}}", "pipeline -.-> m5 -.-> o5"} {
		next := strings.Index(figure.stdout[at:], want)
		if next < 0 {
			t.Fatalf("no %q after byte %d:\n%s", want, at, figure.stdout)
		}
		at += next
	}
	if text := run(t, "", "explain", file, "--format", "text"); text.stdout != run(t, "", "explain", file).stdout {
		t.Errorf("--format text: %+v", text)
	}
	if json := run(t, "", "explain", file, "--format", "json"); json.stdout != run(t, "", "explain", file, "--json").stdout {
		t.Errorf("--format json: %+v", json)
	}
	run(t, "", "explain", file, "--format", "markdwn").check(t, term.ExitUsage, `--format "markdwn": did you mean markdown?`)
	run(t, "", "explain", file, "--format", "mermaid", "--json").check(t, term.ExitUsage, "--format mermaid and --json exclude each other")
}

func TestSchemaIsJSON(t *testing.T) {
	t.Parallel()
	got := run(t, "", "schema")
	got.check(t, term.ExitDone)
	var schema map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &schema); err != nil || schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Error(err, schema["$schema"])
	}
}
