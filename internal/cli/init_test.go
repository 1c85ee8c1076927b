package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
)

func TestEveryScenarioIsCleanForLint(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range configcmd.Scenarios() {
		names = append(names, s[0]+".yaml")
		file := filepath.Join(t.TempDir(), "semel.yaml")
		run(t, "", "init", "--scenario", s[0], "--output", file).check(t, term.ExitDone, "wrote "+file)
		shown := run(t, "", "init", "--scenario", s[0])
		if got := shown; got.status != term.ExitDone || strings.ReplaceAll(got.stdout, "semel.yaml", file) != readFile(t, file) || got.stderr != "" {
			t.Errorf("%s: %+v", s[0], got)
		}
		if got := run(t, "", "lint", file); got.status != term.ExitDone {
			t.Errorf("%s: %+v", s[0], got)
		}
		run(t, "", "explain", file).check(t, term.ExitDone)
		for i, line := range strings.Split(shown.stdout, "\n") {
			if len(line) > 120 || strings.TrimRight(line, " ") != line || i == 0 && !strings.HasPrefix(line, "# ") {
				t.Errorf("%s:%d: %q", s[0], i+1, line)
			}
			if strings.HasPrefix(line, "#   semel ") && strings.Contains(line, "&&") {
				t.Errorf("%s:%d: a warning of the first command keeps the second from running: %q", s[0], i+1, line)
			}
		}
	}
	files, err := os.ReadDir("configcmd/scenarios")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(names, f.Name()) {
			t.Errorf("%s is no scenario", f.Name())
		}
	}
}

// TestInitPrintsTheNextCommands runs them, in an empty database and with a file name that
// a shell would change.
func TestInitPrintsTheNextCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := func(name string) string {
		return map[string]string{"DATABASE_URL": servers.Database(t), "INPUT": filepath.Join(dir, "in.jsonl")}[name]
	}
	do := func(args ...string) outcome {
		var stdout, stderr bytes.Buffer
		status := Main(t.Context(), kind.All(), args, strings.NewReader(""), &stdout, &stderr, env)
		return outcome{status, stdout.String(), stderr.String()}
	}
	writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"event_id\":\"1\"}\n")
	file := filepath.Join(dir, "my orders.yaml")
	got := do("init", "quickstart", "-o", file)
	want := fmt.Sprintf("wrote %[1]s, next:\n  semel lint '%[1]s'\n  semel explain '%[1]s'\n  semel run '%[1]s' --check\n  semel run '%[1]s'\n", file)
	if got.status != term.ExitDone || got.stderr != want || !strings.Contains(readFile(t, file), "semel run '"+file+"'") {
		t.Errorf("%+v\n%s", got, readFile(t, file))
	}
	for _, args := range [][]string{{"lint", file}, {"explain", file}, {"run", file, "--check"}, {"run", file, "--admin", "off"}} {
		if got := do(args...); got.status != term.ExitDone {
			t.Errorf("%q: %+v", args, got)
		}
	}
	file = filepath.Join(dir, "orders.yaml")
	got = do("init", "kafka-to-postgres", "-o", file)
	got.check(t, term.ExitDone, "  semel lint "+file+"\n  semel migrate up --config "+file+" --store-name db\n  semel run "+file+" --check\n  semel run "+file+"\n")
	do("lint", file).check(t, term.ExitDone, "0 with a warning, 0 broken")
	do("migrate", "up", "--config", file, "--store-name", "db").check(t, term.ExitDone, "applied 4")
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
