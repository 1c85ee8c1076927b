package parkedcmd_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestParkedMessagesExpireLoudly(t *testing.T) {
	t.Parallel()
	for _, parked := range []string{"path: parked", "store: db"} {
		t.Run(parked, func(t *testing.T) {
			t.Parallel()
			dir, address := t.TempDir(), servicestest.FreeAddr(t)
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "")
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores:
  keys: { embedded: { path: keys } }
  db: { postgres: { dsn: %q } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: keys, sink: { file: { path: out } }, parked: { %s, max_age: 1d } }
`, programtest.NewDatabase(t, true), parked))
			programtest.Run(t, "", "lint", file, "-q").Check(t, term.ExitFound)
			got := programtest.Run(t, "", "explain", file)
			got.Check(t, term.ExitDone)
			if !strings.Contains(got.Stdout, "a parked message that an operator does not settle within 1d is lost") {
				t.Errorf("%s", got.Stdout)
			}

			conf, err := kind.All().Read(file, programtest.NoEnv)
			if err != nil {
				t.Fatal(err)
			}
			letters, err := app.OpenDeadLetters(t.Context(), conf, conf.Pipelines[0])
			if err != nil {
				t.Fatal(err)
			}
			defer letters.Close()
			for id, age := range map[string]time.Duration{"9f2c41d07be35a1186c0de42": 25 * time.Hour, "0c51aa7e9d3b4f62a8d17e05": 23 * time.Hour} {
				p := pipeline.Parked{ID: id, Pipeline: "copy", Key: semel.Key{Scope: "copy", ID: "order-" + id[:2]}, Reason: "permanent", At: time.Now().Add(-age)}
				if err := letters.Park(t.Context(), []pipeline.Parked{p}); err != nil {
					t.Fatal(err)
				}
			}
			stop := programtest.Background(t, "run", file, "--admin", address)
			for deadline := time.Now().Add(time.Minute); !strings.Contains(fetched(t, "http://"+address+"/metrics"), `dedup_dropped_total{pipeline="copy",reason="expired"} 1`); {
				if time.Now().After(deadline) {
					t.Fatal("nothing expires")
				}
				<-time.After(50 * time.Millisecond)
			}
			stop().Check(t, term.ExitDone, `"msg":"dropped"`, `"reason":"expired"`, `order-9f`)
			if got := programtest.Run(t, "", "parked", "ls", "--config", file, "-q"); strings.Contains(got.Stdout, "9f2c41") || !strings.Contains(got.Stdout, "0c51aa") {
				t.Errorf("%s", got.Stdout)
			}
			expired := 0
			err = letters.Settled(t.Context(), 0, func(s pipeline.Settlement) bool {
				if s.ID == "9f2c41d07be35a1186c0de42" && s.How == pipeline.HowExpired {
					expired++
				}
				return true
			})
			if err != nil || expired != 1 {
				t.Errorf("%d entries of the audit log, %v", expired, err)
			}
		})
	}
}

func fetched(t *testing.T, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
