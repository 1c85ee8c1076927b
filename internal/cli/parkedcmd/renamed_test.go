package parkedcmd_test

import (
	"os"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestParkedMessagesOfARenamedPipelineAreListed renames a pipeline that has parked
// messages, and adds another one that uses the same directory.
func TestParkedMessagesOfARenamedPipelineAreListed(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m2", "m3")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	if got := programtest.Run(t, "", "run", file); got.Status != term.ExitDone {
		t.Fatalf("%+v", got)
	}
	n := len(asides(t, file))
	before := programtest.Run(t, "", "parked", "ls", "--config", file)
	if before.Status != term.ExitDone || strings.Contains(before.Stderr, "more in") {
		t.Errorf("before: %+v", before)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, file, strings.Replace(string(text), "hooks:", "fresh:", 1))
	for _, words := range [][]string{{"ls"}, {"retry", "--all"}, {"skip", "--all", "--reason", "a test"}} {
		got := programtest.Run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
		if want := term.Plural(n, "message") + " more in "; got.Status != term.ExitDone || !strings.Contains(got.Stderr, want) || !strings.Contains(got.Stderr, ": hooks. ") || strings.Contains(got.Stdout, "hooks") {
			t.Errorf("%v: %+v; want %q", words, got, want)
		}
	}
	if got := programtest.Run(t, "", "parked", "ls", "--config", file, "--json", "--quiet"); got.Stdout != "" || got.Stderr != "" {
		t.Errorf("as JSON: %+v", got)
	}
}
