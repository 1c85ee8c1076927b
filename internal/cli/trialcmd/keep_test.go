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

// The times of the records are all the same: only those in the bodies count.
func TestCasesKeepTheLastMessageByATimeInTheBody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "k.yaml"), `pipelines:
  k:
    source: { kafka: { brokers: ["127.0.0.1:9092"], topics: [a], group: g, retention: 7d } }
    key: { id: .id, keep: { last: { tumbling: 1m }, time: .ts, time_unit: s, grace: 5s } }
    sink: { kafka: { brokers: ["127.0.0.1:9092"], topic: b } }
`)
	cases := programtest.WriteFile(t, filepath.Join(dir, "k.jsonl"), `{"time":"2026-11-28T10:03:00Z","body":{"id":1,"ts":1795860000,"v":"a"},"decision":"held"}
{"time":"2026-11-28T10:03:00Z","body":{"id":1,"ts":"1795860030.5","v":"b"},"decision":"held"}
{"time":"2026-11-28T10:03:00Z","body":{"id":1,"ts":1795860010,"v":"c"},"decision":"superseded"}
{"time":"2026-11-28T10:03:00Z","body":{"id":2,"ts":1795860200,"v":"d"},"results":[{"id":1,"ts":"1795860030.5","v":"b"}]}
{"time":"2026-11-28T10:03:00Z","body":{"id":2,"ts":"2026-11-28T10:00:00Z"},"decision":"failed"}
`)
	programtest.Run(t, "", "test", file, cases).Check(t, term.ExitDone, "")
}
