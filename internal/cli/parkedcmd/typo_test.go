package parkedcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestAPipelineKeyWithATypingErrorIsCorrected: the wrong rule parks all messages. It binds no
// scope, and the right rule takes all messages: messages that retry processes itself, and those
// that wait for a run of files.
func TestAPipelineKeyWithATypingErrorIsCorrected(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		store string
		words []string // of retry
		want  string   // for each message
	}{
		{"embedded: { path: keys }", nil, "  copy  (no key): "},
		{"memory: {}", []string{"--wait", "10ms"}, ": queued"},
	} {
		dir := t.TempDir()
		programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"order_id\":1}\n{\"order_id\":2}\n{\"order_id\":1}\n")
		file, out := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "out.jsonl")
		write := func(rule string) {
			programtest.WriteFile(t, file, fmt.Sprintf(`
stores: { keys: { %s } }
pipelines:
  copy:
    source: { file: { paths: [in.jsonl] } }
    key: { id: %s, on_missing: park }
    store: keys
    sink: { file: { path: out.jsonl } }
    parked: { path: parked }
`, c.store, rule))
		}
		start := func() {
			t.Helper()
			programtest.Run(t, "", "run", file, "--admin", "off", "-q").Check(t, term.ExitDone)
		}
		write(".orderid")
		start()
		if left := programtest.Run(t, "", "parked", "ls", "--config", file); strings.Count(left.Stdout, ".orderid is missing: did you mean .order_id?\n") != 3 {
			t.Errorf("%s: parked ls does not name the right key: %+v", c.store, left)
		}
		write(".order_id")
		start()
		if retried := programtest.Run(t, "", append([]string{"parked", "retry", "--all", "--config", file}, c.words...)...); strings.Count(retried.Stdout, c.want) != 3 {
			t.Fatalf("%s: %+v", c.store, retried)
		}
		start()
		if got := programtest.ReadFile(t, out); strings.Count(got, "\n") != 2 {
			t.Errorf("%s: the output is %q, want two lines", c.store, got)
		}
		if left := programtest.Run(t, "", "parked", "ls", "--config", file, "--json"); left.Stdout != "" {
			t.Errorf("%s: still parked: %s", c.store, left.Stdout)
		}
	}
}
