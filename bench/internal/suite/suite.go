// Package suite has the table of benchmarks, and runs them.
//
// Each side of each round is a process of its own, so that measurements share no heap,
// page tables or garbage collector. The runner starts this program again with -child.
package suite

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/semel-dev/semel/bench/internal/machine"
	"github.com/semel-dev/semel/bench/internal/result"
)

// Rounds is the number of rounds of a benchmark. In each round, the sides run in turn.
const Rounds = 5

const (
	// maxRepeats is how often a peer's side is repeated in a benchmark because its program
	// ended by itself.
	maxRepeats = 2
	// endedStatus is the exit status of a child whose peer's program ended by itself.
	endedStatus = 3
)

// errPeerEnded is wrapped if a peer's program ended by itself, which is no wrong answer.
var errPeerEnded = errors.New("the peer's program ended by itself")

// ExitStatus returns the exit status of a process that ends with an error.
func ExitStatus(err error) int {
	if errors.Is(err, errPeerEnded) {
		return endedStatus
	}
	return 1
}

// Benchmark compares Semel with one or more peers, by one or more figures.
type Benchmark struct {
	// Name selects the benchmark on the command line.
	Name string
	// Work describes the work of both sides.
	Work string
	// peerVersion names the peer and its version. It runs after prepare.
	peerVersion func() (string, error)
	// procs is the number of cores that both sides may use; 0 is all. Other programs
	// get it only as GOMAXPROCS.
	procs int
	// rounds replaces the number of rounds if one takes many minutes.
	rounds int
	// prepare runs once and is not measured. It builds programs and generates inputs.
	prepare func(context.Context) error
	// ours and peer measure once each. If peer is nil, the figures have limits.
	ours, peer side
	figures    []figure
	// rivals replace peerVersion, peer and figures if there are several peers. Ours
	// runs once in a round for all of them.
	rivals []rival
}

// rival is one of several peers, with its figures.
type rival struct {
	// work is added to the benchmark's Work.
	work        string
	peerVersion func() (string, error)
	peer        side
	figures     []figure
}

// against returns the peers of the benchmark: its one peer or its rivals.
func (b *Benchmark) against() []rival {
	if len(b.rivals) > 0 {
		return b.rivals
	}
	return []rival{{peerVersion: b.peerVersion, peer: b.peer, figures: b.figures}}
}

// side measures once and returns the value of each figure by its name.
type side func(context.Context) (map[string]float64, error)

// figure is one of the values that a benchmark measures.
type figure struct {
	// name is the result's name.
	name string
	// value is the name that the sides use, if it is another.
	value        string
	unit         string
	lessIsBetter bool
	// target is the least acceptable ratio; 0 is no target.
	target float64
	// limit replaces the peer's value if there is no peer.
	limit float64
}

// Runner runs benchmarks.
type Runner struct {
	// Env has the places and sizes.
	Env Env
	// Log receives progress messages.
	Log io.Writer
}

// Run runs one benchmark and writes its results.
func (r *Runner) Run(ctx context.Context, b *Benchmark) error {
	described, err := machine.Describe()
	if err != nil {
		return err
	}
	if b.prepare != nil {
		if _, err := r.child(ctx, b, "prepare"); err != nil {
			return err
		}
	}
	rivals := b.against()
	versions := make([]string, len(rivals))
	for i, v := range rivals {
		if versions[i], err = v.peerVersion(); err != nil {
			return err
		}
	}
	rounds := map[string][][2]float64{} // for each figure
	repeats := make([]int, len(rivals))
	want := cmp.Or(r.Env.Rounds, b.rounds, Rounds)
	for n := range want {
		values, took, err := r.round(ctx, b, rivals, repeats)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.Log, "%s: round %d of %d:", b.Name, n+1, want)
		for _, v := range rivals {
			for _, f := range v.figures {
				pair := values[f.name]
				rounds[f.name] = append(rounds[f.name], pair)
				fmt.Fprintf(r.Log, "  %.4g | %.4g %s", pair[0], pair[1], f.unit)
			}
		}
		fmt.Fprintf(r.Log, "  (with set-up and checks %.0f s)\n", took)
	}
	for i, v := range rivals {
		for _, f := range v.figures {
			res := result.Result{
				Name: f.name, Work: b.Work + v.work, Unit: f.unit, PeerVersion: versions[i], PeerEnded: repeats[i], Rounds: rounds[f.name], Target: f.target,
				Command: r.Env.command(b.Name), Date: time.Now().UTC().Format(time.RFC3339), Machine: described,
			}
			if err := r.save(&res, f.lessIsBetter); err != nil {
				return err
			}
		}
	}
	return nil
}

// save writes a result and logs whether it meets its target.
func (r *Runner) save(res *result.Result, lessIsBetter bool) error {
	res.Settle(lessIsBetter)
	if err := res.Save(r.Env.results()); err != nil {
		return err
	}
	verdict := "no target"
	switch {
	case res.Target > 0 && res.Met():
		verdict = fmt.Sprintf("target %.4g met", res.Target)
	case res.Target > 0:
		verdict = fmt.Sprintf("SHORT of target %.4g", res.Target)
	}
	fmt.Fprintf(r.Log, "%s: %.4g, peer %.4g %s, ratio %.3g, %s\n", res.Name, res.Ours, res.Peer, res.Unit, res.Ratio, verdict)
	return nil
}

// round measures each side once. It returns a pair for each figure, and the seconds that
// each side took. It repeats a peer whose program ended by itself, and counts that in repeats.
func (r *Runner) round(ctx context.Context, b *Benchmark, rivals []rival, repeats []int) (values map[string][2]float64, took []float64, err error) {
	child := func(role string) (map[string]float64, error) {
		start := time.Now()
		defer func() { took = append(took, time.Since(start).Seconds()) }()
		return r.child(ctx, b, role)
	}
	ours, err := child("ours")
	if err != nil {
		return nil, nil, err
	}
	values = map[string][2]float64{}
	for i, v := range rivals {
		var peer map[string]float64
		if v.peer != nil {
			peer, err = child(peerRole(i))
			for errors.Is(err, errPeerEnded) && repeats[i] < maxRepeats {
				repeats[i]++
				fmt.Fprintf(r.Log, "%s: the program of %s ended by itself: repetition %d of at most %d\n", b.Name, peerRole(i), repeats[i], maxRepeats)
				peer, err = child(peerRole(i))
			}
			if err != nil { // %v, because this process is no child
				return nil, nil, fmt.Errorf("%v after %d repetitions in this benchmark", err, repeats[i])
			}
		}
		for _, f := range v.figures {
			value := cmp.Or(f.value, f.name)
			values[f.name] = [2]float64{ours[value], f.limit}
			if v.peer != nil {
				values[f.name] = [2]float64{ours[value], peer[value]}
			}
		}
	}
	return values, took, nil
}

// peerRole returns the role of a peer, counted from 0.
func peerRole(i int) string {
	if i == 0 {
		return "peer"
	}
	return "peer-" + strconv.Itoa(i+1)
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
		if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == endedStatus {
			err = errPeerEnded
		}
		return nil, fmt.Errorf("suite: %s of %s: %w", role, b.Name, err)
	}
	var values map[string]float64
	if err := json.Unmarshal(out.Bytes(), &values); err != nil {
		return nil, fmt.Errorf("suite: %s of %s answered %q: %w", role, b.Name, out.Bytes(), err)
	}
	return values, nil
}

// Child runs a role in the process that child started, and writes the values.
func (b *Benchmark) Child(ctx context.Context, role string, w io.Writer) error {
	var values map[string]float64
	var err error
	switch role {
	case "prepare":
		err = b.prepare(ctx)
	case "ours":
		values, err = b.ours(ctx)
	default:
		rivals := b.against()
		i := 0
		for i < len(rivals) && role != peerRole(i) {
			i++
		}
		if i == len(rivals) {
			return fmt.Errorf("suite: there is no role %q", role)
		}
		values, err = rivals[i].peer(ctx)
	}
	if err != nil {
		return fmt.Errorf("suite: %s: %w", b.Name, err)
	}
	return json.NewEncoder(w).Encode(values)
}

// Env has the places and sizes of benchmarks.
type Env struct {
	// Root is the directory of this module.
	Root string
	// Quick uses small sizes, which only show that a benchmark works. Results then go
	// to the work directory.
	Quick bool
	// Rounds replaces the number of rounds, to find out how long one takes. Results
	// then go to the work directory.
	Rounds int
}

func (e *Env) rounds() int { return cmp.Or(e.Rounds, Rounds) }

// size returns full, or quick if Quick is set.
func (e *Env) size(full, quick int) int {
	if e.Quick {
		return quick
	}
	return full
}

// work returns a path in the work directory, which git ignores.
func (e *Env) work(name ...string) string {
	return filepath.Join(append([]string{e.Root, "work"}, name...)...)
}

// fresh returns an empty directory of this name in the work directory.
func (e *Env) fresh(name string) (string, error) {
	dir := e.work(name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func (e *Env) results() string {
	if e.Quick || e.rounds() != Rounds {
		return e.work("quick-results")
	}
	return filepath.Join(e.Root, "results")
}

func (e *Env) command(name string) string {
	if e.rounds() != Rounds {
		name = fmt.Sprintf("-rounds %d %s", e.rounds(), name)
	}
	return e.commandOf("bench", name)
}

// commandOf returns the command of a program that repeats a measurement.
func (e *Env) commandOf(program, name string) string {
	if e.Quick {
		name = "-quick " + name
	}
	return "go run -C bench ./cmd/" + program + " " + name
}
