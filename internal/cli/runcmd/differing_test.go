package runcmd_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestRunLogsDuplicatesWithDifferentContent in every session, unless the session refuses them as
// mismatches. The key is the customer of an order, which is too coarse.
func TestRunLogsDuplicatesWithDifferentContent(t *testing.T) {
	t.Parallel()
	var input strings.Builder
	for i := range 10 {
		fmt.Fprintf(&input, "{\"customer\":%d,\"order\":%d}\n", i%2, i)
	}
	input.WriteString("{ \"order\": 0, \"customer\": 0 }\n") // the first one once more
	database := programtest.Servers.Database(t)
	for name, c := range map[string]struct{ stores, rest string }{
		"two phases":  {"keys: { memory: {} }", "store: keys, sink: { file: { path: OUT } }"},
		"checkpoints": {"keys: { embedded: { path: DIR/keys } }", "store: keys, sink: { file: { path: OUT } }"},
		"lossy":       {"keys: { filter: { rate: 0.0001, expect: 5000, window: 1d } }", "store: keys, lossy: true, window: 1d, sink: { file: { path: OUT } }"},
		"one transaction": {"keys: { postgres: { dsn: '" + database + "', prefix: diff } }",
			"store: keys, sink: { postgres: { store: keys, statement: 'SELECT $1::text', args: [.order] } }"},
		"mismatches": {"keys: { memory: {} }", "store: keys, on_mismatch: park, sink: { file: { path: OUT } }"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), input.String())
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), strings.NewReplacer("DIR", dir, "OUT", filepath.Join(dir, "out.jsonl")).Replace(fmt.Sprintf(`
stores: { %s }
pipelines:
  p: { source: { file: { paths: [in.jsonl] } }, key: { id: .customer }, %s }
`, c.stores, c.rest)))
			if name == "one transaction" {
				programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1: keys")
			}
			got := programtest.Run(t, "", "run", file, "--admin", "off", "--log-format", "json")
			if got.Status != term.ExitDone {
				t.Fatalf("%+v", got)
			}
			lines, differ := 0, int64(0)
			for _, line := range strings.Split(got.Stderr, "\n") {
				var has struct {
					Msg    string
					Level  string
					Count  int
					Cause  string
					Key    string
					Differ int64
				}
				if json.Unmarshal([]byte(line), &has) != nil {
					continue
				}
				if differ = max(differ, has.Differ); has.Msg == "differing" {
					lines++
					if has.Level != "WARN" || has.Count < 1 || has.Key != "0" && has.Key != "1" && !strings.Contains(has.Key, "0") && !strings.Contains(has.Key, "1") || !strings.Contains(has.Cause, "the key may be too coarse") {
						t.Errorf("the line is %s", line)
					}
				}
			}
			want := [2]int64{1, 8}
			if name == "mismatches" {
				want = [2]int64{}
			}
			if int64(lines) != want[0] || differ != want[1] {
				t.Errorf("%d lines, %d differ; want %d:\n%s", lines, differ, want, got.Stderr)
			}
		})
	}
}

// TestStatusCountsDuplicatesWithDifferentContent on a broker.
func TestStatusCountsDuplicatesWithDifferentContent(t *testing.T) {
	t.Parallel()
	w := newWindows(t, `
    key: { id: .g }
`)
	r := programtest.StartRun(t, w.file)
	for i := range 4 {
		w.send(fmt.Sprint(i), "a", 1)
	}
	w.send("0", "a", 2) // with the same content
	now := w.settled(r)
	if now.Duplicate != 4 || now.Differ != 3 {
		t.Errorf("%+v", now)
	}
	text := programtest.Run(t, "", "status", "--admin", r.Address)
	if !strings.Contains(text.Stdout, "5 settled = 1 fresh + 4 duplicate; 3 of the duplicates differ in content from the message of their key that took effect: is the key too coarse?\n") {
		t.Errorf("status: %s", text.Stdout)
	}
}
