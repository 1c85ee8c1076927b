package configcmd_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
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
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), variables)
	programtest.Run(t, "", "lint", file).Check(t, term.ExitUsage, "SEMEL_TEST_DSN is not set", "SEMEL_TEST_WINDOW is not set")
	got := programtest.Run(t, "", "lint", "--no-env", file)
	if got.Status == term.ExitUsage || !strings.Contains(got.Stderr, "1 file: ") || strings.Contains(got.Stdout, "SEMEL_TEST_URL") {
		t.Errorf("lint --no-env: %+v", got)
	}
	got = programtest.Run(t, "", "explain", "--no-env", file)
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "orders: kafka ") {
		t.Errorf("explain --no-env: %s", got.Stdout)
	}
	wrong := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.Replace(variables, "    store: db\n", "    store: dbb\n    windwo: 1d\n", 1))
	programtest.Run(t, "", "lint", "--no-env", wrong).Check(t, term.ExitUsage, "did you mean db?", "unknown field pipelines.orders.windwo: did you mean window?")
	programtest.Run(t, "", "why", "x", "--no-env", "--config", file).Check(t, term.ExitUsage, "unknown flag --no-env", "SEMEL_TEST_DSN is not set")

	withDefault := regexp.MustCompile(`\$\{env:([A-Z_]+):-[^}]*\}`)
	for _, s := range configcmd.Scenarios() {
		scenario := s[0]
		made := programtest.Run(t, "", "init", "--scenario", scenario)
		made.Check(t, term.ExitDone)
		bare := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), withDefault.ReplaceAllString(made.Stdout, "${env:SEMEL_TEST_$1}"))
		for _, verb := range []string{"lint", "explain"} {
			if got := programtest.Run(t, "", verb, "--no-env", bare); got.Status != term.ExitDone {
				t.Errorf("%s of %s: %+v", verb, scenario, got)
			}
		}
	}
}
