package keyrecord

import (
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
)

func TestPrintedCommandsHaveTheWordsOfTheKey(t *testing.T) {
	t.Parallel()
	words := []string{"a", "", "it's", "\x1b[2J\n7'\\", "caf\u00e9 \u009b", "\xff\xfe", "$(x) \"y\" \x7f"}
	line := term.ShellLine(words...)
	if shown := term.OneLine(line); shown != line || strings.ContainsFunc(line, unicode.IsControl) {
		t.Errorf("%q is shown as %q", line, shown)
	}
	got, err := exec.CommandContext(t.Context(), "bash", "-c", `printf '%s|' `+line).Output()
	if want := strings.Join(words, "|") + "|"; err != nil || string(got) != want {
		t.Errorf("%s: %q %v, want %q", line, got, err, want)
	}
	// No command line can have the byte 0.
	record := semel.Record{Key: semel.Key{Scope: "a\x00b", ID: "c"}, Digest: semel.Digest{1}, State: semel.Done}
	if list := Commands(&record, nil); len(list) != 1 || list[0].Line != "semel keys rm --digest "+record.Digest.String()+" --reason 'process it again'" {
		t.Errorf("%q", list)
	}
}
