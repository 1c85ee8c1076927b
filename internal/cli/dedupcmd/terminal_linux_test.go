package dedupcmd_test

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

func TestDedupSaysThatItReadsTheTerminal(t *testing.T) {
	t.Parallel()
	const ctrlD = "\x04"
	const note = "semel dedup: reading lines from this terminal: end them with Ctrl-D"
	for _, args := range [][]string{{"dedup"}, {"dedup", "-"}} {
		if shown := programtest.OnTerminal(t, 80, "dumb", "a\na\n"+ctrlD, args...); !strings.Contains(shown, note) || !strings.Contains(shown, "read 2  fresh 1  ") {
			t.Errorf("%q: %q", args, shown)
		}
	}
	for _, args := range [][]string{{"dedup", "../../../examples/events.jsonl"}, {"dedup", "--quiet"}} {
		if shown := programtest.OnTerminal(t, 80, "dumb", ctrlD, args...); strings.Contains(shown, note) {
			t.Errorf("%q: %q", args, shown)
		}
	}
}
