package dedup

import (
	"bytes"
	stdgzip "compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// unpacked returns the content of a compressed file.
func (b *bundle) unpacked(name string) string {
	b.Helper()
	packed := strings.NewReader(b.content(name))
	var plain io.Reader
	var err error
	if strings.HasSuffix(name, ".gz") {
		plain, err = stdgzip.NewReader(packed)
	} else {
		plain, err = zstd.NewReader(packed)
	}
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	text, err := io.ReadAll(plain)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return string(text)
}

// packedOptions are checkpointedOptions with compressed outputs.
func (b *bundle) packedOptions(dir string, inputs []string) Options {
	opts := b.checkpointedOptions(dir, inputs)
	opts.Output, opts.Duplicates, opts.Rejected = opts.Output+".gz", opts.Duplicates+".zst", opts.Rejected+".ZSTD"
	return opts
}

func (b *bundle) verifyPacked(dir string, o *oracle, report Report) {
	b.Helper()
	b.equal("output", b.unpacked(dir+"/out.gz"), o.fresh.String())
	b.equal("duplicates", b.unpacked(dir+"/dups.zst"), o.dups.String())
	b.equal("rejected", b.unpacked(dir+"/rejected.ZSTD"), o.rejected.String())
	if report.Counts != o.counts {
		b.Fatalf("counts:\n got %+v\nwant %+v", report.Counts, o.counts)
	}
}

func TestCompressedOutputIsTheSameAfterAStopAtAnyStep(t *testing.T) {
	t.Parallel()
	r := random(t)
	b := setup(t)
	inputs, o := b.oddInputs(r, true)
	opts := b.packedOptions("whole", inputs)
	var steps *atomic.Int64
	opts.failAt, steps = stopAt(0)
	_, report := b.must(opts)
	b.verifyPacked("whole", o, report)
	if frames := bytes.Count([]byte(b.content("whole/out.gz")), gzipMagic); frames < 3 {
		t.Fatalf("%d frames are too few to test anything", frames)
	}
	for n := int64(1); n <= steps.Load(); n++ {
		dir := fmt.Sprint("stopped", n)
		opts := b.packedOptions(dir, inputs)
		opts.failAt, _ = stopAt(n)
		if _, _, err := b.run(t.Context(), opts); !errors.Is(err, errInjected) {
			t.Fatalf("stop at step %d: error %v", n, err)
		}
		for _, name := range []string{"out.gz", "dups.zst", "rejected.ZSTD"} { // as a frame without an end
			if text := b.content(dir + "/" + name); text != "" {
				b.file(dir+"/"+name, text+text[:r.IntN(len(text))])
			}
		}
		opts.failAt = nil
		_, report := b.must(opts)
		b.verifyPacked(dir, o, report)
	}
}

func TestCompressedOutputWithoutContentGetsItsHeaderLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"out.gz", "out.zst"} {
		opts := Options{Format: CSV, Keys: []string{".id"}, Store: b.path("store"), Scope: name, Output: b.path(name)}
		opts.Inputs = []string{b.file("empty", "")}
		b.must(opts)
		b.equal(name, b.unpacked(name), "")
		opts.Inputs = []string{b.file("in", "id\n1\n")}
		b.must(opts)
		opts.Inputs = []string{b.file("more", "id\n1\n2\n")}
		b.must(opts)
		b.equal(name, b.unpacked(name), "id\n1\n2\n")
	}
}

// failingWriter fails after a number of bytes.
type failingWriter struct{ room int }

func (w *failingWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	w.room -= n
	if n < len(p) {
		return n, errInjected
	}
	return n, nil
}

func TestCompressedOutputThatCannotBeWrittenFailsTheRun(t *testing.T) {
	t.Parallel()
	for _, kind := range []compression{asGzip, asZstd} {
		f, err := newFramer(kind, &failingWriter{room: 20})
		if err != nil {
			t.Fatal(err)
		}
		r := random(t)
		for range 1000 {
			line := make([]byte, 1000)
			for i := range line {
				line[i] = byte(r.Uint32())
			}
			if err = f.write(line); err != nil {
				break
			}
		}
		if err == nil {
			err = f.seal()
		}
		if !errors.Is(err, errInjected) {
			t.Errorf("%s: error %v", kind, err)
		}
	}
}

func TestATruncatedCompressedInputKeepsItsWholeLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := randomLines(random(t), 3000, 2000, false)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	io.WriteString(z, text)
	z.Close()
	in := b.file("in.gz", packed.String()[:packed.Len()*2/3])
	opts := jsonl(Options{Inputs: []string{in}, Output: b.path("out"), Store: b.path("store"), OnMissing: MissingPass})
	_, report, err := b.run(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "in.gz:") || !strings.Contains(err.Error(), "gzip data ends early") {
		t.Fatalf("error %v", err)
	}
	if report.Fresh == 0 {
		t.Fatal("what was whole is not written")
	}
	whole := &oracle{onMissing: MissingPass, seen: map[string]any{}}
	whole.input(text)
	if got := b.content("out"); !strings.HasPrefix(whole.fresh.String(), got) || !strings.HasSuffix(got, "\n") {
		t.Fatal("the output is not a whole beginning of the result")
	}
	b.file("in.gz", packed.String())
	_, report = b.must(opts)
	if !report.Resumed {
		t.Error("the run was not resumed")
	}
	b.equal("output", b.content("out"), whole.fresh.String())
}
