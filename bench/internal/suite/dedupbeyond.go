package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

const (
	// beyondMiB is what semel may take.
	beyondMiB = 1024
	// beyondDuckMiB is what DuckDB may take. With half of it, it runs out of memory.
	beyondDuckMiB = 4096
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
	return Benchmark{
		Name:    name,
		Work:    fmt.Sprintf("semel dedup --memory %dMiB without a store on %s lines of 40 bytes, of which 20 %% are duplicates; the key is the line; the output is the first line of each, byte for byte, in input order. Wall time, and peak resident memory. Each program has a directory on the disk. One round, because one takes many minutes. Peer: ", beyondMiB, count(n)),
		rounds:  1,
		prepare: e.prepareFile(input, n, e.buildSemel, e.installPython),
		ours: run(func(ctx context.Context, _, out string) *exec.Cmd {
			return exec.CommandContext(ctx, e.work("bin", "semel"), "dedup", "--quiet", "--format", "text", "--memory", fmt.Sprintf("%dMiB", beyondMiB), "--output", out, input)
		}),
		rivals: []rival{
			{
				work: fmt.Sprintf("DuckDB with a memory_limit of %d MiB, because it runs out of memory with half of it: the line with the least row number of each", beyondDuckMiB), peerVersion: func() (string, error) { return e.pinned("duckdb") },
				peer: run(func(ctx context.Context, temp, out string) *exec.Cmd {
					return exec.CommandContext(ctx, e.work("venv", "bin", "python"), e.peer("python", "with_duckdb_beyond.py"), input, out, temp, fmt.Sprintf("%dMiB", beyondDuckMiB))
				}),
				figures: []figure{
					{name: name + "-duckdb", value: name, unit: "s", lessIsBetter: true, target: 1},
					{name: name + "-duckdb-memory", value: name + "-memory", unit: "MiB", lessIsBetter: true},
				},
			},
		},
	}
}
