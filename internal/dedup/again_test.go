package dedup

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel/store/logstore"
)

// settle waits until the times of files prove that they do not change.
func (b *bundle) settle(names ...string) {
	b.Helper()
	if runtime.GOOS != "linux" {
		return // the content is compared
	}
	for _, name := range names {
		for begun := time.Now(); ; runtime.Gosched() {
			info, err := os.Stat(name)
			if err != nil {
				b.Fatal(err)
			}
			if factsOf(info, time.Now()) != (facts{}) {
				break
			}
			if time.Since(begun) > time.Minute {
				b.Fatalf("%s still changes", name)
			}
		}
	}
}

// noted reports whether a note of the last run has a text.
func (b *bundle) noted(text string) bool {
	return slices.ContainsFunc(b.notes, func(note string) bool { return strings.Contains(note, text) })
}

// again repeats a run, whose notes are then the only ones.
func (b *bundle) again(opts Options) Report {
	b.Helper()
	b.notes = nil
	_, report := b.must(opts)
	return report
}

func TestAFinishedRunIsNotReadAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inputs, o := b.oddInputs(random(t), true)
	b.settle(inputs...)
	opts := b.checkpointedOptions("d", inputs)
	_, first := b.must(opts)
	identity := b.content("d/store/STORE")
	for range 2 {
		report := b.again(opts)
		if report.Read != 0 || report.BytesIn != 0 || report.Skipped < first.Read || report.Resumed {
			t.Fatalf("%+v", report)
		}
		if !b.noted("is unchanged since an earlier run read its ") || !b.noted(" lines: skipped; --again reads it") {
			t.Errorf("notes %q", b.notes)
		}
		b.equal("output", b.content("d/out"), o.fresh.String())
		b.equal("duplicates", b.content("d/dups"), o.dups.String())
		b.equal("rejected", b.content("d/rejected"), o.rejected.String())
	}
	if runtime.GOOS == "linux" {
		b.equal("the identity, which each open changes", b.content("d/store/STORE"), identity)
	}
	opts.Again = true
	report := b.again(opts)
	want := o.counts
	want.Duplicate, want.Fresh, want.BytesOut = want.Duplicate+want.Fresh, 0, 0
	if report.Counts != want || report.Skipped != 0 || len(b.notes) > 0 {
		t.Fatalf("--again:\n got %+v\nwant %+v\nnotes %q", report, want, b.notes)
	}
	b.equal("output", b.content("d/out"), o.fresh.String())
	b.equal("duplicates", b.content("d/dups"), o.dups.String())
}

// TestContentDecidesWhereTheFileSystemLeavesADoubt changes one of two inputs.
func TestContentDecidesWhereTheFileSystemLeavesADoubt(t *testing.T) {
	t.Parallel()
	const text = "{\"id\":1}\n{\"id\":2}\n"
	keepTime := func(b *bundle, change func()) {
		info, err := os.Stat(b.path("in"))
		if err != nil {
			b.Fatal(err)
		}
		change()
		if err := os.Chtimes(b.path("in"), time.Time{}, info.ModTime()); err != nil {
			b.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		change func(b *bundle)
		note   string
		read   int64
		fresh  string
	}{
		"touched":             {func(b *bundle) { keepTime(b, func() {}) }, "skipped", 0, ""},
		"replaced by a copy":  {func(b *bundle) { b.file("copy", text); b.rename("copy", "in") }, "skipped", 0, ""},
		"written in place":    {func(b *bundle) { b.file("in", text) }, "skipped", 0, ""},
		"edited, same time":   {func(b *bundle) { keepTime(b, func() { b.file("in", strings.Replace(text, "2", "3", 1)) }) }, "in changed since an earlier run: lines that it had then differ now: reading all of it", 2, "{\"id\":3}\n"},
		"replaced by another": {func(b *bundle) { b.file("copy", "{\"id\":9}\n"+text); b.rename("copy", "in") }, "lines that it had then differ now", 3, "{\"id\":9}\n"},
		"shrank":              {func(b *bundle) { b.file("in", "{\"id\":2}\n") }, "it shrank from 18 to 9 bytes", 1, ""},
		"grew":                {func(b *bundle) { b.file("in", text+"{\"id\":3}\n{\"id\":1}\n") }, "in grew since an earlier run: reading from line 3", 2, "{\"id\":3}\n"},
		"emptied":             {func(b *bundle) { b.file("in", "") }, "it shrank from 18 to 0 bytes", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			opts := jsonl(Options{Store: b.path("store"), Output: b.path("out"), Inputs: []string{b.file("other", "{\"id\":7}\n"), b.file("in", text)}})
			b.settle(opts.Inputs...)
			b.must(opts)
			first := b.content("out")
			test.change(b)
			b.settle(opts.Inputs...)
			report := b.again(opts)
			if report.Read != test.read || !b.noted(test.note) || !b.noted("other is unchanged since an earlier run read its 1 line: skipped") {
				t.Errorf("%+v, notes %q", report, b.notes)
			}
			b.equal("output", b.content("out"), first+test.fresh)
			identity := b.content("store/STORE")
			if report := b.again(opts); report.Read != 0 {
				t.Errorf("once more: %+v", report)
			}
			if runtime.GOOS == "linux" && name != "emptied" {
				b.equal("the identity, which each open changes", b.content("store/STORE"), identity)
			}
			b.equal("output", b.content("out"), first+test.fresh)
		})
	}
}

func (b *bundle) rename(from, to string) {
	b.Helper()
	if err := os.Rename(b.path(from), b.path(to)); err != nil {
		b.Fatal(err)
	}
}

// TestAGrownInputIsReadFromItsOldEnd compares with a run that reads all of it.
func TestAGrownInputIsReadFromItsOldEnd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		format    Format
		old, more string
		read      int64
		note      string
	}{
		"whole line":              {Text, "a\nb\n", "b\nc\n", 2, "from line 3"},
		"the end of a line":       {Text, "a\nb", "\nc\na\n", 2, "from line 3"},
		"CR and LF":               {Text, "a\r\nb", "\r\nc\r\n", 1, "from line 3"},
		"half a line":             {Text, "a\nb", "b\nc\n", 2, "from line 2"},
		"half a line, and no end": {Text, "b", "b", 1, "from line 1"},
		"a CR of the line":        {Text, "a\nb", "\rx\n", 1, "from line 2"},
		"blank lines":             {Text, "a\n", "\n\n", 2, "from line 2"},
		"a record":                {CSV, "id,v\n1,a\n", "2,b\n", 1, "from line 3"},
		"an end of a record":      {CSV, "id,v\n1,a", "\n2,b\n", 1, "from line 3"},
		"an open quote":           {CSV, "id,v\n1,\"a\nb\n", "c\"\n2,b\n", 2, "from line 2"},
		"an open quote, no end":   {CSV, "id,v\n0,x\n1,\"a\nb", "\"\n2,b\n", 2, "from line 3"},
		"a header":                {CSV, "id,v", ",w\n1,a,b\n", 1, "its header or byte order mark differs"},
		"a document":              {JSON, "[{\"id\":1},\n{\"id\":2}]", " {\"id\":3}\n", 1, "from line 3"},
	} {
		for _, pack := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, packed %v", name, pack), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				write := func(name string, parts ...string) string {
					text := strings.Join(parts, "")
					if pack {
						text = ""
						for _, part := range parts {
							text += gzipped(part)
						}
					}
					return b.file(name, text)
				}
				opts := Options{Format: test.format, Keys: []string{"line"}, OnMissing: MissingPass, Store: b.path("store"), Output: b.path("out")}
				if test.format != Text {
					opts.Keys = []string{".id"}
				}
				opts.Inputs = []string{write("in", test.old)}
				b.must(opts)
				write("in", test.old, test.more)
				report := b.again(opts)
				if report.Read != test.read || !b.noted(test.note) {
					t.Errorf("%+v, notes %q", report, b.notes)
				}
				if test.format == CSV && strings.Contains(name, "quote") {
					return // a malformed record passes each time that it is read
				}
				whole := opts
				whole.Store, whole.Output, whole.Again = b.path("store2"), b.path("out2"), true
				whole.Inputs = []string{write("in2", test.old)}
				b.must(whole)
				write("in2", test.old, test.more)
				b.must(whole)
				b.equal("output", b.content("out"), b.content("out2"))
			})
		}
	}
}

// TestInputsThatGrowByChanceGiveTheSameOutput lets two files grow at random places.
func TestInputsThatGrowByChanceGiveTheSameOutput(t *testing.T) {
	t.Parallel()
	r := random(t)
	for round := range 10 {
		b := setup(t)
		var texts []string
		for range 2 {
			texts = append(texts, randomLines(r, 100, 60, false))
		}
		at := make([]int, len(texts))
		sides := make([]Options, 2)
		for i := range sides {
			opts := b.checkpointedOptions(fmt.Sprint("d", i), nil)
			opts.OnMissing, opts.OnMismatch, opts.Again = MissingHash, MismatchDrop, i == 1
			for in := range texts {
				opts.Inputs = append(opts.Inputs, b.path(fmt.Sprintf("d%d/in%d", i, in)))
			}
			sides[i] = opts
		}
		for at[0] < len(texts[0]) || at[1] < len(texts[1]) {
			for i, text := range texts {
				at[i] += min(r.IntN(len(text)), len(text)-at[i])
			}
			for _, opts := range sides {
				for i, name := range opts.Inputs {
					if err := os.WriteFile(name, []byte(texts[i][:at[i]]), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				b.must(opts)
			}
			b.equal(fmt.Sprint("output of round ", round), b.content("d0/out"), b.content("d1/out"))
		}
	}
}

// TestADailyRunIsTheSameAfterAStopAtAnyStep: of four inputs one is unchanged, one grew, one
// changed and one is new. Whatever step fails, running again gives the same output, and
// nothing is skipped that was not written.
func TestADailyRunIsTheSameAfterAStopAtAnyStep(t *testing.T) {
	t.Parallel()
	r := random(t)
	b := setup(t)
	old, more, changed, added := randomLines(r, 60, 40, true), randomLines(r, 60, 80, true), randomLines(r, 60, 120, true), randomLines(r, 60, 160, true)
	daily := func(dir string) Options {
		opts := b.checkpointedOptions(dir, nil)
		file := func(name, text string) { opts.Inputs = append(opts.Inputs, b.file(dir+"/"+name, text)) }
		file("new", "")
		file("same", old)
		file("grew", more[:len(more)/2])
		file("changed", changed[len(changed)/2:])
		file("same too", old)
		_, _ = b.must(opts)
		opts.Inputs = nil
		file("new", added)
		opts.Inputs = append(opts.Inputs, b.path(dir+"/same"))
		file("grew", more)
		file("changed", changed)
		opts.Inputs = append(opts.Inputs, b.path(dir+"/same too"))
		return opts
	}
	opts := daily("whole")
	var steps *atomic.Int64
	opts.failAt, steps = stopAt(0)
	want := b.again(opts)
	if want.Read == 0 || want.Skipped < 118 || steps.Load() < 10 {
		t.Fatalf("%+v in %d steps tests nothing", want, steps.Load())
	}
	for n := int64(1); n <= steps.Load(); n++ {
		dir := fmt.Sprint("stopped", n)
		opts := daily(dir)
		stop, _ := stopAt(n)
		var announced atomic.Bool // before that, the run writes nothing
		opts.failAt = func(step string) error {
			err := stop(step)
			if err == nil && step == "record" {
				announced.Store(true)
			}
			return err
		}
		if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
			t.Fatalf("stop at step %d: error %v", n, err)
		}
		if announced.Load() {
			b.smear(r, dir)
		}
		opts.failAt = nil
		_, report := b.must(opts)
		if report.Counts != want.Counts {
			t.Errorf("stop at step %d:\n got %+v\nwant %+v", n, report.Counts, want.Counts)
		}
		for range 2 {
			for _, name := range []string{"out", "dups", "rejected"} {
				b.equal(fmt.Sprintf("%s after a stop at step %d", name, n), b.content(dir+"/"+name), b.content("whole/"+name))
			}
			if report := b.again(opts); report.Read != 0 {
				t.Errorf("stop at step %d: again %+v", n, report)
			}
		}
	}
}

// TestOnlyTheSameCommandSkipsItsInputs changes one part of the command.
func TestOnlyTheSameCommandSkipsItsInputs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(b *bundle, o *Options)
		read   int64
	}{
		"nothing":       {func(b *bundle, o *Options) {}, 0},
		"threads":       {func(b *bundle, o *Options) { o.Threads = 3 }, 0},
		"another input": {func(b *bundle, o *Options) { o.Inputs = append(o.Inputs, b.file("more", "{\"id\":1}\n")) }, 1},
		"output":        {func(b *bundle, o *Options) { o.Output = b.path("other") }, 2},
		"no output":     {func(b *bundle, o *Options) { o.Output = "" }, 2},
		"duplicates":    {func(b *bundle, o *Options) { o.Duplicates = b.path("dups") }, 2},
		"scope":         {func(b *bundle, o *Options) { o.Scope = "other" }, 2},
		"key":           {func(b *bundle, o *Options) { o.Keys, o.Scope = []string{"hash(.)"}, "other" }, 2},
		"mismatch":      {func(b *bundle, o *Options) { o.OnMismatch = MismatchPass }, 2},
		"missing":       {func(b *bundle, o *Options) { o.OnMissing = MissingHash }, 2},
		"window":        {func(b *bundle, o *Options) { o.Window = 24 * time.Hour }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			opts := jsonl(Options{Store: b.path("store"), Output: b.path("out"), Inputs: []string{b.file("in", "{\"id\":1}\n{\"id\":2}\n")}})
			b.must(opts)
			test.change(b, &opts)
			if report := b.again(opts); report.Read != test.read {
				t.Errorf("%+v, notes %q", report, b.notes)
			}
		})
	}
}

// TestAWindowReadsItsInputsAgain, because lines of forgotten keys are fresh.
func TestAWindowReadsItsInputsAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := jsonl(Options{Store: b.path("store"), Output: b.path("out"), Window: time.Hour, Inputs: []string{b.file("in", "{\"id\":1}\n")}})
	b.must(opts)
	if report := b.again(opts); report.Read != 1 || len(b.notes) > 0 {
		t.Errorf("%+v, notes %q", report, b.notes)
	}
}

func TestARemovedKeyIsLookedForInAllInputs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := jsonl(Options{Store: b.path("store"), Output: b.path("out"), Inputs: []string{b.file("in", "{\"id\":\"a\"}\n{\"id\":\"b\"}\n")}})
	b.settle(opts.Inputs...)
	b.must(opts)
	store, err := logstore.Open(opts.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	removed, err := store.RemoveDigest(t.Context(), store.Digester("default").String("a"))
	if err = errors.Join(err, store.Close()); err != nil || !removed {
		t.Fatal(removed, err)
	}
	if report := b.again(opts); report.Read != 2 || report.Fresh != 1 {
		t.Errorf("%+v", report)
	}
	b.equal("output", b.content("out"), "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{\"id\":\"a\"}\n")
	if report := b.again(opts); report.Read != 0 {
		t.Errorf("%+v", report)
	}
}

// TestASkippedInputDoesNotSilentlyGiveAnEmptyOutput removes or empties what an earlier run wrote.
// The note names a remedy, and the remedy helps.
func TestASkippedInputDoesNotSilentlyGiveAnEmptyOutput(t *testing.T) {
	t.Parallel()
	for gone, lose := range map[string]func(path string) error{
		"was removed": os.Remove,
		"was emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		b := setup(t)
		opts := jsonl(Options{Store: b.path("store"), Output: b.path("out"), Duplicates: b.path("dups"), Inputs: []string{b.file("in", "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n")}})
		b.settle(opts.Inputs...)
		b.must(opts)
		for _, name := range []string{"out", "dups"} {
			if err := lose(b.path(name)); err != nil {
				t.Fatal(err)
			}
		}
		if report := b.again(opts); report.Read != 0 || !b.told("2 lines") || !b.noted("out "+gone+": ") || !b.noted("dups "+gone+": it had 1 line of earlier runs, which are not written again, because their inputs are not read again") {
			t.Errorf("%+v, notes %q", report, b.notes)
		}
		b.equal("output", b.content("out"), "")
		other := opts
		other.Scope = "once more"
		if b.again(other); b.noted("not written again") {
			t.Errorf("notes %q", b.notes)
		}
		b.equal("output", b.content("out"), "{\"id\":1}\n{\"id\":2}\n")
		b.file("out", "theirs\n")
		var refused *RefusedError
		if _, _, err := b.run(t.Context(), opts); !errors.As(err, &refused) {
			t.Errorf("a changed output: error %v", err)
		}
		b.equal("output", b.content("out"), "theirs\n")
	}
}

// TestAnInputIsRememberedWithoutAnOutputFile: the second run writes the header alone.
func TestAnInputIsRememberedWithoutAnOutputFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := Options{Format: CSV, Keys: []string{".id"}, Store: b.path("store"), Inputs: []string{b.file("in.csv", "id,v\n1,a\n")}}
	b.settle(opts.Inputs...)
	for _, want := range []string{"id,v\n1,a\n", "id,v\n", "id,v\n"} {
		if out, _ := b.must(opts); out != want {
			t.Errorf("output %q, want %q", out, want)
		}
	}
	b.file("in.csv", "id,v\n1,a\n2,b\n")
	if out, report := b.must(opts); out != "id,v\n2,b\n" || report.Read != 1 || report.Skipped != 1 {
		t.Errorf("output %q, %+v", out, report)
	}
	opts.Inputs = append(opts.Inputs, Stdio)
	opts.Stdin = strings.NewReader("id,v\n3,c\n")
	if out, report := b.must(opts); out != "id,v\n3,c\n" || report.Read != 1 || report.Skipped != 2 {
		t.Errorf("output %q, %+v", out, report)
	}
}

func TestManyInputsShareANote(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opts := jsonl(Options{Store: b.path("store"), Output: b.path("out")})
	for i := range 9 {
		opts.Inputs = append(opts.Inputs, b.file(fmt.Sprint("in", i), fmt.Sprintf("{\"id\":%d}\n", i)))
	}
	b.must(opts)
	for i := range 5 {
		b.file(fmt.Sprint("in", i), fmt.Sprintf("{\"id\":%d}\n{\"id\":9}\n", i))
	}
	report := b.again(opts)
	if report.Read != 5 || len(b.notes) != 5 || !b.noted("4 inputs are unchanged since an earlier run read their 4 lines") || !b.noted("2 more inputs grew or changed") {
		t.Errorf("%+v, notes %q", report, b.notes)
	}
}

func TestAgainNeedsAStore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, _, err := b.run(t.Context(), Options{Again: true, Inputs: []string{b.file("in", "a\n")}})
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "--again reads inputs that a store remembers: add --store DIR") {
		t.Errorf("error %v", err)
	}
}

// TestFingerprintNamesTheFirstBlockThatDiffers adds content in random pieces.
func TestFingerprintNamesTheFirstBlockThatDiffers(t *testing.T) {
	t.Parallel()
	r := random(t)
	data := make([]byte, 12<<20)
	for i := range data {
		data[i] = byte(i >> 9)
	}
	whole := fingerprint{}
	whole.add(data)
	of := func(data []byte) (f fingerprint) {
		for len(data) > 0 {
			n := 1 + rand.New(r).IntN(min(len(data), 1<<19))
			f.add(data[:n])
			data = data[n:]
			if r.IntN(4) == 0 { // as after a resume
				f.end = 0
				f = f.clone()
			}
		}
		return f
	}
	if pieces := of(data); !pieces.same(&whole) || len(whole.Blocks) < 7 {
		t.Errorf("%+v, want %+v", pieces, whole)
	}
	for number := range len(whole.Blocks) {
		start := blockStart(number)
		at := start + r.Int64N(blockEnd(start)-start)
		data[at] ^= 1
		other := of(data)
		if got, ok := other.differs(&whole); !ok || got != start || other.same(&whole) {
			t.Errorf("a change at %d of block %d: %d, %v", at, number, got, ok)
		}
		data[at] ^= 1
	}
}
