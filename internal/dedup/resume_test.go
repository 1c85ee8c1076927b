package dedup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var errInjected = errors.New("injected")

// stopAt fails the nth step that makes something durable, and all later ones.
func stopAt(n int64) (failAt func(string) error, steps *atomic.Int64) {
	steps = new(atomic.Int64)
	return func(step string) error {
		if k := steps.Add(1); n > 0 && k >= n {
			return fmt.Errorf("%w at step %d, %s", errInjected, k, step)
		}
		return nil
	}, steps
}

// stopAtSeal fails before the nth commit is sealed. The first commit only
// announces the run.
func stopAtSeal(n int64) func(string) error {
	var seals atomic.Int64
	return func(step string) error {
		if step == "seal" {
			seals.Add(1)
		}
		if seals.Load() >= n {
			return errInjected
		}
		return nil
	}
}

// checkpointedOptions commit after every few hundred bytes.
func (b *bundle) checkpointedOptions(dir string, inputs []string) Options {
	if err := os.MkdirAll(b.path(dir), 0o755); err != nil {
		b.Fatal(err)
	}
	return Options{
		Inputs: inputs, Keys: []string{".id"}, Format: JSONL, Store: b.path(dir + "/store"),
		Output: b.path(dir + "/out"), Duplicates: b.path(dir + "/dups"), Rejected: b.path(dir + "/rejected"),
		OnMissing: MissingReject, OnMismatch: MismatchPass, Threads: 2,
		blockSize: 128, commitBytes: 600, commitEvery: time.Hour,
	}
}

// oddInputs writes inputs and returns the oracle's output for them.
func (b *bundle) oddInputs(r *rand.Rand, pack bool) ([]string, *oracle) {
	o := &oracle{onMissing: MissingReject, onMismatch: MismatchPass, seen: map[string]any{}}
	var inputs []string
	for i := range 3 {
		text := randomLines(r, 50, 30, true)
		if i == 0 {
			text = "{\"id\":\"first\"}\n{\"id\":\"second\"}\n{\"id\":\"first\"}\n"
		}
		if o.input(text); pack {
			text = compressed(r, text)
		}
		inputs = append(inputs, b.file(fmt.Sprint("in", i), text))
	}
	return inputs, o
}

func (b *bundle) verify(dir string, o *oracle, report Report) {
	b.Helper()
	b.equal("output", b.content(dir+"/out"), o.fresh.String())
	b.equal("duplicates", b.content(dir+"/dups"), o.dups.String())
	b.equal("rejected", b.content(dir+"/rejected"), o.rejected.String())
	if report.Counts != o.counts {
		b.Fatalf("counts:\n got %+v\nwant %+v", report.Counts, o.counts)
	}
}

func TestOutputIsTheSameAfterAStopAtAnyStep(t *testing.T) {
	t.Parallel()
	r := random(t)
	b := setup(t)
	inputs, o := b.oddInputs(r, true)
	opts := b.checkpointedOptions("whole", inputs)
	var steps *atomic.Int64
	opts.failAt, steps = stopAt(0)
	_, report := b.must(opts)
	b.verify("whole", o, report)
	if steps.Load() < 20 {
		t.Fatalf("%d steps are too few to test anything", steps.Load())
	}
	for n := int64(1); n <= steps.Load(); n++ {
		dir := fmt.Sprint("stopped", n)
		opts := b.checkpointedOptions(dir, inputs)
		opts.failAt, _ = stopAt(n)
		if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
			t.Fatalf("stop at step %d: error %v", n, err)
		}
		b.smear(r, dir)
		opts.failAt = nil
		_, report := b.must(opts)
		b.verify(dir, o, report)
	}
}

func TestOutputIsTheSameAfterRepeatedStops(t *testing.T) {
	t.Parallel()
	r := random(t)
	b := setup(t)
	for round := range 3 {
		inputs, o := b.oddInputs(r, round%2 == 0)
		dir := fmt.Sprint("round", round)
		opts := b.checkpointedOptions(dir, inputs)
		for stops := 0; ; stops++ {
			opts.Threads, opts.blockSize = 1+r.IntN(4), 1<<(5+r.IntN(6))
			opts.failAt, _ = stopAt(4 + r.Int64N(12))
			_, report, err := b.run(t.Context(), opts)
			if err == nil {
				b.verify(dir, o, report)
				break
			}
			if !errors.Is(err, errInjected) {
				t.Fatal(err)
			}
			if stops > 1000 {
				t.Fatal("the run gets nowhere")
			}
			b.smear(r, dir)
		}
	}
}

// smear writes text after the committed part of a file, as a crash may leave
// it. A run that wrote nothing leaves nothing.
func (b *bundle) smear(r *rand.Rand, dir string) {
	b.Helper()
	if b.content(dir+"/out") == "" {
		return
	}
	for _, name := range []string{"out", "dups", "rejected"} {
		f, err := os.OpenFile(b.path(dir+"/"+name), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			b.Fatal(err)
		}
		_, err = io.WriteString(f, strings.Repeat("\x00{\n"[:1+r.IntN(3)], r.IntN(500)))
		if err = errors.Join(err, f.Close()); err != nil {
			b.Fatal(err)
		}
	}
}

// unfinished leaves a run that stopped after a few commits.
func (b *bundle) unfinished(dir string, inputs []string) Options {
	b.Helper()
	opts := b.checkpointedOptions(dir, inputs)
	opts.failAt = stopAtSeal(4)
	if _, _, err := b.run(b.Context(), opts); !errors.Is(err, errInjected) {
		b.Fatalf("error %v", err)
	}
	opts.failAt = nil
	return opts
}

func TestFinishedRunAddsNothingWhenRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inputs, o := b.oddInputs(random(t), false)
	opts := b.checkpointedOptions("d", inputs)
	_, report := b.must(opts)
	b.verify("d", o, report)
	opts.Again = true
	for range 2 {
		_, report := b.must(opts)
		want := o.counts
		want.Duplicate, want.Fresh, want.BytesOut = want.Duplicate+want.Fresh, 0, 0
		if report.Counts != want || report.Resumed {
			t.Fatalf("repeated:\n got %+v\nwant %+v", report, want)
		}
		b.equal("output", b.content("d/out"), o.fresh.String())
		b.equal("duplicates", b.content("d/dups"), o.dups.String())
		b.equal("rejected", b.content("d/rejected"), o.rejected.String())
	}
}

func TestAResumedRunIsReported(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inputs, o := b.oddInputs(random(t), false)
	opts := b.unfinished("d", inputs)
	_, report := b.must(opts)
	if !report.Resumed {
		t.Error("the report does not say resumed")
	}
	if len(b.notes) == 0 || !strings.Contains(b.notes[len(b.notes)-1], "continuing at ") {
		t.Errorf("notes %q do not say where the run continues", b.notes)
	}
	b.verify("d", o, report)
}

func TestUnfinishedRunRefusesInputsThatChanged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(b *bundle, path string)
		why    string
	}{
		"shrank": {func(b *bundle, path string) {
			text := b.content("in0")
			b.file("in0", text[:len(text)-1])
		}, "shrank"},
		"another first byte":     {func(b *bundle, path string) { b.file("in0", "["+b.content("in0")[1:]) }, "changed"},
		"grew after it was read": {func(b *bundle, path string) { b.file("in0", b.content("in0")+"\n") }, "grew"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			inputs, _ := b.oddInputs(random(t), false)
			opts := b.unfinished("d", inputs)
			before := b.content("d/out")
			test.change(b, inputs[0])
			_, _, err := b.run(t.Context(), opts)
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.why) {
				t.Fatalf("error %v does not refuse because the input %s", err, test.why)
			}
			b.equal("output", b.content("d/out"), before)
			opts.Force = true
			_, report := b.must(opts)
			if report.Resumed {
				t.Error("a forced run was resumed")
			}
		})
	}
}

func TestRunContinuesAfterTheInvalidLineIsFixed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	good, bad, more := strings.Repeat("{\"id\":1}\n", 50), "{\"id\":\n", "{\"id\":3}\n"
	opts := b.checkpointedOptions("d", []string{b.file("in", good+bad+more)})
	opts.OnMissing = MissingFail
	for range 2 {
		_, _, err := b.run(t.Context(), opts)
		if err == nil || !strings.Contains(err.Error(), "in:51: ") {
			t.Fatalf("error %v", err)
		}
	}
	b.file("in", strings.Replace(good, "1", "4", 1)+"{}\n"+more)
	var refused *RefusedError
	if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) {
		t.Fatalf("error %v, although what was read has changed", err)
	}
	b.file("in", good+more)
	_, report := b.must(opts)
	b.equal("output", b.content("d/out"), "{\"id\":1}\n{\"id\":3}\n")
	if !report.Resumed || report.Read != 51 || report.BytesIn != int64(len(good+more)) {
		t.Errorf("%+v", report)
	}
}

func TestUnfinishedRunAcceptsAnInputThatGrew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := random(t)
	first, more := randomLines(r, 200, 100, true)+"\n", randomLines(r, 100, 150, true)
	opts := b.unfinished("d", []string{b.file("in", first)})
	b.file("in", first+more)
	_, report := b.must(opts)
	o := &oracle{onMissing: MissingReject, onMismatch: MismatchPass, seen: map[string]any{}}
	o.input(first + more)
	b.verify("d", o, report)
}

func TestChangedOutputIsRefusedUnlessForcedOrAppended(t *testing.T) {
	t.Parallel()
	for _, unfinished := range []bool{false, true} {
		for name, change := range map[string]func(text string) string{
			"cut":     func(text string) string { return text[:5] },
			"edited":  func(text string) string { return "X" + text[1:] },
			"emptied": func(string) string { return "" },
			"added":   func(text string) string { return text + "more\n" },
		} {
			t.Run(fmt.Sprintf("%s, unfinished %v", name, unfinished), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				inputs, o := b.oddInputs(random(t), false)
				opts := b.checkpointedOptions("d", inputs)
				if unfinished {
					opts = b.unfinished("d", inputs)
				} else {
					b.must(opts)
				}
				b.file("d/out", change(b.content("d/out")))
				// The text after the last commit of an unfinished run is its
				// own. An empty file of a finished run was removed.
				accepted := unfinished && name == "added" || !unfinished && name == "emptied"
				_, report, err := b.run(t.Context(), opts)
				var refused *RefusedError
				if errors.As(err, &refused) == accepted {
					t.Fatalf("accepted %v, but error %v", accepted, err)
				}
				if accepted {
					if unfinished {
						b.verify("d", o, report)
					}
					return
				}
				changed := b.content("d/out")
				opts.Append = true
				b.must(opts)
				if now := b.content("d/out"); !strings.HasPrefix(now, changed) {
					t.Fatalf("--append did not continue after the content")
				}
			})
		}
	}
}

func TestOutputOfAnotherProgramIsRefused(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"", "store"} {
		b := setup(t)
		in := b.file("in", "a\nb\na\n")
		b.file("out", "theirs")
		opts := Options{Inputs: []string{in}, Output: b.path("out"), Format: Text}
		if store != "" {
			opts.Store = b.path(store)
		}
		_, _, err := b.run(t.Context(), opts)
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Fatalf("store %q: error %v", store, err)
		}
		b.equal("output", b.content("out"), "theirs")
		if _, err := os.Stat(b.path("store")); err == nil {
			t.Fatal("a refused run made the store")
		}
		appended, forced := opts, opts
		appended.Append = true
		b.must(appended)
		b.equal("output", b.content("out"), "theirs\na\nb\n")
		if store != "" {
			forced.Store = b.path("other store")
		}
		forced.Force = true
		b.must(forced)
		b.equal("output", b.content("out"), "a\nb\n")
	}
}

func TestForceAndAppendContinueAnInterruptedRun(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		b := setup(t)
		inputs, o := b.oddInputs(random(t), false)
		b.checkpointedOptions("d", inputs)
		b.file("d/out", "theirs\n")
		opts := b.checkpointedOptions("d", inputs)
		opts.Force, opts.Append = force, !force
		opts.failAt = stopAtSeal(4)
		if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
			t.Fatalf("error %v", err)
		}
		opts.failAt = nil
		_, report := b.must(opts)
		if !report.Resumed {
			t.Fatal("the run was not resumed")
		}
		want := o.fresh.String()
		if !force {
			want = "theirs\n" + want
		}
		b.equal("output", b.content("d/out"), want)
	}
}

func TestRunRemovesTheUnfinishedOutputOfAnotherCommand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := random(t)
	inputs, o := b.oddInputs(r, false)
	first := b.unfinished("d", inputs)
	b.smear(r, "d")
	second := first
	second.Inputs = inputs[:1]
	b.must(second)
	if strings.Contains(b.content("d/out"), "\x00") {
		t.Fatal("what the unfinished run left behind its last commit is still there")
	}
	b.must(first)
	got := map[string]int{}
	for line := range strings.Lines(b.content("d/out")) {
		got[line]++
	}
	for line := range strings.Lines(o.fresh.String()) {
		if got[line] == 0 {
			t.Fatalf("line %q is lost", line)
		}
	}
}

func TestSecondRunOnOneStoreIsRefusedNamingTheHolder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := b.file("in", "a\n")
	opts := Options{Inputs: []string{in}, Store: b.path("store"), Stdout: io.Discard}
	first, err := Prepare(t.Context(), &opts)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, err = Prepare(t.Context(), &opts)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Fatalf("error %v does not name the process", err)
	}
}

func TestAnInterruptedRunDrainsAndIsResumed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inputs, o := b.oddInputs(random(t), false)
	opts := b.checkpointedOptions("d", inputs)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	stop := stopAtSeal(3)
	opts.failAt = func(step string) error {
		if stop(step) != nil {
			cancel(cause)
		}
		return nil
	}
	if _, _, err := b.run(ctx, opts); !errors.Is(err, cause) {
		t.Fatalf("error %v", err)
	}
	opts.failAt = nil
	_, report := b.must(opts)
	if !report.Resumed {
		t.Fatal("the run was not resumed")
	}
	b.verify("d", o, report)
}

func TestOutputThatTheStoreWroteIsAppendedTo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := Options{Format: CSV, Keys: []string{".id"}, Store: b.path("store"), Output: b.path("out")}
	opts.Inputs = []string{b.file("day1", bom+"id,v\n1,a\n2,b\n")}
	b.must(opts)
	opts.Inputs = []string{b.file("day2", "id,v\n2,b\n3,c")}
	_, report := b.must(opts)
	b.equal("output", b.content("out"), bom+"id,v\n1,a\n2,b\n3,c\n")
	if report.BytesOut != int64(len("3,c\n")) || report.Fresh != 1 {
		t.Errorf("%+v", report)
	}
}

func TestPipedRunKeepsWholeLinesThatMayNotComeAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := strings.Repeat("x", 300)
	opts := Options{
		Format: Text, Store: b.path("store"), Output: b.path("out"),
		Stdin:     strings.NewReader("a" + text + "\nb" + text + "\nc" + text + "\n"),
		blockSize: 64, commitEvery: time.Hour, failAt: stopAtSeal(2), // the last one
	}
	if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
		t.Fatalf("error %v", err)
	}
	b.file("out", b.content("out")+"torn")
	opts.failAt, opts.Stdin = nil, strings.NewReader("c"+text+"\nd"+text+"\n")
	b.must(opts)
	var got string
	for line := range strings.Lines(b.content("out")) {
		got += line[:1]
	}
	if got != "abccd" { // c came again, because its key was not remembered
		t.Fatalf("lines %q", got)
	}
	opts.Stdin = strings.NewReader("d" + text + "\ne" + text)
	if _, report := b.must(opts); report.Fresh != 1 || report.Duplicate != 1 {
		t.Fatalf("%+v", report)
	}
}
