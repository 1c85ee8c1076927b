package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
)

// variables is a configuration whose values are all in variables.
const variables = `stores:
  db: { postgres: { dsn: "${env:SEMEL_TEST_DSN}" } }
  files: { embedded: { path: "${env:SEMEL_TEST_DIR}" } }
pipelines:
  orders:
    source: { kafka: { brokers: ["${env:SEMEL_TEST_BROKERS}"], topics: ["${env:SEMEL_TEST_TOPIC}"], group: orders, retention: "${env:SEMEL_TEST_RETENTION}" } }
    key: { id: .id }
    window: "${env:SEMEL_TEST_WINDOW}"
    store: db
    sink: { webhook: { url: "${env:SEMEL_TEST_URL}/orders", headers: { authorization: "${file:/none/secret}" } } }
    parked: { store: db }
`

func TestNoEnvDescribesAConfigurationWithoutItsVariables(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), variables)
	run(t, "", "lint", file).check(t, term.ExitUsage, "SEMEL_TEST_DSN is not set", "SEMEL_TEST_WINDOW is not set")
	got := run(t, "", "lint", "--no-env", file)
	if got.status == term.ExitUsage || !strings.Contains(got.stderr, "1 file: ") || strings.Contains(got.stdout, "SEMEL_TEST_URL") {
		t.Errorf("lint --no-env: %+v", got)
	}
	got = run(t, "", "explain", "--no-env", file)
	got.check(t, term.ExitDone)
	if !strings.Contains(got.stdout, "orders: kafka ") {
		t.Errorf("explain --no-env: %s", got.stdout)
	}
	wrong := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.Replace(variables, "    store: db\n", "    store: dbb\n    windwo: 1d\n", 1))
	run(t, "", "lint", "--no-env", wrong).check(t, term.ExitUsage, "did you mean db?", "unknown field pipelines.orders.windwo: did you mean window?")
	run(t, "", "why", "x", "--no-env", "--config", file).check(t, term.ExitUsage, "unknown flag --no-env", "SEMEL_TEST_DSN is not set")

	withDefault := regexp.MustCompile(`\$\{env:([A-Z_]+):-[^}]*\}`)
	for _, s := range configcmd.Scenarios() {
		scenario := s[0]
		made := run(t, "", "init", "--scenario", scenario)
		made.check(t, term.ExitDone)
		bare := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), withDefault.ReplaceAllString(made.stdout, "${env:SEMEL_TEST_$1}"))
		for _, verb := range []string{"lint", "explain"} {
			if got := run(t, "", verb, "--no-env", bare); got.status != term.ExitDone {
				t.Errorf("%s of %s: %+v", verb, scenario, got)
			}
		}
	}
}

func TestEnvFileSetsTheVariablesOfEveryVerb(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ledger := mixedStore(t)
	file := writeFile(t, filepath.Join(dir, "c.yaml"), `stores: { ledger: { embedded: { path: "${env:SEMEL_TEST_DIR}" } } }
pipelines:
  p: { source: { file: { paths: ["${env:SEMEL_TEST_IN}"] } }, key: { id: .id, scope: default }, store: ledger, sink: { stdout: {} }, parked: { path: ./parked } }
`)
	writeFile(t, filepath.Join(dir, "in.jsonl"), `{"id":"new-1"}`+"\n")
	env := writeFile(t, filepath.Join(dir, "prod.env"), "# the ledger\n\nexport SEMEL_TEST_DIR='"+ledger+"'\nSEMEL_TEST_IN = \"./in.jsonl\"\n")
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
		if got := run(t, "", words...); got.status != term.ExitUsage || !strings.Contains(got.stderr, "SEMEL_TEST_DIR is not set") {
			t.Errorf("%s without the file: %+v", args, got)
		}
		got := run(t, "", append(words, "--env-file", env)...)
		if got.status == term.ExitUsage || got.status == term.ExitFailed || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %+v; want %q", args, got, want)
		}
	}
	for text, want := range map[string]string{
		"A=1\ncanary secret\n":    ":2: expected NAME=VALUE\n",
		"A='canary\n":             ":1: A: the quote is not closed at the end of the line\n",
		"SEMEL_TEST_OTHER=canary": "SEMEL_TEST_DIR is not set",
	} {
		bad := writeFile(t, filepath.Join(t.TempDir(), "bad.env"), text)
		got := run(t, "", "lint", file, "--env-file", bad)
		got.check(t, term.ExitUsage, want)
		if strings.Contains(got.stderr, "canary") {
			t.Errorf("a value is shown: %s", got.stderr)
		}
	}
	run(t, "", "lint", file, "--env-file", filepath.Join(dir, "none.env")).check(t, term.ExitUsage, "none.env: there is no such file\n")
}

func TestVersionIsAskedAsInOtherPrograms(t *testing.T) {
	t.Parallel()
	want := run(t, "", "version")
	for _, flag := range []string{"--version", "-v"} {
		got := run(t, "", flag)
		got.check(t, term.ExitDone)
		if got.stdout != want.stdout || !strings.HasPrefix(got.stdout, "semel ") {
			t.Errorf("%s prints %q, want %q", flag, got.stdout, want.stdout)
		}
	}
	if got := run(t, "", "--version", "--json"); got.status != term.ExitDone || !strings.HasPrefix(got.stdout, `{"version":`) {
		t.Errorf("--version --json: %+v", got)
	}
}

// TestLintNamesASecretInPlainText follows the remedy of the warning.
func TestLintNamesASecretInPlainText(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const plain = "stores: { db: { postgres: { dsn: 'postgres://app:canary@db/app' } } }\n"
	file := writeFile(t, filepath.Join(dir, "c.yaml"), plain)
	got := run(t, "", "lint", file)
	got.check(t, term.ExitFound, "1 with a warning")
	if want := file + ":1:34: warning: stores.db.postgres.dsn: a secret as plain text: all who read the file, its backups or its history have it: write ${env:NAME} or ${file:PATH} instead\n"; got.stdout != want {
		t.Errorf("got  %swant %s", got.stdout, want)
	}
	secret := writeFile(t, filepath.Join(dir, "password"), "canary\n")
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, strings.Replace(plain, "canary", "${file:password}", 1))
	run(t, "", "lint", file, "-q").check(t, term.ExitDone)
}
