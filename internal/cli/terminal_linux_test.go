package cli_test

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

func TestOnlyTerminalsThatUnderstandThemGetControlCharacters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		columns uint16
		kind    string
		flag    string
		want    bool
	}{
		{80, "xterm", "--threads=1", true},
		{0, "xterm", "--threads=1", false},
		{80, "dumb", "--threads=1", false},
		{80, "xterm", "--no-progress", false},
	} {
		shown := programtest.OnTerminal(t, test.columns, test.kind, "", "dedup", test.flag, "../../examples/events.jsonl")
		if got := strings.Contains(shown, "\x1b"); got != test.want || !strings.Contains(shown, "read 12  fresh ") {
			t.Errorf("%+v: %q", test, shown)
		}
	}
}
