package runcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// A filter alone drops new messages at no more than its stated rate, and every
// verb says so.
func TestAPipelineWithAFilterAloneLosesNoMoreThanItsRate(t *testing.T) {
	t.Parallel()
	redis := programtest.Servers.Redis(t)
	for name, filter := range map[string]string{
		"memory": "filter: { rate: 0.02, expect: 5000, window: 1d }",
		"redis":  "filter: { redis: server, rate: 0.02, expect: 5000, window: 1d }",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const keys = 5000
			dir := t.TempDir()
			var input strings.Builder
			for i := range 2 * keys {
				fmt.Fprintf(&input, "{\"id\":%d}\n", i%keys)
			}
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), input.String())
			text := fmt.Sprintf(`
stores:
  server: { redis: { url: %q, prefix: %q } }
  seen: { %s }
pipelines:
  clicks: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, window: 1d, store: seen, lossy: true, sink: { file: { path: out.jsonl } } }
`, redis, servicestest.Prefix(), filter)
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), text)
			const lost = "about 0.02 of the new messages are dropped"
			for verb, want := range map[string][]string{
				"lint":    {"pipelines.clicks.store: seen is a filter with rate 0.02", lost},
				"explain": {"filter alone", lost, "more than 5000 keys come within the window", "because a filter keeps no claims"},
				"doctor":  {"the filter decides alone", lost},
			} {
				got := programtest.Run(t, "", verb, file)
				for _, words := range want {
					if !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), words) {
						t.Errorf("%s does not say %q:\n%s", verb, words, got.Stdout)
					}
				}
			}
			programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitDone, "new messages are lost: a filter decides alone", `"rate":0.02`)
			seen := map[string]int{}
			for line := range strings.Lines(programtest.ReadFile(t, filepath.Join(dir, "out.jsonl"))) {
				seen[line]++
			}
			for line, n := range seen {
				if n != 1 {
					t.Fatalf("%q was delivered %d times", line, n)
				}
			}
			if n := keys - len(seen); n > keys*2*2/100 {
				t.Errorf("%d of %d new messages were dropped, which is more than twice the rate", n, keys)
			}
			file = programtest.WriteFile(t, file, strings.Replace(text, " lossy: true,", "", 1))
			programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitUsage, "seen is a filter with rate 0.02, and lossy is not set", "write lossy: true")
		})
	}
}
