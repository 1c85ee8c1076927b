package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	// qsvVersion is that of the crate.
	qsvVersion = "16.1.0"
	// beyondMiB is what each program may take.
	beyondMiB = 1024
)

// dedupBeyond compares more lines than the memory has room for.
func (e *Env) dedupBeyond() Benchmark {
	const name = "dedup-beyond-memory"
	n := e.size(200_000_000, 200_000)
	input := e.work(fmt.Sprintf("short-%d.txt", n))
	// run measures a program that may write into a directory of its own beside the output.
	run := func(program func(ctx context.Context, temp, out string) *exec.Cmd) side {
		return func(ctx context.Context) (map[string]float64, error) {
			temp, err := e.fresh("beyond")
			if err != nil {
				return nil, err
			}
			out := e.work("out-beyond.txt")
			cmd := program(ctx, temp, out)
			cmd.Env = append(os.Environ(), "TMPDIR="+temp)
			values, err := e.filter(cmd, name, input, n, out)
			return values, errors.Join(err, os.RemoveAll(temp))
		}
	}
	figures := func(peer string, target float64) []figure {
		return []figure{
			{name: name + "-" + peer, value: name, unit: "s", lessIsBetter: true, target: target},
			{name: name + "-" + peer + "-memory", value: name + "-memory", unit: "MiB", lessIsBetter: true},
		}
	}
	return Benchmark{
		Name:    name,
		Work:    fmt.Sprintf("semel dedup --memory %dMiB without a store on %s lines of 40 bytes, of which 20 %% are duplicates; the key is the line; the output is the first line of each, byte for byte, in input order. Wall time, and peak resident memory. Each program gets the same limit and a directory on the disk. One round, because one takes many minutes. Peer: ", beyondMiB, count(n)),
		rounds:  1,
		prepare: e.prepareFile(input, n, e.buildSemel, e.installPython, e.installQsv),
		ours: run(func(ctx context.Context, _, out string) *exec.Cmd {
			return exec.CommandContext(ctx, e.work("bin", "semel"), "dedup", "--quiet", "--format", "text", "--memory", fmt.Sprintf("%dMiB", beyondMiB), "--output", out, input)
		}),
		rivals: []rival{
			{
				work: "DuckDB with memory_limit: the line with the least row number of each", peerVersion: func() (string, error) { return e.pinned("duckdb") },
				peer: run(func(ctx context.Context, temp, out string) *exec.Cmd {
					return exec.CommandContext(ctx, e.work("venv", "bin", "python"), e.peer("python", "with_duckdb_beyond.py"), input, out, temp, fmt.Sprintf("%dMiB", beyondMiB))
				}),
				figures: figures("duckdb", 1),
			},
			{
				work: "qsv extdedup with --memory-limit, which has its table in a file that it maps", peerVersion: func() (string, error) { return "qsvlite " + qsvVersion, nil },
				peer: run(func(ctx context.Context, temp, out string) *exec.Cmd {
					// Its unit is a million bytes.
					return exec.CommandContext(ctx, e.work("cargo", "bin", "qsvlite"), "extdedup", "--quiet", "--memory-limit", fmt.Sprint(beyondMiB<<20/1_000_000), "--temp-dir", temp, input, out)
				}),
				figures: figures("qsv", 1),
			},
		},
	}
}

// installQsv builds the smallest of the programs of qsv that has extdedup, unless it is there.
func (e *Env) installQsv(ctx context.Context) error {
	done := e.work("cargo", "qsv-"+qsvVersion)
	if _, err := os.Stat(done); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := e.run(ctx, e.Root, "cargo", "install", "qsv@"+qsvVersion, "--locked", "--features", "lite", "--bin", "qsvlite", "--root", e.work("cargo")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(done), 0o755); err != nil {
		return err
	}
	return os.WriteFile(done, nil, 0o644)
}
