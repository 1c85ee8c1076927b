package configcmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// secrets returns the variables that scenarios have no default for.
func secrets(name string) string {
	return map[string]string{"STRIPE_SECRET": "whsec_of_tests", "GITHUB_SECRET": "secret of tests", "SNS_TOPIC": "arn:aws:sns:eu-west-1:1:orders"}[name]
}

func TestEveryScenarioIsCleanForLint(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range configcmd.Scenarios() {
		names = append(names, s[0]+".yaml")
		file := filepath.Join(t.TempDir(), "semel.yaml")
		programtest.Run(t, "", "init", "--scenario", s[0], "--output", file).Check(t, term.ExitDone, "wrote "+file)
		shown := programtest.Run(t, "", "init", "--scenario", s[0])
		if got := shown; got.Status != term.ExitDone || strings.ReplaceAll(got.Stdout, "semel.yaml", file) != programtest.ReadFile(t, file) || got.Stderr != "" {
			t.Errorf("%s: %+v", s[0], got)
		}
		if got := programtest.RunEnv(t, secrets, "", "lint", file); got.Status != term.ExitDone {
			t.Errorf("%s: %+v", s[0], got)
		}
		programtest.RunEnv(t, secrets, "", "explain", file).Check(t, term.ExitDone)
		for i, line := range strings.Split(shown.Stdout, "\n") {
			if len(line) > 120 || strings.TrimRight(line, " ") != line || i == 0 && !strings.HasPrefix(line, "# ") {
				t.Errorf("%s:%d: %q", s[0], i+1, line)
			}
			if strings.HasPrefix(line, "#   semel ") && strings.Contains(line, "&&") {
				t.Errorf("%s:%d: a warning of the first command keeps the second from running: %q", s[0], i+1, line)
			}
		}
	}
	files, err := os.ReadDir("scenarios")
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
	variables := map[string]string{"DATABASE_URL": programtest.Servers.Database(t), "INPUT": filepath.Join(dir, "in.jsonl")}
	env := func(name string) string { return variables[name] }
	do := func(args ...string) programtest.Outcome {
		return programtest.RunEnv(t, env, "", args...)
	}
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"event_id\":\"1\"}\n")
	file := filepath.Join(dir, "my orders.yaml")
	got := do("init", "quickstart", "-o", file)
	want := fmt.Sprintf("wrote %[1]s, next:\n  semel lint '%[1]s'\n  semel explain '%[1]s'\n  semel run '%[1]s' --check\n  semel run '%[1]s'\n", file)
	if got.Status != term.ExitDone || got.Stderr != want || !strings.Contains(programtest.ReadFile(t, file), "semel run '"+file+"'") {
		t.Errorf("%+v\n%s", got, programtest.ReadFile(t, file))
	}
	for _, args := range [][]string{{"lint", file}, {"explain", file}, {"run", file, "--check"}, {"run", file, "--admin", "off"}} {
		if got := do(args...); got.Status != term.ExitDone {
			t.Errorf("%q: %+v", args, got)
		}
	}
	file = filepath.Join(dir, "orders.yaml")
	got = do("init", "kafka-to-postgres", "-o", file)
	got.Check(t, term.ExitDone, "  semel lint "+file+"\n  semel migrate up --config "+file+" --store-name db\n  semel run "+file+" --check\n  semel run "+file+"\n")
	do("lint", file).Check(t, term.ExitDone, "0 with a warning, 0 broken")
	do("migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 4")
}

func TestInitOverwritesNothing(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), "mine")
	programtest.Run(t, "", "init", "--scenario", "http-to-api", "-o", file).Check(t, term.ExitUsage, "--output "+file+": the file exists: name another file, or remove it")
	if programtest.ReadFile(t, file) != "mine" {
		t.Error("the file was changed")
	}
	programtest.Run(t, "", "init", "--scenario", "http-to-api", "-o", filepath.Join(file, "x")).Check(t, term.ExitUsage, "this is not a directory")
	list := programtest.Run(t, "", "init")
	lines := strings.Split(strings.TrimSpace(list.Stdout), "\n")
	if list.Status != term.ExitDone || len(lines) != len(configcmd.Scenarios()) || lines[2] != "kafka-to-postgres  a row and its key in one transaction" {
		t.Errorf("%+v", list)
	}
	if list = programtest.Run(t, "", "init", "--json"); !strings.HasPrefix(list.Stdout, `{"scenario":"quickstart","about":"lines of files`) {
		t.Errorf("%+v", list)
	}
	programtest.Run(t, "", "init", "-o", "x.yaml").Check(t, term.ExitUsage, "--scenario NAME is missing: semel init lists the scenarios")
	programtest.Run(t, "", "init", "--scenario", "kafka-to-postgre").Check(t, term.ExitUsage, "--scenario kafka-to-postgre: did you mean kafka-to-postgres?", "  sqs-dlq            the dead-letter queue of that queue, with the same keys\n")
	programtest.Run(t, "", "init", "kafka-to-pg").Check(t, term.ExitUsage, "--scenario kafka-to-pg: did you mean kafka-to-postgres?")
	programtest.Run(t, "", "init", "rabbit-to-webhook").Check(t, term.ExitUsage, "compose it with semel init --from rabbitmq --to webhook\n")
	programtest.Run(t, "", "init", "rabbitmq-to-http").Check(t, term.ExitUsage, "compose it with semel init --from rabbitmq --to webhook\n")
	programtest.Run(t, "", "init", "stripe", "--to", "webhook").Check(t, term.ExitUsage, "exclude each other: leave the scenario out")
	programtest.Run(t, "", "init", "--to", "webhok", "--from", "outbox").Check(t, term.ExitUsage, "--to webhok: did you mean webhook?")
	programtest.Run(t, "", "init", "--store", "redis").Check(t, term.ExitUsage, "--from KIND is missing: name one of file, http, ", "--to KIND is missing: name one of file, stdout, ")
	programtest.Run(t, "", "init", "--from", "outbox", "--to", "kafka", "--store", "redis").Check(t, term.ExitUsage, "--store redis: an outbox is in PostgreSQL")
	if got := programtest.Run(t, "", "init", "http-to-api"); got.Status != term.ExitDone || !strings.HasPrefix(got.Stdout, "# ") {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "init", "http-to-api", "streams").Check(t, term.ExitUsage, `unexpected argument "streams"`)
	programtest.Run(t, "", "init", "http-to-api", "--scenario", "streams").Check(t, term.ExitUsage, "--scenario streams and http-to-api: name one scenario")
}

// TestEveryCompositionIsCleanForLint composes each source with each sink and each store.
func TestEveryCompositionIsCleanForLint(t *testing.T) {
	t.Parallel()
	made := 0
	for _, from := range []string{"file", "http", "kafka", "nats", "outbox", "rabbitmq", "sqs"} {
		for _, to := range []string{"file", "stdout", "webhook", "postgres", "kafka", "nats", "rabbitmq", "sqs"} {
			for _, store := range []string{"", "embedded", "postgres", "redis"} {
				args := []string{"init", "--from", from, "--to", to}
				if store != "" {
					args = append(args, "--store", store)
				}
				got := programtest.Run(t, "", args...)
				if from == "outbox" && store != "" && store != "postgres" {
					got.Check(t, term.ExitUsage, "an outbox is in PostgreSQL")
					continue
				}
				got.Check(t, term.ExitDone)
				made++
				file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), got.Stdout)
				lint := programtest.Run(t, "", "lint", file)
				if between := from == "kafka" && to == "kafka" && store != ""; between && !strings.Contains(lint.Stdout, "leave store out") || !between && lint.Status != term.ExitDone {
					t.Errorf("%q: %s%s\n%s", args, lint.Stdout, lint.Stderr, got.Stdout)
				}
				explained := programtest.Run(t, "", "explain", file)
				if transaction := strings.Contains(explained.Stdout, "commits by        one transaction in Kafka"); explained.Status != term.ExitDone || from == "kafka" && to == "kafka" && store == "" && !transaction {
					t.Errorf("%q: %+v", args, explained)
				}
				for i, line := range strings.Split(got.Stdout, "\n") {
					if len(line) > 120 || strings.TrimRight(line, " ") != line || i == 0 && !strings.HasPrefix(line, "# ") {
						t.Errorf("%q:%d: %q", args, i+1, line)
					}
				}
			}
		}
	}
	if made != 6*8*4+8*2 {
		t.Errorf("%d were composed", made)
	}
}
