package statuscmd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestStatusReportsErrorsThatNeedAnOperatorSoon parks a message and leaves a key
// unknown, on each kind of store. Status says so within 2 s, or a little more on a slow
// machine.
func TestStatusReportsErrorsThatNeedAnOperatorSoon(t *testing.T) {
	t.Parallel()
	doubtful := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // the request came, and no answer
	}))
	t.Cleanup(doubtful.Close)
	stores := map[string]string{
		"files": "embedded: { path: files }",
		"cache": fmt.Sprintf("redis: { url: %q, prefix: %q }", programtest.Servers.Redis(t), servicestest.Prefix()),
		"db":    fmt.Sprintf("postgres: { dsn: %q }", programtest.Servers.Database(t)),
	}
	for name, spec := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "")
			parked := "{ path: parked }"
			if name == "db" {
				parked = "{ store: db }"
			}
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { %s: { %s } }
pipelines:
  hooks: { source: { file: { paths: [in.jsonl], follow: true, state: s } }, key: { id: .id }, store: %[1]s, on_lease_expired: hold, sink: { webhook: { url: %[3]q, allow_private: true } }, parked: %[4]s }
admin: { listen: %[5]q }
`, name, spec, doubtful.URL, parked, servicestest.FreeAddr(t)))
			if name == "db" {
				programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1")
			}
			r := programtest.StartRun(t, file)
			r.Line("msg=running")
			write := func(line string) {
				t.Helper()
				f, err := os.OpenFile(in, os.O_APPEND|os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteString(line)
				}
				if err != nil || f.Close() != nil {
					t.Fatal(err)
				}
			}
			tell := func(state string, want ...string) {
				t.Helper()
				began := time.Now()
				got := programtest.Run(t, "", "status", file, "--admin", r.Address, "--json")
				for (got.Status != term.ExitFound || !programtest.ContainsAll(got.Stdout, want)) && time.Since(began) < 12*time.Second { // without a cause it looks every 15 s
					got = programtest.Run(t, "", "status", file, "--admin", r.Address, "--json")
				}
				if got.Status != term.ExitFound || !programtest.ContainsAll(got.Stdout, want) {
					t.Errorf("soon after %s: %+v", state, got)
				}
			}
			write("{}\n")
			r.Line("msg=parked", "key-missing")
			tell("a message was parked", `"parked_waiting":1,`)
			write("{\"id\":\"doubt\"}\n")
			r.Line("msg=parked", "reason=unknown")
			tell("a key became unknown", `"unknown":1,`, `"parked_waiting":2,`)
			// The commands work as printed.
			shown := programtest.Run(t, "", "status", file, "--admin", r.Address).Stdout
			for _, c := range []struct{ start, prints string }{{"hooks has parked messages: semel ", "key-missing"}, {"store " + name + " has unknown keys: semel ", "unknown"}} {
				_, command, _ := strings.Cut(shown, c.start)
				command, _, _ = strings.Cut(command, "\n")
				if got := programtest.Run(t, "", strings.Fields(command)...); got.Status != term.ExitDone || !strings.Contains(got.Stdout, c.prints) {
					t.Errorf("semel %s: %+v; status printed %s", command, got, shown)
				}
			}
		})
	}
}
