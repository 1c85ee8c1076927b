package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// pipelines lists the benchmarks of semel run from a file to a file.
func pipelines(e Env) []Benchmark {
	full, some := e.size(2e6, 20_000), e.size(500_000, 20_000)
	return []Benchmark{
		{
			Name:        "pipeline-dedup",
			Work:        fmt.Sprintf("semel run from a file to a file, keys in an embedded store, on %s %s. Keys, output and position become durable together. Peer: %s with --store and --output, which promises the same", count(full), inputText, semelCommand),
			peerVersion: func() (string, error) { return "semel dedup --store", nil },
			prepare:     e.prepare(full, e.buildSemel),
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.semelFiles(ctx, "pipeline-dedup", full, fmt.Sprintf("embedded: { path: %q }", e.work("pipeline", "keys")), "forever")
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				return e.semel(ctx, "pipeline-dedup", full, true)
			},
			figures: []figure{{name: "pipeline-dedup", unit: "s", lessIsBetter: true, target: 0.6}},
		},
		{
			Name:        "pipeline-bento",
			Work:        fmt.Sprintf("semel run from a file to a file, keys in memory, on %s %s. Peer: Bento's dedupe with memory cache, one thread, which keeps the order. It syncs nothing; semel run syncs each batch before its position moves on", count(some), inputText),
			peerVersion: builtInto(e.work("bin", "bento"), "github.com/warpstreamlabs/bento"),
			prepare:     e.prepare(some, e.buildSemel, e.build("bento")),
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.semelFiles(ctx, "pipeline-bento", some, "memory: {}", "24h")
			},
			peer:    func(ctx context.Context) (map[string]float64, error) { return e.bento(ctx, "pipeline-bento", some) },
			figures: []figure{{name: "pipeline-bento", unit: "s", lessIsBetter: true, target: 5}},
		},
	}
}

// semelFiles runs a pipeline with this store and window on an input of this many lines.
func (e *Env) semelFiles(ctx context.Context, name string, n int, store, window string) (map[string]float64, error) {
	dir, err := e.fresh("pipeline")
	if err != nil {
		return nil, err
	}
	out := e.work("out-ours.jsonl")
	config := fmt.Sprintf(`stores: { keys: { %s } }
pipelines:
  lines:
    source: { file: { paths: [%q], state: %q } }
    key: { id: .event_id, on_missing: fail }
    window: %s
    store: keys
    sink: { file: { path: %q } }
    parked: { path: %q }
`, store, e.input(n), filepath.Join(dir, "positions"), window, out, filepath.Join(dir, "parked"))
	file := filepath.Join(dir, "semel.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return e.filter(e.semelRun(ctx, file), name, e.input(n), n, out)
}
