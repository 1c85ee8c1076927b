package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/bench/internal/lines"
	"github.com/semel-dev/semel/bench/internal/result"
)

// failingRoot names the directory of a child of TestMeasurementIsRepeatedWhenThePeerProgramEnds.
const failingRoot = "SEMEL_BENCH_TEST_ROOT"

// TestMain also is the child that a runner starts.
func TestMain(m *testing.M) {
	if root := os.Getenv(failingRoot); root != "" && len(os.Args) > 2 && os.Args[1] == "-child" {
		e := Env{Root: root}
		b := e.failing(os.Args[len(os.Args)-1])
		if err := b.Child(context.Background(), os.Args[2], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(ExitStatus(err))
		}
		return
	}
	os.Exit(m.Run())
}

// failing is a benchmark whose name says how often a side fails, and how. Each failure of
// a side removes a file.
func (e *Env) failing(name string) Benchmark {
	side := func(role string) side {
		return func(ctx context.Context) (map[string]float64, error) {
			left, err := filepath.Glob(e.work(role + "-*"))
			if err != nil || len(left) == 0 {
				return map[string]float64{"rate": 2}, err
			}
			if err := os.Remove(left[0]); err != nil {
				return nil, err
			}
			if strings.HasPrefix(name, "wrong") {
				return nil, errors.New("there are 2 results, want 3")
			}
			dir, err := e.fresh("kafka")
			if err != nil {
				return nil, err
			}
			r, err := startProgram(ctx, &kafkaCluster{}, func(ctx context.Context, _ []string, _ string) (*exec.Cmd, error) {
				return exec.CommandContext(ctx, e.work(role, map[string]string{"ours": "semel", "peer": streamsName}[role])), nil
			}, dir)
			if err != nil {
				return nil, err
			}
			return nil, r.until(ctx, "the end of its input", func(context.Context) (bool, error) { return false, nil })
		}
	}
	return Benchmark{
		Name: name, Work: "nothing", ours: side("ours"), peer: side("peer"),
		peerVersion: func() (string, error) { return "1", nil }, figures: []figure{{name: "rate", unit: "records/s"}},
	}
}

func TestMeasurementIsRepeatedWhenThePeerProgramEnds(t *testing.T) {
	for name, c := range map[string]struct {
		role     string
		failures int
		want     string // of the error
	}{
		"twice":  {"peer", 2, ""},
		"thrice": {"peer", 3, "ended by itself"},
		"wrong":  {"peer", 1, "exit status 1"},
		"ours":   {"ours", 1, "ours of ours"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Env{Root: t.TempDir(), Quick: true, Rounds: 2}
			t.Setenv(failingRoot, e.Root)
			for i := range c.failures {
				write(t, e.work(fmt.Sprintf("%s-%d", c.role, i)), "")
			}
			for _, program := range []string{"semel", streamsName} {
				write(t, e.work(c.role, program), "#!/bin/sh\necho Store is currently closed\nexit 1\n")
			}
			var log bytes.Buffer
			b := e.failing(name)
			err := (&Runner{Env: e, Log: &log}).Run(t.Context(), &b)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || ExitStatus(err) != 1) {
				t.Fatalf("%v, want %q: %s", err, c.want, log.String())
			}
			kept, err := filepath.Glob(e.work("kafka-ended-*.log"))
			if err != nil {
				t.Fatal(err)
			}
			if name != "wrong" && len(kept) != c.failures {
				t.Errorf("kept %v, want %d logs", kept, c.failures)
			}
			for _, file := range kept {
				if text, err := os.ReadFile(file); err != nil || string(text) != "Store is currently closed\n" {
					t.Errorf("%s has %q: %v", file, text, err)
				}
			}
			if c.want != "" {
				return
			}
			if !strings.Contains(log.String(), "twice: the program of peer ended by itself: repetition 2 of at most 2") {
				t.Errorf("the log does not tell the repetition: %s", log.String())
			}
			results, err := result.LoadAll(e.results())
			if err != nil || len(results) != 1 || results[0].PeerEnded != 2 || len(results[0].Rounds) != 2 {
				t.Errorf("results %+v: %v", results, err)
			}
		})
	}
}

// write writes a program or another file.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

func TestTableNamesAreUniqueAndComplete(t *testing.T) {
	t.Parallel()
	names, figures := map[string]bool{}, map[string]bool{}
	e := Env{Root: t.TempDir()}
	for _, b := range Table(e) {
		if b.Name == "all" || b.Name == "list" || names[b.Name] {
			t.Errorf("%s is taken", b.Name)
		}
		names[b.Name] = true
		if b.Work == "" || b.ours == nil {
			t.Errorf("%s lacks something", b.Name)
		}
		for i, v := range b.against() {
			if v.peerVersion == nil || len(v.figures) == 0 {
				t.Errorf("%s: peer %d lacks something", b.Name, i)
			}
			for _, f := range v.figures {
				if figures[f.name] || f.unit == "" || (v.peer == nil) != (f.limit > 0) {
					t.Errorf("%s: figure %+v is taken, or lacks something", b.Name, f)
				}
				figures[f.name] = true
			}
		}
	}
}

// The benchmarks of files build and install programs. bench -quick all runs those.
func TestEachSideInProcessMeasuresEveryFigure(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short tries no benchmark: go test -C bench ./internal/suite")
	}
	e := Env{Root: t.TempDir(), Quick: true}
	for _, b := range slices.Concat(keys(e), memory(e), durable(e), atRest(e)) {
		// Not in parallel, because the sides share the work directory.
		t.Run(b.Name, func(t *testing.T) {
			if b.prepare != nil {
				if err := b.Child(t.Context(), "prepare", io.Discard); err != nil {
					t.Fatal(err)
				}
			}
			roles := map[string]side{"ours": b.ours, "peer": b.peer}
			for role, side := range roles {
				if side == nil {
					continue
				}
				var out bytes.Buffer
				if err := b.Child(t.Context(), role, &out); err != nil {
					t.Fatal(err)
				}
				var values map[string]float64
				if err := json.Unmarshal(out.Bytes(), &values); err != nil {
					t.Fatal(err)
				}
				var want []string
				for _, f := range b.figures {
					want = append(want, f.name)
					if values[f.name] <= 0 {
						t.Errorf("%s measured %v %s for %s", role, values[f.name], f.unit, f.name)
					}
				}
				slices.Sort(want)
				if got := slices.Sorted(maps.Keys(values)); !slices.Equal(got, want) {
					t.Errorf("%s measured %v, want %v", role, got, want)
				}
			}
		})
	}
}

func TestChildRefusesAnUnknownRole(t *testing.T) {
	t.Parallel()
	if err := new(Benchmark).Child(context.Background(), "other", io.Discard); err == nil {
		t.Error("no error")
	}
}

func TestChildMeasuresThePeerOfItsRole(t *testing.T) {
	t.Parallel()
	side := func(v float64) side {
		return func(context.Context) (map[string]float64, error) { return map[string]float64{"rate": v}, nil }
	}
	b := Benchmark{ours: side(1), rivals: []rival{{peer: side(2)}, {peer: side(3)}}}
	for role, want := range map[string]string{"ours": `{"rate":1}`, peerRole(0): `{"rate":2}`, peerRole(1): `{"rate":3}`} {
		var out bytes.Buffer
		if err := b.Child(t.Context(), role, &out); err != nil || strings.TrimSpace(out.String()) != want {
			t.Errorf("%s measured %q, %v; want %s", role, out.String(), err, want)
		}
	}
	if err := b.Child(t.Context(), peerRole(2), io.Discard); err == nil {
		t.Error("a peer that is not there was measured")
	}
}

func TestCheckRefusesAnOutputThatIsNotTheAnswer(t *testing.T) {
	t.Parallel()
	var input bytes.Buffer
	want, err := lines.Generate(&input, 1, 500)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var answer []string
	for line := range strings.Lines(input.String()) {
		if id, _ := lines.EventID([]byte(line)); !seen[string(id)] {
			seen[string(id)] = true
			answer = append(answer, line)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	write := func(lines ...string) {
		if err := os.WriteFile(out, []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(answer...)
	if err := check(out, want); err != nil {
		t.Error(err)
	}
	for name, wrong := range map[string][]string{
		"one lost":     answer[1:],
		"one repeated": append(slices.Clone(answer), answer[0]),
		"other order":  append(slices.Clone(answer[1:]), answer[0]),
	} {
		write(wrong...)
		if err := check(out, want); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
