package suite

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestKafkaCopyBenchmarkMeasuresAndVerifies runs the harness with the franz-go copy, which keeps the
// duplicates.
func TestKafkaCopyBenchmarkMeasuresAndVerifies(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short tries no benchmark: go test -C bench ./internal/suite")
	}
	servicestest.Program(t, services.Kafka43)
	e := Env{Root: t.TempDir(), Quick: true}
	binary := e.work("bin", "kafkacopy")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, filepath.Join("..", "..", "peers", "kafkacopy")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	in := records.Input{Seed: 1, Records: 5000}
	for _, c := range []kafkaCopy{
		{eos: true, commit: 100 * time.Millisecond, changelog: true},
		{commit: 50 * time.Millisecond},
	} {
		values, err := e.move(t.Context(), "copy", 1, in, false, e.kafkaCopy(c))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"copy", "copy-cpu", "copy-memory"} {
			if values[name] <= 0 {
				t.Errorf("%+v: %s is %v", c, name, values[name])
			}
		}
	}
	if _, err := e.move(t.Context(), "copy", 1, in, true, e.kafkaCopy(kafkaCopy{commit: 50 * time.Millisecond})); err == nil {
		t.Error("duplicates were not noticed")
	}
	if _, err := e.move(t.Context(), "copy", 1, in, true, func(ctx context.Context, _ []string, _ string) (*exec.Cmd, error) {
		return exec.CommandContext(ctx, "false"), nil
	}); err == nil {
		t.Error("a program that ended immediately was measured")
	}
}
