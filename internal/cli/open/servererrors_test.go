package open_test

import (
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestServerErrorsNameTheAddressAndTheRemedy(t *testing.T) {
	t.Parallel()
	redis := servicestest.StartRedis(t, nil)
	if _, err := services.RedisDo(t.Context(), redis.Addr(), "CONFIG", "SET", "requirepass", "other"); err != nil {
		t.Fatal(err)
	}
	database, err := url.Parse(programtest.Servers.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`
stores:
  gone:    { redis: { url: "redis://:canary@127.0.0.1:1" } }
  closed:  { postgres: { dsn: "postgres://u:canary@127.0.0.1:1/x" } }
  wrong:   { redis: { url: "redis://:canary@%[1]s" } }
  none:    { redis: { url: "redis://%[1]s" } }
  swapped: { redis: { url: "redis://:canary@%[2]s" } }
  role:    { postgres: { dsn: "postgres://nobody-at-all:canary@%[2]s/x?sslmode=disable" } }
  other:   { postgres: { dsn: "postgres://u:canary@%[1]s/x" } }
  mem:     { memory: {} }
  stack:   { tiered: [mem, gone] }
`, redis.Addr(), database.Host))
	patience := func(store string) time.Duration {
		if store == "other" { // no answer will come
			return time.Second
		}
		return time.Minute
	}
	for store, want := range map[string]string{
		"gone":    "connection refused: is the server up, and the port right? (gone is Redis, redis://:[hidden]@127.0.0.1:1)\n",
		"stack":   "connection refused: is the server up, and the port right? (gone is Redis, redis://:[hidden]@127.0.0.1:1)\n",
		"closed":  "connection refused: is the server up, and the port right? (closed is PostgreSQL, postgres://u:[hidden]@127.0.0.1:1/x)\n",
		"wrong":   ": password refused: check the user and the password in stores.wrong.redis.url\n",
		"none":    ": the server needs a password: write it in stores.none.redis.url\n",
		"swapped": "the server at " + database.Host + " closed the connection: does it expect TLS? Then write rediss:// instead of redis:// in stores.swapped.redis.url. Otherwise: is it up, or going down?\n",
		"role":    `role "nobody-at-all" does not exist: create the role or let it connect (pg_hba.conf), or correct stores.role.postgres.dsn` + "\n",
		"other":   ": is the server up, can this machine reach it, and is it the right kind of server? (other is PostgreSQL, postgres://u:[hidden]@" + redis.Addr() + "/x)\n",
	} {
		for _, words := range []string{"keys ls --config " + file + " --store-name " + store, "doctor " + file + " " + store} {
			var stderr strings.Builder
			a := &term.App{Kinds: kind.All(), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Env: programtest.NoEnv, Patience: patience(store), Redact: strings.Clone, Interruptible: func(r io.Reader) io.Reader { return r }}
			root := cli.NewCommand(a)
			root.SetArgs(strings.Fields(words))
			status := a.Report(t.Context(), "semel", root.ExecuteContext(t.Context()))
			if status != term.ExitFailed || !strings.HasSuffix(stderr.String(), want) || strings.Contains(stderr.String(), "canary") {
				t.Errorf("%s: status %d, %s", words, status, &stderr)
			}
		}
	}
}

func TestAServerThatStallsIsNamed(t *testing.T) {
	t.Parallel()
	redis := servicestest.StartRedis(t, nil)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { db: { redis: { url: %q, timeout: 2s } } }", redis.URL()))
	a := &term.App{Kinds: kind.All(), Env: programtest.NoEnv, Patience: time.Minute, Interruptible: func(r io.Reader) io.Reader { return r }}
	f := open.StoreFlags{App: a, File: file}
	if wrong := (term.Problems{}); !f.Find(&wrong) {
		t.Fatal(wrong)
	}
	var err error
	paused := false
	for late := time.Now().Add(time.Minute); !paused && time.Now().Before(late); { // it may stall before, too
		err = f.WithStore(t.Context(), func(s semel.Store) error {
			paused = true
			if err := redis.Pause(); err != nil {
				return err
			}
			for _, err := range s.(semel.Inspector).List(t.Context(), semel.ListOptions{}) {
				return err
			}
			return nil
		})
	}
	want := ": the server stopped answering: check it, and run the same command again, which is safe (db is Redis, " + redis.URL() + ")"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
