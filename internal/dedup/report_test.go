package dedup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

func TestReportIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.must(Options{Format: Text, Inputs: []string{b.file("in", "a\na\n")}, Report: b.path("report")})
	got := b.content("report")
	for _, want := range []string{`"read":2`, `"fresh":1`, `"duplicate":1`, `"mismatch":0`, `"missing":0`, `"rejected":0`, `"blank":0`, `"bytes_in":4`, `"bytes_out":2`, `"elapsed_seconds":`, `"resumed":false`} {
		if !strings.Contains(got, want) {
			t.Errorf("report %s has no %s", got, want)
		}
	}
}

func TestBytesOutCountTheHeaderOfARunThatWasStoppedBeforeItsFirstLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := bom + "id,v\n1,a\n2,b\n"
	opts := b.checkpointedOptions("d", []string{b.file("in", text)})
	opts.Format = CSV
	run, err := Prepare(t.Context(), &opts)
	if err != nil {
		t.Fatal(err)
	}
	// This is what the ticker does if the first line is late.
	if err := run.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := run.committer.checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	run.committer.journal.abort()
	if err := errors.Join(closeOutputs(run.outputs), run.Close()); err != nil {
		t.Fatal(err)
	}
	_, report := b.must(opts)
	b.equal("output", b.content("d/out"), text)
	if report.BytesOut != int64(len(text)) {
		t.Errorf("%+v: not %d bytes", report, len(text))
	}
}

func TestProgressEndsAtTheTotal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := random(t)
	var inputs []string
	for i := range 3 {
		inputs = append(inputs, b.file(fmt.Sprint("in", i), compressed(r, randomLines(r, 300, 100, false))))
	}
	run, err := Prepare(t.Context(), &Options{Inputs: inputs, Keys: []string{".id"}, Format: JSONL, blockSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	if p := run.Progress(); p.Done != 0 || p.Total == 0 {
		t.Errorf("before: %+v", p)
	}
	report, err := run.Do(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p := run.Progress(); p.Done != p.Total || p.Read != report.Read || p.Fresh != report.Fresh {
		t.Errorf("at the end: %+v of %+v", p, report)
	}
}

func TestReportGoesBehindALinkAndKeepsPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := b.file("in", "a\n")
	target := b.file("target", "old\n")
	if err := os.Chmod(target, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "target", "dangling": "absent"} {
		if err := os.Symlink(to, b.path(link)); err != nil {
			t.Fatal(err)
		}
		b.must(Options{Format: Text, Inputs: []string{in}, Report: b.path(link)})
		if !strings.Contains(b.content(to), `"read":1`) {
			t.Errorf("%s holds %q", to, b.content(to))
		}
		if info, err := os.Lstat(b.path(link)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("the link was replaced: %v, %v", info, err)
		}
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("permissions: %v, %v", info, err)
	}
}
