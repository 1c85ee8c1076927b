package suite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/semel-dev/semel/bench/internal/lines"
)

// inputSeed is the seed of the generated input.
const inputSeed = 20260101

const (
	semelCommand = "semel dedup --key .event_id"
	csvText      = "CSV records of about 120 bytes, a quarter of them with quotes, 20 % duplicates of event_id; the output is the header and the first record of each id, byte for byte, in input order"
	inputText    = "JSON lines of about 200 bytes, 20 % duplicates of event_id; the output is the first line of each id, byte for byte, in input order"
)

// dedup lists the benchmarks of semel dedup.
func dedup(e Env) []Benchmark {
	full, fewer, some, rows := e.size(5e6, 20_000), e.size(1e6, 20_000), e.size(500_000, 20_000), e.size(1.5e6, 20_000)
	var list []Benchmark
	for _, p := range []struct {
		name   string
		work   string
		memory float64
	}{
		{"chdb", "chDB: LIMIT 1 BY, on one thread, which keeps the order", 4},
		{"polars", "Polars: unique, keep first, maintain order", 5},
		{"orjson", "Python with orjson and a set", 0},
		{"duckdb", "DuckDB: the line with the least row number of each id", 0},
	} {
		name := "dedup-" + p.name
		list = append(list, Benchmark{
			Name:        name,
			Work:        fmt.Sprintf("%s without a store on %s %s. Wall time, and peak resident memory. Peer: %s", semelCommand, count(full), inputText, p.work),
			peerVersion: func() (string, error) { return e.pinned(p.name) },
			prepare:     e.prepare(full, e.buildSemel, e.installPython),
			ours:        func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, name, full, false) },
			peer:        e.python(p.name, name, e.input(full), full),
			figures: []figure{
				{name: name, unit: "s", lessIsBetter: true, target: 2},
				{name: name + "-memory", unit: "MiB", lessIsBetter: true, target: p.memory},
			},
		})
	}
	return append(list,
		Benchmark{
			Name:        "dedup-bare",
			Work:        fmt.Sprintf("%s without a store on %s %s. Peer: a bare Go loop, which neither checks the JSON nor parses it (bench/peers/bare)", semelCommand, count(full), inputText),
			peerVersion: standard("bench/peers/bare"),
			prepare:     e.prepare(full, e.buildSemel, e.build("bare")),
			ours:        func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, "dedup-bare", full, false) },
			peer: func(ctx context.Context) (map[string]float64, error) {
				out := e.work("out-peer.jsonl")
				return e.filter(exec.CommandContext(ctx, e.work("bin", "bare"), e.input(full), out), "dedup-bare", e.input(full), full, out)
			},
			figures: []figure{{name: "dedup-bare", unit: "s", lessIsBetter: true, target: 1.2}},
		},
		Benchmark{
			Name:        "dedup-threads",
			Work:        fmt.Sprintf("%s --threads 2 without a store on %s %s. Peer: the same with --threads 1", semelCommand, count(full), inputText),
			peerVersion: func() (string, error) { return "semel with --threads 1", nil },
			prepare:     e.prepare(full, e.buildSemel),
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.semelOn(ctx, "dedup-threads", e.input(full), full, "--threads", "2")
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				return e.semelOn(ctx, "dedup-threads", e.input(full), full, "--threads", "1")
			},
			figures: []figure{{name: "dedup-threads", unit: "s", lessIsBetter: true, target: 1.6}},
		},
		Benchmark{
			Name:    "dedup-csv",
			Work:    fmt.Sprintf("%s without a store on %s %s. Peer: ", semelCommand, count(rows), csvText),
			prepare: e.prepareFile(e.records(rows), rows, e.buildSemel, e.installPython),
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.semelOn(ctx, "dedup-csv", e.records(rows), rows)
			},
			rivals: []rival{
				{
					work: "Polars: unique, keep first, maintain order", peerVersion: func() (string, error) { return e.pinned("polars") },
					peer:    e.python("polars_csv", "dedup-csv", e.records(rows), rows),
					figures: []figure{{name: "dedup-csv-polars", value: "dedup-csv", unit: "s", lessIsBetter: true, target: 2}},
				},
				{
					work: "DuckDB: the record with the least row number of each id", peerVersion: func() (string, error) { return e.pinned("duckdb") },
					peer:    e.python("duckdb_csv", "dedup-csv", e.records(rows), rows),
					figures: []figure{{name: "dedup-csv-duckdb", value: "dedup-csv", unit: "s", lessIsBetter: true, target: 2}},
				},
			},
		},
		Benchmark{
			Name:        "dedup-bento",
			Work:        fmt.Sprintf("%s without a store on %s %s. Peer: Bento's dedupe with memory cache, one thread, which keeps the order", semelCommand, count(some), inputText),
			peerVersion: builtInto(e.work("bin", "bento"), "github.com/warpstreamlabs/bento"),
			prepare:     e.prepare(some, e.buildSemel, e.build("bento")),
			ours:        func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, "dedup-bento", some, false) },
			peer:        func(ctx context.Context) (map[string]float64, error) { return e.bento(ctx, "dedup-bento", some) },
			figures:     []figure{{name: "dedup-bento", unit: "s", lessIsBetter: true, target: 50}},
		},
		Benchmark{
			Name:    "dedup-store",
			Work:    fmt.Sprintf("%s with --store and --output, checkpointed, on %s %s. Peer: ", semelCommand, count(full), inputText),
			prepare: e.prepare(full, e.buildSemel, e.installPython),
			ours:    func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, "dedup-store", full, true) },
			rivals: []rival{
				{
					work: "the same without --store", peerVersion: func() (string, error) { return "semel without --store", nil },
					peer:    func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, "dedup-store", full, false) },
					figures: []figure{{name: "dedup-store", unit: "s", lessIsBetter: true, target: 0.67}},
				},
				{
					work: "Polars, which remembers nothing: unique, keep first, maintain order", peerVersion: func() (string, error) { return e.pinned("polars") },
					peer:    e.python("polars", "dedup-store", e.input(full), full),
					figures: []figure{{name: "dedup-store-polars", value: "dedup-store", unit: "s", lessIsBetter: true, target: 1.5}},
				},
			},
		},
		e.dedupAgain(full),
		e.dedupBeyond(),
		e.dedupSynced("pebble", "github.com/cockroachdb/pebble/v2", fewer),
		e.dedupSynced("sqlite", "modernc.org/sqlite", fewer),
	)
}

// dedupSynced compares semel dedup with a program that stores ids in a storage engine.
func (e *Env) dedupSynced(engine, module string, n int) Benchmark {
	name := "dedup-store-" + engine
	return Benchmark{
		Name:        name,
		Work:        fmt.Sprintf("%s with --store and --output, checkpointed, on %s %s. Peer: a Go program that syncs ids in batches of 1024 and leaves the output unsynced (bench/peers/synced)", semelCommand, count(n), inputText),
		peerVersion: builtInto(e.work("bin", "synced"), module),
		prepare:     e.prepare(n, e.buildSemel, e.build("synced")),
		ours:        func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, name, n, true) },
		peer: func(ctx context.Context) (map[string]float64, error) {
			dir, err := e.fresh(engine)
			if err != nil {
				return nil, err
			}
			out := e.work("out-peer.jsonl")
			return e.filter(exec.CommandContext(ctx, e.work("bin", "synced"), engine, dir, e.input(n), out), name, e.input(n), n, out)
		},
		figures: []figure{{name: name, unit: "s", lessIsBetter: true, target: 5}},
	}
}

// dedupAgain compares the second day: most of its lines have an id of the first one.
func (e *Env) dedupAgain(n int) Benchmark {
	const name = "dedup-again"
	tools := []string{"semel", "duckdb", "polars"}
	// remember builds what each program knows after the first day.
	remember := func(ctx context.Context) error {
		first, err := lines.File(e.input(n), inputSeed, n)
		if err != nil {
			return err
		}
		if _, err := lines.NextFile(e.nextInput(n), first, n); err != nil {
			return err
		}
		for _, tool := range tools {
			dir, err := e.fresh("yesterday-" + tool)
			if err != nil {
				return err
			}
			out := e.work("out-yesterday.jsonl")
			if err := os.RemoveAll(out); err != nil {
				return err
			}
			if err := e.again(ctx, tool, dir, e.input(n), out, true).Run(); err != nil {
				return fmt.Errorf("%s on the first day: %w", tool, err)
			}
			if err := os.RemoveAll(out); err != nil {
				return err
			}
		}
		return nil
	}
	side := func(tool string) side {
		return func(ctx context.Context) (map[string]float64, error) {
			dir, err := e.fresh("today-" + tool)
			if err != nil {
				return nil, err
			}
			if err := os.CopyFS(dir, os.DirFS(e.work("yesterday-"+tool))); err != nil {
				return nil, err
			}
			first, err := lines.File(e.input(n), inputSeed, n)
			if err != nil {
				return nil, err
			}
			want, err := lines.NextFile(e.nextInput(n), first, n)
			if err != nil {
				return nil, err
			}
			out := e.work("out-" + tool + ".jsonl")
			return e.measure(e.again(ctx, tool, dir, e.nextInput(n), out, false), name, want, out)
		}
	}
	figures := func(peer string, time, memory float64) []figure {
		return []figure{
			{name: name + "-" + peer, value: name, unit: "s", lessIsBetter: true, target: time},
			{name: name + "-" + peer + "-memory", value: name + "-memory", unit: "MiB", lessIsBetter: true, target: memory},
		}
	}
	return Benchmark{
		Name:    name,
		Work:    fmt.Sprintf("%s with --store and --output on %s JSON lines of about 200 bytes, of which 80 %% have an id of yesterday's %s lines, half of them in yesterday's order and half at random; the output is the lines with new ids, byte for byte, in input order. Wall time with the start, and peak resident memory. Peer: ", semelCommand, count(n), count(n)),
		prepare: e.prepare(n, e.buildSemel, e.installPython, remember),
		ours:    side("semel"),
		rivals: []rival{
			{
				work: "semel with an empty store on yesterday's lines, of which 80 % are new", peerVersion: func() (string, error) { return "semel on new lines", nil },
				peer:    func(ctx context.Context) (map[string]float64, error) { return e.semel(ctx, name, n, true) },
				figures: figures("new", 0.8, 0.9),
			},
			{
				work: "DuckDB: an anti-join with the ids in its database", peerVersion: func() (string, error) { return e.pinned("duckdb") },
				peer: side("duckdb"), figures: figures("duckdb", 2, 5),
			},
			{
				work: "Polars: an anti-join with the ids in Parquet files", peerVersion: func() (string, error) { return e.pinned("polars") },
				peer: side("polars"), figures: figures("polars", 1, 3),
			},
		},
	}
}

// again returns the command with which a program reads an input of dedupAgain. It writes no
// output on the first day if it can do without.
func (e *Env) again(ctx context.Context, tool, state, input, out string, first bool) *exec.Cmd {
	switch {
	case tool == "semel":
		return exec.CommandContext(ctx, e.work("bin", "semel"), "dedup", "--quiet", "--key", ".event_id", "--store", filepath.Join(state, "seen"), "--output", out, input)
	case tool == "duckdb":
		state = filepath.Join(state, "seen.db")
	}
	args := []string{e.peer("python", "with_"+tool+"_again.py"), state, input}
	if !first {
		args = append(args, out)
	}
	return exec.CommandContext(ctx, e.work("venv", "bin", "python"), args...)
}

// bento runs Bento on an input of this many lines.
func (e *Env) bento(ctx context.Context, name string, n int) (map[string]float64, error) {
	out := e.work("out-peer.jsonl")
	cmd := exec.CommandContext(ctx, e.work("bin", "bento"), "-c", e.peer("bento", "dedupe.yaml"))
	cmd.Env = append(os.Environ(), "IN="+e.input(n), "OUT="+out)
	return e.filter(cmd, name, e.input(n), n, out)
}

// python runs a Python peer on an input of this many lines.
func (e *Env) python(script, name, input string, n int) side {
	return func(ctx context.Context) (map[string]float64, error) {
		out := e.work("out-peer" + filepath.Ext(input))
		cmd := exec.CommandContext(ctx, e.work("venv", "bin", "python"), e.peer("python", "with_"+script+".py"), input, out)
		return e.filter(cmd, name, input, n, out)
	}
}

// semel runs Semel on an input of this many JSON lines.
func (e *Env) semel(ctx context.Context, name string, n int, store bool) (map[string]float64, error) {
	if !store {
		return e.semelOn(ctx, name, e.input(n), n)
	}
	dir, err := e.fresh("seen")
	if err != nil {
		return nil, err
	}
	return e.semelOn(ctx, name, e.input(n), n, "--store", dir)
}

// semelOn runs Semel on an input of this many lines.
func (e *Env) semelOn(ctx context.Context, name, input string, n int, flags ...string) (map[string]float64, error) {
	out := e.work("out-ours" + filepath.Ext(input))
	args := append([]string{"dedup", "--quiet", "--key", ".event_id", "--output", out}, flags...)
	return e.filter(exec.CommandContext(ctx, e.work("bin", "semel"), append(args, input)...), name, input, n, out)
}

// filter measures a command that writes out from an input of this many lines.
func (e *Env) filter(cmd *exec.Cmd, name, input string, n int, out string) (map[string]float64, error) {
	want, err := lines.File(input, inputSeed, n)
	if err != nil {
		return nil, err
	}
	return e.measure(cmd, name, want, out)
}

// measure runs a command that writes out. It measures wall time and peak memory, and
// checks the output.
func (e *Env) measure(cmd *exec.Cmd, name string, want lines.Summary, out string) (map[string]float64, error) {
	if err := os.RemoveAll(out); err != nil {
		return nil, err
	}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	unix.Sync() // writes of the previous run must not slow this one
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, complaints.String())
	}
	if err := check(out, want); err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss // KiB
	return map[string]float64{name: took.Seconds(), name + "-memory": float64(peak) / 1024}, os.Remove(out)
}

// check compares an output with the right answer.
func check(out string, want lines.Summary) error {
	f, err := os.Open(out)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != want.FreshSHA256 {
		return errors.New("the output is not the first line of each id in input order")
	}
	return nil
}

func (e *Env) input(n int) string { return e.work(fmt.Sprintf("events-%d.jsonl", n)) }

// nextInput is the name of the input of the day after.
func (e *Env) nextInput(n int) string { return e.work(fmt.Sprintf("events-%d-next.jsonl", n)) }

// records is the name of an input in CSV.
func (e *Env) records(n int) string { return e.work(fmt.Sprintf("events-%d.csv", n)) }

func (e *Env) peer(name ...string) string {
	return filepath.Join(append([]string{e.Root, "peers"}, name...)...)
}
