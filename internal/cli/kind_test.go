package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest/toy"
	"github.com/semel-dev/semel/test/programtest"
)

// TestEveryVerbWorksWithARegisteredKind runs every verb with kinds that the
// program knows only from such a package and line.
func TestEveryVerbWorksWithARegisteredKind(t *testing.T) {
	t.Parallel()
	kinds := kind.All()
	kinds.Sources = append(kinds.Sources, toy.NewSource)
	kinds.Sinks = append(kinds.Sinks, toy.NewSink)
	toyRun := func(args ...string) programtest.Outcome {
		var stdout, stderr bytes.Buffer
		status := cli.Main(t.Context(), kinds, args, strings.NewReader(""), &stdout, &stderr, programtest.NoEnv)
		return programtest.Outcome{Status: status, Stdout: stdout.String(), Stderr: stderr.String()}
	}
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  count: { source: { toy: { last: 101 } }, key: { id: .id }, store: keys, sink: { toy: { before: number } } }
`)
	for _, one := range []struct {
		args   []string
		status int
		want   []string
	}{
		{[]string{"lint", file}, term.ExitDone, []string{"source.toy.last: 101: it takes long"}},
		{[]string{"explain", file}, term.ExitDone, []string{"count: toy up to 101 → toy", "the source counts from the beginning again"}},
		{[]string{"doctor", file}, term.ExitDone, []string{"it can count"}},
		{[]string{"dry-run", file}, term.ExitFound, []string{"202"}},
		{[]string{"schema"}, term.ExitDone, []string{`"toy"`, "The last number."}},
		{[]string{"run", file, "--admin", "off"}, term.ExitDone, []string{"number {\"id\":1}\n", "number {\"id\":101}\n"}},
	} {
		got := toyRun(one.args...)
		if got.Status != one.status {
			t.Errorf("%v: exit status %d: %s%s", one.args, got.Status, got.Stdout, got.Stderr)
		}
		for _, want := range one.want {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("%v: %q is missing in:\n%s%s", one.args, want, got.Stdout, got.Stderr)
			}
		}
		if one.args[0] == "run" && strings.Count(got.Stdout, "number ") != 101 {
			t.Errorf("each number once: %s", got.Stdout)
		}
	}
	wrong := programtest.WriteFile(t, filepath.Join(dir, "wrong.yaml"), strings.Replace(must(os.ReadFile(file)), "toy: { last", "toi: { last", 1))
	if got := toyRun("lint", wrong); got.Status != term.ExitUsage || !strings.Contains(got.Stderr, "did you mean toy?") {
		t.Errorf("a typo: %+v", got)
	}
}

func must(data []byte, err error) string {
	if err != nil {
		panic(err)
	}
	return string(data)
}
