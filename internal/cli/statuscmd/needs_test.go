package statuscmd_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestStatusReportsErrorsThatNeedAnOperatorSoon parks a message and leaves a key
// unknown, on each kind of store. Status says so because it counts when it is asked: a count
// that no command asks for comes every 15 s.
func TestStatusReportsErrorsThatNeedAnOperatorSoon(t *testing.T) {
	t.Parallel()
	doubtful := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // the request came, and no answer
	}))
	t.Cleanup(doubtful.Close)
	stores := map[string]string{
		"files": "embedded: { path: files }",
		// Its own server: a count walks through the keys of all tests.
		"cache": fmt.Sprintf("redis: { url: %q }", servicestest.StartRedis(t, nil).URL()),
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
			tell := func(state, want string) {
				t.Helper()
				for late := time.Now().Add(time.Minute); ; { // a slow count is not repeated for 20 times as long
					began := time.Now()
					got := programtest.Run(t, "", "status", file, "--admin", r.Address, "--json")
					// A count that no command asked for may have come just before.
					if got.Status == term.ExitFound && strings.Contains(got.Stdout, want) && (!strings.HasPrefix(want, `"unknown"`) || !countedAt(t, got.Stdout, name).Before(began)) {
						return
					}
					if time.Now().After(late) {
						t.Fatalf("after %s, asked at %v: %+v", state, began, got)
					}
				}
			}
			programtest.AppendFile(t, in, "{}\n")
			r.Line("msg=parked", "key-missing")
			tell("a message was parked", `"parked_waiting":1,`)
			programtest.AppendFile(t, in, "{\"id\":\"doubt\"}\n")
			r.Line("msg=parked", "reason=unknown")
			tell("a key became unknown", `"unknown":1,`)
			tell("its message was parked", `"parked_waiting":2,`)
			// The commands work as printed.
			shown := programtest.WaitForStatus(t, term.ExitFound, []string{"unknown key: semel", "parked messages: semel"}, file, "--admin", r.Address)
			if first, next := strings.Index(shown, "unknown key: semel"), strings.Index(shown, "parked messages: semel"); first < 0 || next < first {
				t.Errorf("unknown keys are settled before parked messages: %s", shown)
			}
			for _, c := range []struct{ start, prints string }{{"hooks has 2 parked messages: semel ", "key-missing"}, {"store " + name + " has 1 unknown key: semel ", "unknown"}} {
				_, command, _ := strings.Cut(shown, c.start)
				command, _, _ = strings.Cut(command, "\n")
				if got := programtest.Run(t, "", strings.Fields(command)...); got.Status != term.ExitDone || !strings.Contains(got.Stdout, c.prints) {
					t.Errorf("semel %s: %+v; status printed %s", command, got, shown)
				}
			}
		})
	}
}

// countedAt returns when the keys of a store were counted, according to its status.
func countedAt(t *testing.T, status, store string) time.Time {
	t.Helper()
	for line := range strings.Lines(status) {
		var of struct {
			Store    string
			Measured time.Time
		}
		if err := json.Unmarshal([]byte(line), &of); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if of.Store == store {
			return of.Measured
		}
	}
	t.Fatalf("no store %s in %s", store, status)
	return time.Time{}
}
