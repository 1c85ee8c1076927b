package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
)

// TestParkedMessagesOfARenamedPipelineAreListed renames a pipeline that has parked
// messages, and adds another one that uses the same directory.
func TestParkedMessagesOfARenamedPipelineAreListed(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m2", "m3")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	if got := run(t, "", "run", file); got.status != term.ExitDone {
		t.Fatalf("%+v", got)
	}
	n := len(asides(t, file))
	before := run(t, "", "parked", "ls", "--config", file)
	if before.status != term.ExitDone || strings.Contains(before.stderr, "more in") {
		t.Errorf("before: %+v", before)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, strings.Replace(string(text), "hooks:", "fresh:", 1))
	for _, words := range [][]string{{"ls"}, {"retry", "--all"}, {"skip", "--all", "--reason", "a test"}} {
		got := run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
		if want := term.Plural(n, "message") + " more in "; got.status != term.ExitDone || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, ": hooks. ") || strings.Contains(got.stdout, "hooks") {
			t.Errorf("%v: %+v; want %q", words, got, want)
		}
	}
	if got := run(t, "", "parked", "ls", "--config", file, "--json", "--quiet"); got.stdout != "" || got.stderr != "" {
		t.Errorf("as JSON: %+v", got)
	}
}
