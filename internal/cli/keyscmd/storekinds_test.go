package keyscmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// sharedConfig writes a configuration with every kind of store on real servers,
// with tables. It returns the file name.
func sharedConfig(t *testing.T) string {
	t.Helper()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), fmt.Sprintf(`
stores:
  mem:    { memory: {} }
  seen:   { filter: { rate: 0.01, expect: 1000, window: 1d } }
  files:  { embedded: { path: ./files, keep_ids: true } }
  cache:  { redis: { url: %q, prefix: %q, keep_ids: true, timeout: 30s } }
  db:     { postgres: { dsn: %q, keep_ids: true, partitions: 4 } }
  second: { redis: { url: %q, prefix: %q, timeout: 30s } }
  bits:   { filter: { redis: second, rate: 0.01, expect: 1000, window: 1h } }
  both:   { tiered: [second, db] }
  deep:   { tiered: { layers: [bits, mem, files], sees_every_writer: true, max_age: forever } }
`, programtest.Servers.Redis(t), servicestest.Prefix(), programtest.Servers.Database(t), programtest.Servers.Redis(t), servicestest.Prefix()))
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 1: keys\n")
	return file
}

// leaveUnknown adds a key whose outcome is unknown to a store.
func leaveUnknown(t *testing.T, file, store, id string) {
	t.Helper()
	conf, err := kind.All().Read(file, programtest.NoEnv)
	if err != nil {
		t.Fatal(err)
	}
	s, opened, err := app.OpenStore(t.Context(), conf, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	key := semel.Key{Scope: keyrecord.DefaultScope, ID: id}
	claims := []semel.ClaimRequest{{Key: key, Owner: semel.Owner{Name: "worker-7", Nonce: uint64(time.Now().UnixNano())}, Lease: time.Hour, Window: semel.Forever, Hold: true}}
	answers := make([]semel.ClaimAnswer, 1)
	if err := s.Claim(t.Context(), claims, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatal(err, answers[0])
	}
	released := make([]error, 1)
	release := []semel.ReleaseRequest{{Key: key, Token: answers[0].Claim.Token, Unknown: true}}
	if err := s.Release(t.Context(), release, released); err != nil || released[0] != nil {
		t.Fatal(err, released[0])
	}
}

func TestEveryVerbOfKeysWorksOnEveryKindOfStore(t *testing.T) {
	t.Parallel()
	file := sharedConfig(t)
	for _, store := range []string{"files", "cache", "db", "both", "deep"} {
		t.Run(store, func(t *testing.T) {
			keys := func(words ...string) programtest.Outcome {
				t.Helper()
				return programtest.Run(t, strings.ReplaceAll(`{"id":"ID-1"}`+"\n"+`{"id":["ID-2",7],"window":"30d"}`, "ID", store),
					append([]string{"keys", words[0], "--config", file, "--store-name", store}, words[1:]...)...)
			}
			keys("import").Check(t, term.ExitDone, "read 2  imported 2  already there 0")
			keys("import").Check(t, term.ExitDone, "read 2  imported 0  already there 2")
			leaveUnknown(t, file, store, store+"-3")

			got := keys("ls", "--json", "--state", "done")
			got.Check(t, term.ExitDone)
			if n := len(programtest.JSONLines(t, got.Stdout)); n < 2 {
				t.Errorf("ls: %s", got.Stdout)
			}
			if got = keys("export", "--state", "unknown"); !strings.Contains(got.Stdout, `"id":"`+store+`-3"`) || got.Status != term.ExitDone {
				t.Errorf("export: %+v", got)
			}
			if got = keys("stats", "--json"); got.Status != term.ExitDone || len(programtest.JSONLines(t, got.Stdout)) != 1 {
				t.Errorf("stats: %+v", got)
			}
			if got = keys("show", store+"-2", "7", "--json"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, `"state":"done"`) {
				t.Errorf("show: %+v", got)
			}
			keys("show", "none").Check(t, term.ExitFailed, "none is absent: the store "+store+" has no such key")

			keys("resolve", store+"-1", "--as", "absent", "--reason", "x").Check(t, term.ExitFailed, store+"-1 is done, not unknown")
			keys("resolve", store+"-3", "--as", "done", "--reason", "the bank has it").Check(t, term.ExitDone, "resolved "+store+"-3 as done")
			keys("rm", store+"-1", "--reason", "sent twice").Check(t, term.ExitDone, "forgot "+store+"-1, which was done")
			keys("show", store+"-1").Check(t, term.ExitFailed, "is absent")
			if got = keys("show", store+"-3"); !strings.Contains(got.Stdout, "state        done\n") {
				t.Errorf("after resolve: %+v", got)
			}

			if got = keys("purge"); store == "cache" {
				got.Check(t, term.ExitFailed, "the store cache is of the kind redis, which cannot purge: ")
			} else {
				got.Check(t, term.ExitDone, "expired keys")
			}
		})
	}
}

// TestChangesInSharedStoresAreInTheAuditLogThere reads the logs as the operators
// of these servers would.
func TestChangesInSharedStoresAreInTheAuditLogThere(t *testing.T) {
	t.Parallel()
	file := sharedConfig(t)
	conf, err := kind.All().Read(file, programtest.NoEnv)
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range []string{"cache", "db", "both"} {
		programtest.Run(t, `{"id":"audited"}`, "keys", "import", "--config", file, "--store-name", store).Check(t, term.ExitDone, "read 1")
		programtest.Run(t, "", "keys", "rm", "audited", "--reason", "in "+store, "--config", file, "--store-name", store).Check(t, term.ExitDone, "forgot audited")
	}
	cache, _ := conf.Store("cache")
	address := strings.TrimPrefix(programtest.Servers.Redis(t), "redis://")
	log, err := services.RedisDo(t.Context(), address, "LRANGE", cache.Spec.(*redis.Store).Prefix+"audit", "0", "-1")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%s", log); strings.Count(text, `"reason":"in cache"`) != 1 || strings.Count(text, `"outcome":"done"`) != 1 {
		t.Errorf("the log in Redis: %s", text)
	}
	db, _ := conf.Store("db")
	var reasons []string
	programtest.QueryRow(t, db.Spec.(*postgres.Store).DSN.Reveal(), &reasons, `SELECT array_agg(line->>'reason' ORDER BY number) FILTER (WHERE line->>'verb' = 'rm') FROM semel_audit`)
	if strings.Join(reasons, "; ") != "in db; in both" {
		t.Errorf("the log in PostgreSQL has %q", reasons)
	}
}

func TestCompactKeysAreListedWithoutADigest(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { r: { redis: { url: %q, prefix: %q, compact: { window: 1h } } } }", programtest.Servers.Redis(t), servicestest.Prefix()))
	programtest.Run(t, `{"id":"a","window":"1h"}`, "keys", "import", "--config", file).Check(t, term.ExitDone, "imported 1")
	got := programtest.Run(t, "", "keys", "ls", "--config", file)
	got.Check(t, term.ExitDone)
	if strings.Contains(got.Stdout, strings.Repeat("0", 32)) || !strings.Contains(got.Stdout, "  -\n") {
		t.Errorf("ls: %s", got.Stdout)
	}
}

func TestRemovalReachesCopiesOfKeysThatWereRemovedDirectly(t *testing.T) {
	t.Parallel()
	file := sharedConfig(t)
	keys := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, `{"id":"copied"}`, append([]string{"keys", "--config", file, "--store-name"}, words...)...)
	}
	keys("both", "import").Check(t, term.ExitDone, "imported 1")
	keys("db", "rm", "copied", "--reason", "past the layers").Check(t, term.ExitDone, "forgot copied", "db is a layer of both, and other layers may still know the key. The same command with --store-name both reaches all layers\n")
	inRedis := func(state string) {
		t.Helper()
		if got := programtest.Run(t, "", "keys", "--config", file, "--store-name", "second", "show", "copied"); !strings.Contains(got.Stdout+got.Stderr, state) {
			t.Errorf("the copy in Redis is not %s: %+v", state, got)
		}
	}
	inRedis("done")
	keys("both", "rm", "copied", "--reason", "permanently").Check(t, term.ExitFailed, "the layers above have no copy", "copied is absent")
	inRedis("claimed") // so that a delayed copy cannot come back
	keys("both", "import").Check(t, term.ExitDone, "imported 1")
	keys("both", "resolve", "none", "--as", "done", "--reason", "x").Check(t, term.ExitFailed, "none is absent")
	keys("second", "import").Check(t, term.ExitUsage, "second is a layer of both, which would drop messages on that record alone: write --store-name both\n")
}

func TestImportCountsKeysThatAreTooOldForTheStore(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: %q, cleanup: message-time } } }", programtest.Servers.Database(t)))
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1")
	old := `{"id":"01890a5d-ac96-774b-bcce-b302099a8057"}`
	programtest.Run(t, old, "keys", "import", "--config", file).Check(t, term.ExitDone, "read 1  imported 0  already there 0  expired 1\n")
}
