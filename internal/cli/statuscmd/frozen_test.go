package statuscmd_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestAFrozenServerHoldsUpNobody stops the server of a store while its pipeline has nothing to do. The page
// shows immediately what was known last, and status says after two seconds that the server is silent.
func TestAFrozenServerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() (*services.Server, string){
		"redis": func() (*services.Server, string) {
			s := servicestest.StartRedis(t, nil)
			return s, fmt.Sprintf("redis: { url: %q }", s.URL())
		},
		"postgres": func() (*services.Server, string) {
			s := servicestest.StartPostgres(t, nil)
			return s, fmt.Sprintf("postgres: { dsn: %q }", servicestest.NewDatabase(t, s.URL()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, spec := start()
			dir := t.TempDir()
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { %s } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: db, sink: { file: { path: out.jsonl } }, parked: { path: parked } }
`, spec))
			if name == "postgres" {
				programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1")
			}
			r := programtest.StartRun(t, file)
			r.Line("msg=running")
			status := func() (programtest.Outcome, time.Duration) {
				began := time.Now()
				got := programtest.Run(t, "", "status", file, "--admin", r.Address)
				return got, time.Since(began)
			}
			until := func(what string, exit int, words ...string) {
				t.Helper()
				for late := time.Now().Add(programtest.TroubleWithin); ; {
					got, _ := status()
					if got.Status == exit && programtest.ContainsAll(got.Stdout, words) {
						return
					}
					if time.Now().After(late) {
						t.Fatalf("%s: %+v", what, got)
					}
				}
			}
			until("before", term.ExitDone, "copy      ready", "1 settled", "db     ready  1 ")
			silent := regexp.MustCompile(`store db is not ready: no answer for \d s`)
			for try := 1; ; try++ { // a machine that stands still delays the answers too
				// The page keeps a status for ten seconds. It has none yet, and the process has answers.
				if err := server.Pause(); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				code, page := programtest.GetPage(t, r.Address, "/")
				shown := time.Since(began)
				got, took := status()
				if code == http.StatusOK && shown <= 1500*time.Millisecond && strings.Contains(page, "<h3><a href=\"store?name=db\">db</a>") && strings.Contains(page, "<dt>done</dt><dd>1</dd>") &&
					got.Status == term.ExitFound && took <= 4*time.Second && silent.MatchString(got.Stdout) {
					break
				}
				if try == 5 {
					t.Fatalf("the page took %v: %d %s\nstatus took %v: %+v", shown, code, page, took, got)
				}
				if err := server.Continue(); err != nil {
					t.Fatal(err)
				}
				until("between two tries", term.ExitDone, "copy      ready", "db     ready  1 ")
				<-time.After(11 * time.Second)
			}
			programtest.WaitForPage(t, r.Address, "/", programtest.TroubleWithin, http.StatusOK, "store db is not ready: ")
			if err := server.Continue(); err != nil {
				t.Fatal(err)
			}
			until("afterwards", term.ExitDone, "copy      ready", "db     ready  1 ")
		})
	}
}
