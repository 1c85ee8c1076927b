package cli_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/store/pgstore"
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
  cache:  { redis: { url: %q, prefix: %q, keep_ids: true } }
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

func TestStoresThatCannotBeLookedIntoSaySo(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores:
  mem:   { memory: {} }
  seen:  { filter: { rate: 0.01, expect: 1000, window: 1d } }
  files: { embedded: { path: ./files } }
  stack: { tiered: [mem, files] }
`)
	dir := filepath.Join(filepath.Dir(file), "files")
	for _, c := range []struct{ args, want string }{
		{"keys ls --store-name mem", "semel keys ls: mem lives in the memory of the process that uses it: there is nothing to look into from here\n"},
		{"keys ls --store-name seen", "semel keys ls: seen is a filter, which keeps no records: there is nothing to look into\n"},
		{"keys import --store-name mem", "semel keys import: mem is of the kind memory: imported keys would not be kept\n"},
		{"keys ls --store-name files", "semel keys ls: store files: " + dir + ": there is no store in this directory\n"},
		{"keys rm x --reason y --store-name stack", "semel keys rm: store files: " + dir + ": there is no store in this directory\n"},
		{"keys ls --store-name flies", "semel keys ls: --store-name flies: " + file + " has no such store: did you mean files?\n"},
		{"keys ls", "semel keys ls: --store-name NAME is missing: " + file + " names mem, seen, files, stack\n"},
		{"keys ls --store x", "semel keys ls: --store and --config exclude each other: name the store one way\n"},
		{"keys import --keep-ids --store-name files", "semel keys import: --keep-ids is for --store: in a configuration the store says keep_ids: true\n"},
		{"migrate sql --store-name files", "semel migrate sql: --store-name files has no schema: only a store of the kind postgres has one\n"},
	} {
		got := programtest.Run(t, "", append(strings.Fields(c.args), "--config", file)...)
		if got.Status != term.ExitUsage || got.Stderr != c.want || got.Stdout != "" {
			t.Errorf("semel %s: %+v, want %s", c.args, got, c.want)
		}
	}
	programtest.Run(t, "", "keys", "ls", "--store-name", "x").Check(t, term.ExitUsage, "--config FILE is missing: name the configuration that has the store x")
	programtest.Run(t, "", "migrate", "up").Check(t, term.ExitUsage, "--config FILE is missing: name the configuration, and the store with --store-name NAME")
	programtest.Run(t, "", "keys", "ls", "--config", file+"x").Check(t, term.ExitUsage, "semel keys ls: "+file+"x: there is no such file\n")
	for _, words := range [][]string{{"keys", "ls", "--store-name", "x"}, {"keys", "ls"}, {"migrate", "up", "--store-name", "x"}, {"migrate", "up"}} {
		got := programtest.Run(t, "", append(words, "--config", "")...)
		if got.Status != term.ExitUsage || !strings.HasSuffix(got.Stderr, `: --config "": the value is empty: is a variable not set? Give the flag a value, or leave it out`+"\n") || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("semel %s: %+v", words, got)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("looking has made a store")
	}
}

func TestConfigurationErrorsAreUsageErrorsWithTheirPlace(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), "stores:\n  a: { memroy: {} }\n  b: { tiered: [a, c] }\n")
	want := "semel doctor: " + file + ":2:8: unknown field stores.a.memroy: did you mean memory?\n" +
		"semel doctor: " + file + ":3:20: stores.b.tiered: there is no store \"c\": did you mean a?\n"
	if got := programtest.Run(t, "", "doctor", file); got.Status != term.ExitUsage || !strings.HasPrefix(got.Stderr, want[:len(want)-len("did you mean a?\n")]) {
		t.Errorf("got %+v, want %s", got, want)
	}
}

func TestMigrationsAreAppliedOnceAndListed(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores:\n  db: { postgres: { dsn: %q, schema: once, prefix: p_ } }\n  mem: { memory: {} }\n  both: { tiered: [mem, db] }\n", programtest.Servers.Database(t)))
	migrate := func(verb string, more ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append([]string{"migrate", verb, "--config", file, "--store-name", "both"}, more...)...)
	}
	got := migrate("status")
	got.Check(t, term.ExitFound, "to apply: semel migrate up\n")
	if !strings.HasPrefix(got.Stdout, "   1  missing ") {
		t.Errorf("status: %s", got.Stdout)
	}
	programtest.Run(t, "", "keys", "ls", "--config", file, "--store-name", "db").Check(t, term.ExitFailed, "semel migrate up")
	got = migrate("up", "--json")
	got.Check(t, term.ExitDone)
	if steps := programtest.JSONLines(t, got.Stdout); len(steps) == 0 || steps[0]["version"] != 1.0 || steps[0]["name"] != "keys" || steps[0]["applied"] == nil {
		t.Errorf("up --json: %s", got.Stdout)
	}
	migrate("up").Check(t, term.ExitDone, "nothing to apply: both is up to date\n")
	got = migrate("status", "--json")
	got.Check(t, term.ExitDone)
	for _, step := range programtest.JSONLines(t, got.Stdout) {
		if step["applied"] == nil {
			t.Errorf("status --json: %s", got.Stdout)
		}
	}
	programtest.Run(t, "", "keys", "ls", "--config", file, "--store-name", "both").Check(t, term.ExitDone)
}

// TestTablesOfANewerVersionAreNamed runs pipelines whose keys, or parked messages, are in
// tables with a step that this version does not know.
func TestTablesOfANewerVersionAreNamed(t *testing.T) {
	t.Parallel()
	database, dir := programtest.Servers.Database(t), t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: %q } }, keys: { embedded: { path: keys } } }
pipelines:
  shared: { source: { file: { paths: [in.jsonl], state: s } }, key: { id: .id }, store: db, sink: { stdout: {} }, parked: { path: p } }
  parks:  { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, store: keys, sink: { file: { path: out } }, parked: { store: db } }
  other:  { source: { file: { paths: [in.jsonl] } }, key: { id: .id, scope: o }, store: keys, sink: { file: { path: out2 } }, parked: { path: p } }
`, database))
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 1")
	if _, err := programtest.Connect(t, database)(t).Exec(t.Context(), "INSERT INTO semel_migrations (version, name) VALUES (99, 'colours')"); err != nil {
		t.Fatal(err)
	}
	got := programtest.Run(t, "", "migrate", "status", "--config", file, "--store-name", "db")
	got.Check(t, term.ExitDone, "a newer version of semel applied 1 step that this program does not know: install the same version of semel here\n")
	if !strings.Contains(got.Stdout, "\n  99  ") || !strings.Contains(got.Stdout, "  colours\n") {
		t.Errorf("status: %s", got.Stdout)
	}
	const found = "a newer version of semel changed the tables, by step 99 (colours)"
	for _, args := range [][]string{{"doctor", file, "db"}, {"run", file, "--check"}} {
		if got := programtest.Run(t, "", args...); !strings.Contains(got.Stdout, found) || strings.Contains(got.Stdout, "6 steps") {
			t.Errorf("%s: %+v", args, got)
		}
	}
	for pipeline, warned := range map[string]bool{"shared": true, "parks": true, "other": false} {
		got := programtest.Run(t, "", "run", file, pipeline, "--admin", "off")
		got.Check(t, term.ExitDone, `"fresh":1`)
		if strings.Contains(got.Stderr, `"msg":"the program is older than its tables"`) != warned || strings.Contains(got.Stderr, `"store":"db","found":"`+found) != warned {
			t.Errorf("run %s: %s", pipeline, got.Stderr)
		}
	}
}

// TestMigrationGivesUpWaitingForALock migrates while another migration, or the
// server, hangs.
func TestMigrationGivesUpWaitingForALock(t *testing.T) {
	t.Parallel()
	address := programtest.Servers.Database(t)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores:\n  db: { postgres: { dsn: %q } }\n  redis: { postgres: { dsn: \"postgres://u:canary@%s/x\" } }\n", address, strings.TrimPrefix(programtest.Servers.Redis(t), "redis://")))
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "BEGIN; SELECT pg_advisory_xact_lock(x'73656d656c'::bigint)"); err != nil {
		t.Fatal(err)
	}
	for store, want := range map[string]string{
		"db":    "semel: migrate db: the applied steps stay; run the same command again to resume: waited 5s for a lock of another migration, or of a transaction that uses these tables; ",
		"redis": "is it the right kind of server? (redis is PostgreSQL, ",
	} {
		var stderr strings.Builder
		a := &term.App{Kinds: kind.All(), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Env: programtest.NoEnv, Patience: 5 * time.Second, Redact: strings.Clone, Interruptible: func(r io.Reader) io.Reader { return r }}
		root := cli.NewCommand(a)
		root.SetArgs([]string{"migrate", "up", "--config", file, "--store-name", store})
		err := root.ExecuteContext(t.Context())
		if status := a.Report(t.Context(), "semel", err); status != term.ExitFailed || !strings.Contains(stderr.String(), want) || strings.Contains(stderr.String(), "canary") {
			t.Errorf("%s: status %d, %s", store, status, &stderr)
		}
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

func TestMigrationsArePrintedWithoutAServer(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), "stores: { db: { postgres: { dsn: 'host=nowhere.invalid', schema: once, partitions: 2 } } }")
	got := programtest.Run(t, "", "migrate", "sql", "--config", file)
	got.Check(t, term.ExitDone)
	for _, want := range []string{`CREATE TABLE "once"."semel_keys"`, "REMAINDER 1", `CREATE TABLE "once"."semel_audit"`} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("the script lacks %s:\n%s", want, got.Stdout)
		}
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

func TestImportCountsWhatAStoreNoLongerAnswersFor(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: %q, cleanup: message-time } } }", programtest.Servers.Database(t)))
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1")
	old := `{"id":"01890a5d-ac96-774b-bcce-b302099a8057"}`
	programtest.Run(t, old, "keys", "import", "--config", file).Check(t, term.ExitDone, "read 1  imported 0  already there 0  expired 1\n")
}

func TestAddressesAreCheckedWithoutConnecting(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), `stores:
  port:  { postgres: { dsn: "postgres://u:canary-7f3a@h:port/db" } }
  mode:  { postgres: { dsn: "postgres://u:canary-7f3a@h/db?sslmode=of" } }
  redis: { redis: { url: "redis://u:canary-7f3a@h:port/0" } }
  base:  { redis: { url: "redis://u:canary-7f3a@h/first" } }
  files: { redis: { url: "rediss://h", tls: { ca: ./none.pem } } }
  fine:  { postgres: { dsn: "host=h password='canary 7f3a'" } }
`)
	for _, args := range [][]string{{"doctor", file}, {"keys", "ls", "--config", file, "--store-name", "fine"}, {"migrate", "sql", "--config", file, "--store-name", "fine"}} {
		got := programtest.Run(t, "", args...)
		got.Check(t, term.ExitUsage,
			file+":2:3: stores.port.postgres.dsn: invalid port\n",
			file+":3:3: stores.mode.postgres.dsn: failed to configure TLS (sslmode is invalid)\n",
			file+":4:3: stores.redis.redis.url: the URL has a host that cannot be read; ",
			file+":5:3: stores.base.redis.url: the URL has a database that is not a number; ")
		// A command for one store must not need the files of other stores.
		all := args[0] == "doctor"
		if missing := strings.Contains(got.Stderr, file+":6:3: stores.files.redis.tls: ") && strings.Contains(got.Stderr, "none.pem: no such file or directory\n"); missing != all {
			t.Errorf("%v: a file that is missing is reported: %t; %s", args, missing, got.Stderr)
		}
		if strings.Contains(got.Stderr, "canary") || strings.Contains(got.Stderr, "stores.fine") {
			t.Errorf("%s", got.Stderr)
		}
	}
}

func TestMigrateWithoutAConfiguration(t *testing.T) {
	t.Parallel()
	address := programtest.Servers.Database(t)
	migrate := func(args string) programtest.Outcome {
		t.Helper()
		env := func(name string) string {
			return map[string]string{"DATABASE_URL": address, "WRONG": "postgres://u:canary@127.0.0.1:1/x", "BAD": "mysql://u:canary@h/x"}[name]
		}
		got := programtest.RunEnv(t, env, "", append([]string{"migrate"}, strings.Fields(args)...)...)
		if strings.Contains(got.Stdout+got.Stderr, "canary") {
			t.Errorf("%s shows a password: %+v", args, got)
		}
		return got
	}
	migrate("status --dsn-env DATABASE_URL").Check(t, term.ExitFound, "to apply: semel migrate up")
	migrate("up --dsn-env DATABASE_URL --schema public --prefix lib_ --keep-ids").Check(t, term.ExitDone, "applied 1: keys\n")
	migrate("up --dsn-env DATABASE_URL --prefix lib_ --keep-origin").Check(t, term.ExitDone, "added column origin to the table of keys\n")
	migrate("up --dsn-env DATABASE_URL --prefix lib_ --keep-ids").Check(t, term.ExitDone, "nothing to apply: DATABASE_URL is up to date\n")
	migrate("status --dsn-env DATABASE_URL --prefix lib_").Check(t, term.ExitDone)
	store, err := pgstore.Connect(t.Context(), address, &pgstore.Options{Names: pgstore.Names{Prefix: "lib_"}, KeepIDs: true})
	if err != nil {
		t.Fatalf("a program cannot use the tables: %v", err)
	}
	_ = store.Close()
	if got := migrate("sql --dsn-env UNSET --prefix x_ --cleanup message-time --partitions 8"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "x_keys") {
		t.Errorf("sql: %+v", got)
	}
	for args, want := range map[string]string{
		"up --dsn-env UNSET":                         "semel migrate up: --dsn-env: the environment variable UNSET is not set, or empty: set it\n",
		"up --dsn-env postgres://u:canary@h/x":       "semel migrate up: --dsn-env: expected the name of an environment variable, like DATABASE_URL, and not the address itself\n",
		"up --dsn-env BAD":                           "semel migrate up: --dsn-env: not an address of a PostgreSQL server",
		"up --dsn-env DATABASE_URL --config x":       "semel migrate up: --dsn-env and --config exclude each other: name the database one way\n",
		"up --dsn-env DATABASE_URL --partitions x":   "semel migrate up: --partitions: ",
		"up --dsn-env DATABASE_URL --cleanup dleete": "semel migrate up: --cleanup: \"dleete\": did you mean delete?",
		"up --dsn-env DATABASE_URL --message-age 1d": "semel migrate up: --message-age: it needs cleanup: message-time",
		"up --prefix x_":                             "semel migrate up: --prefix is for --dsn-env: in a configuration the store has this field\n",
		"up":                                         "or a database with --dsn-env NAME\n",
	} {
		migrate(args).Check(t, term.ExitUsage, want)
	}
	migrate("up --dsn-env WRONG").Check(t, term.ExitFailed, "is the server up, and the port right? (WRONG is PostgreSQL, postgres://u:[hidden]@127.0.0.1:1/x)")
}
