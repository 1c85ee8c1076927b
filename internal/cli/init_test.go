package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/pipelinecmd"
	"github.com/semel-dev/semel/internal/cli/term"
)

func TestEveryScenarioIsCleanForLint(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range pipelinecmd.Scenarios() {
		names = append(names, s[0]+".yaml")
		file := filepath.Join(t.TempDir(), "semel.yaml")
		run(t, "", "init", "--scenario", s[0], "--output", file).check(t, term.ExitDone, "wrote "+file)
		if got := run(t, "", "init", "--scenario", s[0]); got.status != term.ExitDone || got.stdout != readFile(t, file) || got.stderr != "" {
			t.Errorf("%s: %+v", s[0], got)
		}
		if got := run(t, "", "lint", file); got.status != term.ExitDone {
			t.Errorf("%s: %+v", s[0], got)
		}
		run(t, "", "explain", file).check(t, term.ExitDone)
		for i, line := range strings.Split(readFile(t, file), "\n") {
			if len(line) > 120 || strings.TrimRight(line, " ") != line || i == 0 && !strings.HasPrefix(line, "# ") {
				t.Errorf("%s:%d: %q", s[0], i+1, line)
			}
			if strings.HasPrefix(line, "#   semel ") && strings.Contains(line, "&&") {
				t.Errorf("%s:%d: a warning of the first command keeps the second from running: %q", s[0], i+1, line)
			}
		}
	}
	files, err := os.ReadDir("pipelinecmd/scenarios")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(names, f.Name()) {
			t.Errorf("%s is no scenario", f.Name())
		}
	}
}

func TestInitOverwritesNothing(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "semel.yaml"), "mine")
	run(t, "", "init", "--scenario", "http-to-api", "-o", file).check(t, term.ExitUsage, "--output "+file+": the file exists: name another file, or remove it")
	if readFile(t, file) != "mine" {
		t.Error("the file was changed")
	}
	run(t, "", "init", "--scenario", "http-to-api", "-o", filepath.Join(file, "x")).check(t, term.ExitUsage, "this is not a directory")
	run(t, "", "init").check(t, term.ExitUsage, "--scenario NAME is missing: name one of quickstart, kafka-to-kafka, ")
	run(t, "", "init", "--scenario", "kafka-to-postgre").check(t, term.ExitUsage, "--scenario kafka-to-postgre: did you mean kafka-to-postgres?")
	if got := run(t, "", "init", "http-to-api"); got.status != term.ExitDone || !strings.HasPrefix(got.stdout, "# ") {
		t.Errorf("%+v", got)
	}
	run(t, "", "init", "http-to-api", "streams").check(t, term.ExitUsage, `unexpected argument "streams"`)
	run(t, "", "init", "http-to-api", "--scenario", "streams").check(t, term.ExitUsage, "--scenario streams and http-to-api: name one scenario")
}
