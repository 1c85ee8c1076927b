package configcmd_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestExplainPrintsThePromise(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.PipelinesExample+`  hooks:
    source: { http: { listen: "127.0.0.1:80" } }
    key: { id: .id }
    store: ledger
    sink: { webhook: { url: "https://u:canary-5d1e@example.com" } }
`)
	got := programtest.Run(t, "", "explain", file)
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "\n  commits by        one checkpoint on the disk\n") || !strings.Contains(got.Stdout, "\n\nhooks: http 127.0.0.1:80/ → webhook POST https://u:[hidden]@example.com\n") {
		t.Errorf("%s", got.Stdout)
	}
	got = programtest.Run(t, "", "explain", file, "hooks", "--json")
	lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
	var promise map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &promise); err != nil || len(lines) != 1 || got.Status != term.ExitDone {
		t.Fatal(err, got)
	}
	for _, name := range []string{"pipeline", "from", "to", "keys", "mode", "nothing_lost", "no_second_effect", "window", "exceptions", "crashes"} {
		if promise[name] == nil {
			t.Errorf("the promise lacks %s: %s", name, lines[0])
		}
	}
	if strings.Contains(got.Stdout, "canary-5d1e") {
		t.Errorf("a secret is shown: %s", got.Stdout)
	}
	programtest.Run(t, "", "explain", file, "hoks").Check(t, term.ExitUsage, "has no such pipeline or route: did you mean hooks?")
	programtest.Run(t, "", "explain", file, "a", "b").Check(t, term.ExitUsage, `unexpected argument "b"`)
	programtest.Run(t, "", "explain").Check(t, term.ExitUsage, "FILE is missing: name the configuration\n")
	stores := programtest.WriteFile(t, filepath.Join(t.TempDir(), "s.yaml"), "stores: { a: { memory: {} } }")
	programtest.Run(t, "", "explain", stores).Check(t, term.ExitUsage, "it names no pipeline")
	proxy := programtest.WriteFile(t, filepath.Join(t.TempDir(), "api.yaml"), "stores: { a: { memory: {} } }\nproxy: { store: a, scope: global, upstream: \"http://127.0.0.1:1\" }")
	programtest.Run(t, "", "run", proxy).Check(t, term.ExitUsage, "semel proxy "+proxy+" runs it, and semel keys show KEY --caller CALLER --config "+proxy+" shows a key")
}

func TestExplainPrintsMarkdownAndMermaid(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.PipelinesExample)
	got := programtest.Run(t, "", "explain", file, "--format", "markdown")
	got.Check(t, term.ExitDone)
	for _, want := range []string{
		"# Pipeline lines\n\nFrom file ", "| commits by | one checkpoint on the disk |\n", "| nothing lost | yes |\n",
		"\n## Exceptions\n\n- ", "\n## Crashes and failures\n\n| moment | outcome of the message |\n|---|---|\n| before the checkpoint | ",
		"\n```mermaid\nflowchart TD\n",
	} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("the page lacks %q:\n%s", want, got.Stdout)
		}
	}
	figure := programtest.Run(t, "", "explain", file, "lines", "--format", "mermaid")
	figure.Check(t, term.ExitDone)
	if !strings.HasPrefix(figure.Stdout, "flowchart TD\n") || !strings.HasSuffix(got.Stdout, "```mermaid\n"+figure.Stdout+"```\n") {
		t.Errorf("the figure of the page is another one:\n%s", figure.Stdout)
	}
	// The moments are in the order of the commit, and each has its outcome.
	at := 0
	for _, want := range []string{"pipeline[", "m1[\"before the checkpoint\"]", "pipeline --> m1", "m1 -.->|crash| o1", "m2[\"at the checkpoint\"]", "m1 --> m2", "m4[\"after the acknowledgement\"]", "m4 -.->|crash| o4", "m5{{\"the sink cannot be reached\"}}", "pipeline -.-> m5 -.-> o5"} {
		next := strings.Index(figure.Stdout[at:], want)
		if next < 0 {
			t.Fatalf("no %q after byte %d:\n%s", want, at, figure.Stdout)
		}
		at += next
	}
	if text := programtest.Run(t, "", "explain", file, "--format", "text"); text.Stdout != programtest.Run(t, "", "explain", file).Stdout {
		t.Errorf("--format text: %+v", text)
	}
	if json := programtest.Run(t, "", "explain", file, "--format", "json"); json.Stdout != programtest.Run(t, "", "explain", file, "--json").Stdout {
		t.Errorf("--format json: %+v", json)
	}
	programtest.Run(t, "", "explain", file, "--format", "markdwn").Check(t, term.ExitUsage, `--format "markdwn": did you mean markdown?`)
	programtest.Run(t, "", "explain", file, "--format", "mermaid", "--json").Check(t, term.ExitUsage, "--format mermaid and --json exclude each other")
}
