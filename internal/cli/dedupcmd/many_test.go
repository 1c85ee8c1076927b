package dedupcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestDedupReadsManyTinyInputsInTheirOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var want strings.Builder
	for i := range 1500 {
		text := fmt.Sprintf("{\"id\":%d}\n", i%1000)
		if i < 1000 {
			want.WriteString(text)
		}
		if i%7 == 0 {
			text = strings.TrimSuffix(text, "\n") // a line end is added
		}
		programtest.WriteFile(t, filepath.Join(dir, fmt.Sprintf("in%04d.jsonl", i)), text)
	}
	for _, run := range [][2]string{{"", "read 1,500  "}, {"", "1,500 lines: skipped; --again reads them"}, {"--again", "read 1,500  "}} {
		o := programtest.Shell(t, dir, "semel dedup -k .id --threads 4 --store store --output out "+run[0]+" in*.jsonl")
		o.Check(t, term.ExitDone, run[1])
		if got := programtest.ReadFile(t, filepath.Join(dir, "out")); got != want.String() {
			t.Fatalf("output of %d bytes, want %d", len(got), want.Len())
		}
	}
}

func TestDedupWithLittleMemoryKeepsAllKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const n = 100_000
	var ids strings.Builder
	for i := range n {
		fmt.Fprintf(&ids, "{\"id\":%d}\n", i)
	}
	const same = "{\"id\":7}\n"
	programtest.WriteFile(t, filepath.Join(dir, "ids"), ids.String())
	programtest.WriteFile(t, filepath.Join(dir, "same"), strings.Repeat(same, n))
	for inputs, want := range map[string]string{
		"ids same": ids.String(),
		"same ids": same + strings.Replace(ids.String(), same, "", 1),
	} {
		o := programtest.Shell(t, dir, "GOMEMLIMIT=16MiB semel dedup -k .id "+inputs)
		o.Check(t, term.ExitDone, "read 200,000  fresh 100,000  duplicates 100,000  ")
		if o.Stdout != want {
			t.Errorf("%s: output of %d bytes, want %d", inputs, len(o.Stdout), len(want))
		}
	}
}
