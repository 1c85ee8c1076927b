package dedup

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel/store/logstore"
)

// TestLinesThatNoKeyStandsForComeAgainWhenTheirOutputIsGone: whatever step the second run
// stops at, a fresh output has them.
func TestLinesThatNoKeyStandsForComeAgainWhenTheirOutputIsGone(t *testing.T) {
	t.Parallel()
	const missing, differs = "{}\n", "{\"id\":1,\"x\":2}\n"
	for name, test := range map[string]struct {
		missing  OnMissing
		mismatch OnMismatch
		gone     string
		want     string
	}{
		"missing pass":    {MissingPass, MismatchDrop, "out", missing + missing},
		"missing reject":  {MissingReject, MismatchDrop, "rejected", missing + missing},
		"mismatch pass":   {MissingHash, MismatchPass, "out", differs + differs},
		"mismatch reject": {MissingHash, MismatchReject, "rejected", differs + differs},
		"nothing passes":  {MissingHash, MismatchDrop, "out", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			inputs := []string{b.file("in0", "{\"id\":1}\n"+missing+differs), b.file("in1", "{\"id\":3}\n"+missing+differs)}
			b.settle(inputs...)
			for n, last := int64(1), int64(1); n <= last; n++ {
				dir := fmt.Sprint("d", n)
				opts := b.checkpointedOptions(dir, inputs)
				opts.OnMissing, opts.OnMismatch, opts.Duplicates = test.missing, test.mismatch, ""
				opts.blockSize, opts.commitBytes = 8, 1
				b.must(opts)
				if err := os.Remove(b.path(dir + "/" + test.gone)); err != nil {
					t.Fatal(err)
				}
				var steps *atomic.Int64
				opts.failAt, steps = stopAt(n - 1)
				if _, _, err := b.run(t.Context(), opts); n > 1 && !errors.Is(err, errInjected) || n == 1 && err != nil {
					t.Fatalf("stop at step %d: error %v", n-1, err)
				}
				if n == 1 {
					last = steps.Load() + 1
				}
				opts.failAt = nil
				report := b.again(opts)
				b.equal(fmt.Sprint(test.gone, " after a stop at step ", n-1), b.content(dir+"/"+test.gone), test.want)
				if report = b.again(opts); report.Read != 0 {
					t.Errorf("once more: %+v", report)
				}
			}
		})
	}
}

// TestOutputsWithoutAPathAreToldApart: what went to a device is not on standard output.
func TestOutputsWithoutAPathAreToldApart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := jsonl(Options{Store: b.path("store"), OnMissing: MissingPass, Output: os.DevNull, Inputs: []string{b.file("in", "{}\n{\"id\":1}\n")}})
	b.must(opts)
	opts.Output = ""
	if out, _ := b.must(opts); out != "{}\n" {
		t.Errorf("output %q", out)
	}
}

// TestAnEmptyInputIsKnown: it must not make other inputs look new.
func TestAnEmptyInputIsKnown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := Options{Format: CSV, Keys: []string{".id"}, OnMissing: MissingPass, Store: b.path("store"), Output: b.path("out")}
	opts.Inputs = []string{b.file("empty", ""), b.file("in", "id,v\n1,a\n,b\n")}
	b.settle(opts.Inputs...)
	b.must(opts)
	first := b.content("out")
	for _, again := range []bool{true, false} {
		opts.Again = again
		if report := b.again(opts); (report.Read > 0) != again {
			t.Errorf("again %v: %+v", again, report)
		}
		b.equal("output", b.content("out"), first)
	}
	b.file("empty", "id,v\n2,c\n,d\n")
	if report := b.again(opts); report.Read != 2 || report.Skipped != 2 || b.noted(" changed since") {
		t.Errorf("%+v, notes %q", report, b.notes)
	}
	b.equal("output", b.content("out"), first+"2,c\n,d\n")
}

// TestAKeyThatIsRemovedDuringAnUnfinishedRunIsLookedFor in the inputs that were read.
func TestAKeyThatIsRemovedDuringAnUnfinishedRunIsLookedFor(t *testing.T) {
	t.Parallel()
	for _, used := range []bool{false, true} {
		for stops := range 2 {
			t.Run(fmt.Sprintf("store used before: %v, %d more stops", used, stops), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				inputs, _ := b.oddInputs(random(t), false)
				if used {
					opts := b.checkpointedOptions("d", []string{b.file("other", "{\"id\":\"other\"}\n")})
					b.must(opts)
				}
				opts := b.unfinished("d", inputs)
				store, err := logstore.Open(opts.Store, nil)
				if err != nil {
					t.Fatal(err)
				}
				removed, err := store.RemoveDigest(t.Context(), store.Digester("default").String("first"))
				if err = errors.Join(err, store.Close()); err != nil || !removed {
					t.Fatal(removed, err)
				}
				for range stops {
					opts.failAt = stopAtSeal(3)
					if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
						t.Fatal(err)
					}
				}
				opts.failAt = nil
				if report := b.again(opts); !report.Resumed {
					t.Fatalf("%+v", report)
				}
				report := b.again(opts)
				if strings.Count(b.content("d/out"), "{\"id\":\"first\"}\n") != 2 {
					t.Errorf("%+v, notes %q", report, b.notes)
				}
				if report := b.again(opts); report.Read != 0 {
					t.Errorf("once more: %+v", report)
				}
			})
		}
	}
}

// TestAnInputThatIsReplacedAfterItWasCompared is not read in the middle of a line.
func TestAnInputThatIsReplacedAfterItWasCompared(t *testing.T) {
	t.Parallel()
	const old, more, other = "{\"id\":1}\n{\"id\":2}\n", "{\"id\":3}\n", "{\"id\":\"another line\"}\n{\"id\":9}\n"
	for name, test := range map[string]struct {
		change func(b *bundle)
		fresh  string // "" if the run fails
	}{
		"replaced":           {func(b *bundle) { b.file("new", other); b.rename("new", "in") }, ""},
		"cut":                {func(b *bundle) { b.file("in", old[:9]) }, ""},
		"replaced by a copy": {func(b *bundle) { b.file("new", old+more); b.rename("new", "in") }, "{\"id\":3}\n"},
		"grown":              {func(b *bundle) { b.file("in", old+more+"{\"id\":4}\n") }, "{\"id\":3}\n{\"id\":4}\n"},
	} {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, first %v", name, first), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				opts := jsonl(Options{Store: b.path("store"), Output: b.path("out"), Threads: 1, Stdout: os.Stdout, Note: func(string) {}})
				opts.Inputs = []string{b.file("in", old)}
				if !first {
					opts.Inputs = []string{b.file("before", "{\"id\":7}\n"), b.path("in")}
				}
				b.must(opts)
				was := b.content("out")
				b.file("in", old+more)
				r, err := Prepare(t.Context(), &opts)
				if err != nil {
					t.Fatal(err)
				}
				test.change(b)
				_, err = r.Do(t.Context())
				if test.fresh != "" {
					if b.equal("output", b.content("out"), was+test.fresh); err != nil {
						t.Error(err)
					}
					return
				}
				if !errors.Is(err, errReplaced) {
					t.Errorf("error %v", err)
				}
				b.equal("output", b.content("out"), was)
				b.again(opts)
				for line := range strings.Lines(b.content("in")) {
					if !strings.Contains(b.content("out"), line) {
						t.Errorf("the line %q is lost", line)
					}
				}
			})
		}
	}
}

// TestAnUnfinishedRunOfAnOlderVersionIsNamed: its record has other members.
func TestAnUnfinishedRunOfAnOlderVersionIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inputs, _ := b.oddInputs(random(t), false)
	opts := b.unfinished("d", inputs)
	store, err := logstore.Open(opts.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := store.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name := range store.Values(runValue) {
		var old struct {
			Inputs []map[string]any `json:"inputs"`
		}
		for _, in := range inputs {
			old.Inputs = append(old.Inputs, map[string]any{"path": in, "size": 40, "changed": 1, "sample": 7})
		}
		data, err := json.Marshal(old)
		if err != nil {
			t.Fatal(err)
		}
		tx.Set(name, data)
	}
	if err := errors.Join(tx.Seal(func() error { return nil }).Wait(t.Context()), store.Close()); err != nil {
		t.Fatal(err)
	}
	var refused *RefusedError
	if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) || len(refused.Problems) != 1 || !strings.Contains(err.Error(), "an older version of semel began") {
		t.Errorf("error %v", err)
	}
	opts.Force = true
	b.must(opts)
}
