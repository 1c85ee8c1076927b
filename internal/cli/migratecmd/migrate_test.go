package migratecmd_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/programtest"
)

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
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone,
		"applied 1: keys\napplied 2: audit\napplied 3: parked\napplied 4: makers\napplied 5: outbox\napplied 6: outbox log\napplied 7: outbox slots\napplied 8: outbox checks\nadded column origin to the table of keys\n")
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
		"up --dsn-env UNSET":                         "semel migrate up: --dsn-env: the environment variable UNSET is not set, or empty: set it, or name a file that has it with --env-file FILE\n",
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
