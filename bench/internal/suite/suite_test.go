package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/bench/internal/lines"
)

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
