package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
)

func TestTheStartLogsTheWarningsOfLint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "semel.yaml")
	text := fmt.Sprintf(`
stores:
  keys: { embedded: { path: %[1]s/keys } }
pipelines:
  short:   { source: { file: { paths: [%[1]s/in], follow: true } }, key: { id: .id }, window: 30s, store: keys, sink: { file: { path: %[1]s/out } } }
  another: { source: { file: { paths: [%[1]s/in], follow: true } }, key: { id: .id }, window: 20s, store: keys, sink: { file: { path: %[1]s/out2 } } }
`, dir)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it ends as soon as it has started
	lines := &shown{}
	short, ok := file.Pipeline("short")
	if !ok {
		t.Fatal("no pipeline short")
	}
	if err := Run(ctx, file, &RunOptions{Pipelines: []*config.Pipeline{short}, Log: slog.New(slog.NewJSONHandler(lines, nil)), Admin: "off"}); err != nil {
		t.Fatal(err)
	}
	const want = `"level":"WARN","msg":"lint","field":"pipelines.short.window","found":"30s","cost":"almost every redelivery comes after it","remedy":"`
	log := lines.String()
	if strings.Count(log, want) != 1 || strings.Contains(log, "pipelines.another") {
		t.Errorf("%s", log)
	}
}
