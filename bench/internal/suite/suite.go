// Package suite is the table of the benchmarks and what runs them.
//
// Every side of every round is a process of its own, so that neither heap, page
// tables nor garbage collector of one measurement meet another: the runner
// starts this program again with -child.
package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/semel-dev/semel/bench/internal/result"
)

// Rounds is how often both sides of a benchmark run, in turn.
const Rounds = 5

// Benchmark compares two sides in one or more figures.
type Benchmark struct {
	// Name is what selects the benchmark on the command line.
	Name string
	// Work says what both sides do.
	Work string
	// peerVersion names the peer and its version; it may need what prepare
	// made.
	peerVersion func() (string, error)
	// procs is the number of cores that both sides may use; 0 is all. Programs
	// of others that the sides start see it as GOMAXPROCS at most.
	procs int
	// prepare makes what is not measured: builds, inputs. It runs once.
	prepare func(context.Context) error
	// ours and peer each measure once. A nil peer stands for the figures'
	// limits.
	ours, peer side
	figures    []figure
}

// side measures once and returns a value for the name of each figure.
type side func(context.Context) (map[string]float64, error)

// figure is one of the values that a benchmark measures.
type figure struct {
	// name is the result's name.
	name         string
	unit         string
	lessIsBetter bool
	// target is the least ratio; 0 asks for none.
	target float64
	// limit takes the place of the peer's value where there is no peer.
	limit float64
}

// Runner runs benchmarks.
type Runner struct {
	// Env is where and how large.
	Env Env
	// Log takes progress.
	Log io.Writer
}

// Run runs one benchmark and writes its results.
func (r *Runner) Run(ctx context.Context, b *Benchmark) error {
	machine, err := machine()
	if err != nil {
		return err
	}
	if b.prepare != nil {
		if _, err := r.child(ctx, b, "prepare"); err != nil {
			return err
		}
	}
	peerVersion, err := b.peerVersion()
	if err != nil {
		return err
	}
	rounds := make([][][2]float64, len(b.figures))
	for n := range Rounds {
		values, err := r.round(ctx, b)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.Log, "%s: round %d of %d:", b.Name, n+1, Rounds)
		for i, f := range b.figures {
			rounds[i] = append(rounds[i], values[i])
			fmt.Fprintf(r.Log, "  %.4g | %.4g %s", values[i][0], values[i][1], f.unit)
		}
		fmt.Fprintln(r.Log)
	}
	for i, f := range b.figures {
		res := result.Result{
			Name: f.name, Work: b.Work, Unit: f.unit, PeerVersion: peerVersion, Rounds: rounds[i], Target: f.target,
			Command: r.Env.command(b.Name), Date: time.Now().UTC().Format(time.RFC3339), Machine: machine,
		}
		res.Settle(f.lessIsBetter)
		if err := res.Save(r.Env.results()); err != nil {
			return err
		}
		verdict := "no target"
		switch {
		case f.target > 0 && res.Met():
			verdict = fmt.Sprintf("target %.4g met", f.target)
		case f.target > 0:
			verdict = fmt.Sprintf("SHORT of target %.4g", f.target)
		}
		fmt.Fprintf(r.Log, "%s: %.4g, peer %.4g %s, ratio %.3g, %s\n", f.name, res.Ours, res.Peer, f.unit, res.Ratio, verdict)
	}
	return nil
}

// round measures each side once and returns a pair for each figure.
func (r *Runner) round(ctx context.Context, b *Benchmark) ([][2]float64, error) {
	ours, err := r.child(ctx, b, "ours")
	if err != nil {
		return nil, err
	}
	peer := map[string]float64{}
	if b.peer != nil {
		if peer, err = r.child(ctx, b, "peer"); err != nil {
			return nil, err
		}
	} else {
		for _, f := range b.figures {
			peer[f.name] = f.limit
		}
	}
	values := make([][2]float64, len(b.figures))
	for i, f := range b.figures {
		values[i] = [2]float64{ours[f.name], peer[f.name]}
	}
	return values, nil
}

// child runs one role of a benchmark in a new process.
func (r *Runner) child(ctx context.Context, b *Benchmark, role string) (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("suite: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "-child", role, "-quick="+strconv.FormatBool(r.Env.Quick), b.Name)
	cmd.Dir = r.Env.Root
	cmd.Env = os.Environ()
	if b.procs > 0 {
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+strconv.Itoa(b.procs))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, r.Log
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("suite: %s of %s: %w", role, b.Name, err)
	}
	var values map[string]float64
	if err := json.Unmarshal(out.Bytes(), &values); err != nil {
		return nil, fmt.Errorf("suite: %s of %s answered %q: %w", role, b.Name, out.Bytes(), err)
	}
	return values, nil
}

// Child does the work of a process that child started, and writes its answer.
func (b *Benchmark) Child(ctx context.Context, role string, w io.Writer) error {
	var values map[string]float64
	var err error
	switch role {
	case "prepare":
		err = b.prepare(ctx)
	case "ours":
		values, err = b.ours(ctx)
	case "peer":
		values, err = b.peer(ctx)
	default:
		return fmt.Errorf("suite: there is no role %q", role)
	}
	if err != nil {
		return fmt.Errorf("suite: %s: %w", b.Name, err)
	}
	return json.NewEncoder(w).Encode(values)
}

// Env is where and how large benchmarks run.
type Env struct {
	// Root is the folder of this module.
	Root string
	// Quick asks for sizes that prove that a benchmark works and measure
	// nothing; results then go to the work folder.
	Quick bool
}

// size returns full, or quick in a quick run.
func (e *Env) size(full, quick int) int {
	if e.Quick {
		return quick
	}
	return full
}

// work returns a path in the folder of working files, which git ignores.
func (e *Env) work(name ...string) string {
	return filepath.Join(append([]string{e.Root, "work"}, name...)...)
}

// fresh returns an empty folder of that name among the working files.
func (e *Env) fresh(name string) (string, error) {
	dir := e.work(name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func (e *Env) results() string {
	if e.Quick {
		return e.work("quick-results")
	}
	return filepath.Join(e.Root, "results")
}

func (e *Env) command(name string) string {
	if e.Quick {
		name = "-quick " + name
	}
	return "go run -C bench ./cmd/bench " + name
}
