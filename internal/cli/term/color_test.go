package term_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
)

func TestColorIsForTerminalsThatWantIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		columns int
		noColor bool
		env     map[string]string
		want    bool
	}{
		{columns: 80, want: true},
		{columns: 0},
		{columns: 80, noColor: true},
		{columns: 80, env: map[string]string{"NO_COLOR": "1"}},
	} {
		var stderr bytes.Buffer
		a := &term.App{Kinds: kind.All(), Redact: strings.Clone, Stderr: &stderr, Columns: c.columns, NoColor: c.noColor, Env: func(name string) string { return c.env[name] }}
		a.Complain("semel", "it broke")
		if got := strings.Contains(stderr.String(), "\x1b["); got != c.want {
			t.Errorf("%+v: %q", c, &stderr)
		}
	}
	a := &term.App{Stderr: io.Discard, Env: programtest.NoEnv}
	if a.LookAtTerminal(); a.Terminal || a.Columns != 0 {
		t.Errorf("a writer that is no file is a terminal of %d columns", a.Columns)
	}
}
