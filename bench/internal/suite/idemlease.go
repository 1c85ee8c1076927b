package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// idemlease returns the benchmark against a clone of repenguin22/idemlease, or none. No
// module registry has that module, so that a person clones it and names the directory.
func idemlease(e Env, n int) []Benchmark {
	dir := os.Getenv("SEMEL_BENCH_IDEMLEASE")
	if dir == "" {
		return nil
	}
	return []Benchmark{{
		Name:        "http-middleware-idemlease",
		Work:        fmt.Sprintf("%s POST requests of 1 KiB with new keys to a handler in process, with a memory store, on one core. The peer is idemlease's middleware with its memory store", count(n)),
		peerVersion: commitOf(dir, "github.com/repenguin22/idemlease"), procs: 1,
		prepare: e.buildIdemlease(dir),
		ours: func(context.Context) (map[string]float64, error) {
			values, err := handled(n, true)
			return map[string]float64{"http-middleware-idemlease": values["http-middleware"], "http-middleware-idemlease-bytes": values["http-middleware-bytes"]}, err
		},
		peer:    e.runIdemlease(n),
		figures: []figure{{name: "http-middleware-idemlease", unit: "requests/s", target: 1.5}, {name: "http-middleware-idemlease-bytes", unit: "B/request", target: 1, lessIsBetter: true}},
	}}
}

// buildIdemlease builds the peer with the module in a directory.
func (e *Env) buildIdemlease(dir string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := os.MkdirAll(e.work(), 0o755); err != nil {
			return err
		}
		mod := "module github.com/semel-dev/semel/bench/peers/idemlease\n\ngo 1.26.0\n\nrequire github.com/repenguin22/idemlease v1.1.0\n\nreplace github.com/repenguin22/idemlease => " + strconv.Quote(dir) + "\n"
		if err := os.WriteFile(e.work("idemlease.mod"), []byte(mod), 0o644); err != nil {
			return err
		}
		return e.run(ctx, e.peer("idemlease"), "go", "build", "-mod=mod", "-modfile", e.work("idemlease.mod"), "-o", e.work("bin", "idemlease"), ".")
	}
}

// runIdemlease measures the peer.
func (e *Env) runIdemlease(n int) side {
	return func(ctx context.Context) (map[string]float64, error) {
		cmd := exec.CommandContext(ctx, e.work("bin", "idemlease"), strconv.Itoa(n))
		cmd.Stderr = os.Stderr
		output, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("suite: idemlease: %w", err)
		}
		var rate, size float64
		if _, err := fmt.Fscan(strings.NewReader(string(output)), &rate, &size); err != nil {
			return nil, fmt.Errorf("suite: idemlease printed %q: %w", output, err)
		}
		return map[string]float64{"http-middleware-idemlease": rate, "http-middleware-idemlease-bytes": size}, nil
	}
}
