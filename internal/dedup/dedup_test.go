package dedup

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 chooses one")

// random returns a source whose seed is printed if the test fails.
func random(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat: go test -run '^%s$' -seed %d", t.Name(), seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 1))
}

// bundle is a directory for the files of one test.
type bundle struct {
	testing.TB
	dir   string
	notes []string
}

func setup(t testing.TB) *bundle { return &bundle{TB: t, dir: t.TempDir()} }

func (b *bundle) path(name string) string { return filepath.Join(b.dir, name) }

// file writes a file and returns its path.
func (b *bundle) file(name string, content string) string {
	b.Helper()
	if err := os.WriteFile(b.path(name), []byte(content), 0o644); err != nil {
		b.Fatal(err)
	}
	return b.path(name)
}

// content returns the content of a file, or "" if there is no file.
func (b *bundle) content(name string) string {
	b.Helper()
	data, err := os.ReadFile(b.path(name))
	if err != nil && !os.IsNotExist(err) {
		b.Fatal(err)
	}
	return string(data)
}

// run runs and captures standard output.
func (b *bundle) run(ctx context.Context, opts Options) (string, Report, error) {
	var stdout bytes.Buffer
	if opts.Stdout == nil {
		opts.Stdout = &stdout
	}
	opts.Note = func(text string) { b.notes = append(b.notes, text) }
	r, err := Prepare(ctx, &opts)
	if err != nil {
		return "", Report{}, err
	}
	report, err := r.Do(ctx)
	return stdout.String(), report, err
}

// must runs and fails the test on an error.
func (b *bundle) must(opts Options) (string, Report) {
	b.Helper()
	out, report, err := b.run(b.Context(), opts)
	if err != nil {
		b.Fatalf("run: %v", err)
	}
	if c := report.Counts; c.Read != c.Fresh+c.Duplicate+c.Rejected {
		b.Fatalf("counts do not add up: %+v", c)
	}
	return out, report
}

// equal compares texts and shows the first difference.
func (b *bundle) equal(what, got, want string) {
	b.Helper()
	if got == want {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	around := func(s string) string { return s[max(0, i-60):min(len(s), i+60)] }
	b.Fatalf("%s differs at byte %d of %d (wanted %d)\n got ...%q\nwant ...%q", what, i, len(got), len(want), around(got), around(want))
}

func TestDedupOutputMatchesTheReferenceImplementation(t *testing.T) {
	t.Parallel()
	r := random(t)
	for round := range 80 {
		t.Run(fmt.Sprint(round), func(t *testing.T) { compareWithOracle(setup(t), r) })
	}
}

func compareWithOracle(b *bundle, r *rand.Rand) {
	o := oracle{
		onMissing:  []OnMissing{MissingFail, MissingReject, MissingPass, MissingHash}[r.IntN(4)],
		onMismatch: []OnMismatch{MismatchDrop, MismatchReject, MismatchPass}[r.IntN(3)],
		seen:       map[string]any{},
	}
	opts := Options{
		Keys: []string{".id"}, Format: JSONL, OnMissing: o.onMissing, OnMismatch: o.onMismatch,
		Duplicates: b.path("dups"), Rejected: b.path("rejected"), Threads: 1 + r.IntN(4),
		blockSize: 1 << (5 + r.IntN(12)), commitBytes: int64(1 + r.IntN(1<<14)),
	}
	if r.IntN(2) == 0 {
		opts.Store = b.path("store")
	}
	if r.IntN(2) == 0 {
		opts.Output = b.path("out")
	}
	going := true
	for i := range 1 + r.IntN(4) {
		text := randomLines(r, r.IntN(400), 1+r.IntN(100), r.IntN(2) == 0)
		if going {
			going = o.input(text)
		}
		opts.Inputs = append(opts.Inputs, b.file(fmt.Sprintf("in%d", i), compressed(r, text)))
	}
	out, report, err := b.run(b.Context(), opts)
	if opts.Output != "" {
		out = b.content("out")
	}
	if (err != nil) != (o.failed > 0) {
		b.Fatalf("options %+v: error %v, the oracle stops at line %d", opts, err, o.failed)
	}
	if o.failed > 0 && !strings.Contains(err.Error(), fmt.Sprintf(":%d: ", o.failed)) {
		b.Fatalf("error %q does not name line %d", err, o.failed)
	}
	b.equal("output", out, o.fresh.String())
	b.equal("duplicates", b.content("dups"), o.dups.String())
	b.equal("rejected", b.content("rejected"), o.rejected.String())
	if report.Counts != o.counts {
		b.Fatalf("options %+v:\n got %+v\nwant %+v", opts, report.Counts, o.counts)
	}
}

// compressed packs text in one of the recognised formats.
func compressed(r *rand.Rand, text string) string {
	var packed bytes.Buffer
	switch r.IntN(4) {
	case 0:
		half := len(text) / 2
		for _, part := range []string{text[:half], text[half:]} { // two members
			z := gzip.NewWriter(&packed)
			io.WriteString(z, part)
			z.Close()
		}
	case 1:
		z, err := zstd.NewWriter(&packed)
		if err != nil {
			panic(err)
		}
		io.WriteString(z, text)
		z.Close()
	default:
		return text
	}
	return packed.String()
}

const bom = "\xEF\xBB\xBF"

// jsonl runs a test with the key .id on JSON lines.
func jsonl(o Options) Options {
	o.Keys, o.Format = []string{".id"}, JSONL
	return o
}

// linesOf writes one line for each text.
func linesOf(texts ...string) string { return strings.Join(texts, "\n") + "\n" }
