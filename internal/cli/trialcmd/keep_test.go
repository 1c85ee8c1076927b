package trialcmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestDryRunRefusesKeyKeepAndLintNamesItsRisks: their answer would be wrong.
func TestDryRunRefusesKeyKeepAndLintNamesItsRisks(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
pipelines:
  p:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g, retention: 1d } }
    key: { id: .id, keep: { last: { tumbling: 1m }, late: drop, idle: forever } }
    window: 2d
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`)
	programtest.Run(t, "", "dry-run", file).Check(t, term.ExitUsage, "pipeline p has key.keep", "another group and output")
	got := programtest.Run(t, "", "lint", file)
	for _, want := range []string{"key.keep.late", "is lost, also if no other one", "key.keep.grace", "key.keep.idle"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("lint lacks %q: %s", want, got.Stdout)
		}
	}
}
