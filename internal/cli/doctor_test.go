package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// queryRow reads one value from a database.
func queryRow(t *testing.T, address string, value any, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql).Scan(value); err != nil {
		t.Fatal(err)
	}
}

func TestDoctorReportsOnStoresWithoutServers(t *testing.T) {
	t.Parallel()
	dir := mixedStore(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`
stores:
  mem:   { memory: {} }
  other: { memory: {} }
  files: { embedded: { path: %q } }
  fast:  { embedded: { path: ./fast, fsync: never } }
  stack: { tiered: [mem, files] }
  loose: { tiered: { layers: [other, fast] } }
`, dir))
	got := run(t, "", "doctor", file, "stack")
	got.check(t, term.ExitDone, "3 stores: 3 fine, 1 to note, 0 with a warning, 0 broken\n")
	for _, want := range []string{"stack (tiered)\n  fine     decides                      files\n", "mem (memory)\n  notice   memory ", "files (embedded)\n  fine     fsync                        always\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, got.stdout)
		}
	}
	got = run(t, "", "doctor", file, "loose", "--json")
	got.check(t, term.ExitFound, "1 with a warning")
	found := map[string]string{}
	for _, line := range records(t, got.stdout) {
		found[line["store"].(string)+"/"+line["subject"].(string)] = line["severity"].(string)
	}
	if found["loose/decides"] != "fine" || found["fast/fsync"] != "warning" || found["fast/directory"] != "notice" || found["other/memory"] != "notice" {
		t.Errorf("found %v", found)
	}
	run(t, "", "doctor").check(t, term.ExitUsage, "semel doctor: FILE is missing: name the configuration\n")
	run(t, "", "doctor", file, "stakc").check(t, term.ExitUsage, "stakc: "+file+" has no such store or pipeline: did you mean stack?\n")
	run(t, "", "doctor", file, "a", "b").check(t, term.ExitUsage, `unexpected argument "b"`)
}

func TestDoctorTellsADamagedStoreFromAMissingOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, filepath.Join(dir, "c.yaml"), "stores: { keys: { embedded: { path: keys } } }\n")
	got := run(t, "", "doctor", file)
	got.check(t, term.ExitDone, "0 broken")
	if !strings.Contains(got.stdout, "the first run creates it") {
		t.Errorf("%+v", got)
	}
	if err := os.Mkdir(filepath.Join(dir, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	segment := writeFile(t, filepath.Join(dir, "keys", "00000001.seg"), "x")
	got = run(t, "", "doctor", file)
	got.check(t, term.ExitFound, "1 broken")
	if !strings.Contains(got.stdout, "STORE is corrupt at offset 0: the file is missing, but the directory has segments") {
		t.Errorf("%+v", got)
	}
	if err := os.Rename(segment, filepath.Join(dir, "keys", "letter.txt")); err != nil {
		t.Fatal(err)
	}
	got = run(t, "", "doctor", file)
	got.check(t, term.ExitFound, "1 broken")
	if !strings.Contains(got.stdout, `is not a store and not empty: it contains "letter.txt"`) {
		t.Errorf("%+v", got)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "keys")); err != nil || len(entries) != 1 {
		t.Errorf("something was made: %v %v", entries, err)
	}
}

func TestDoctorFindsWhatRedisMayForget(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "no"}})
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`
stores:
  alone: { redis: { url: %q } }
  layer: { redis: { url: %q, prefix: "layer:" } }
  files: { embedded: { path: ./files } }
  stack: { tiered: [layer, files] }
`, server.URL(), server.URL()))
	severity := func(got outcome) string {
		t.Helper()
		for _, line := range records(t, got.stdout) {
			if line["subject"] == "maxmemory-policy" {
				if line["found"] != "allkeys-lru" || line["cost"] == "" || line["remedy"] == "" {
					t.Errorf("the finding: %v", line)
				}
				return line["severity"].(string)
			}
		}
		t.Errorf("the policy was not looked at: %+v", got)
		return ""
	}
	got := run(t, "", "doctor", file, "alone", "--json")
	got.check(t, term.ExitFound, "broken")
	if s := severity(got); s != "broken" {
		t.Errorf("alone the policy is %s", s)
	}
	got = run(t, "", "doctor", file, "stack", "--json")
	got.check(t, term.ExitDone, "0 with a warning, 0 broken")
	if s := severity(got); s != "notice" {
		t.Errorf("in a layer above what decides the policy is %s", s)
	}
	size := func() any {
		t.Helper()
		n, err := services.RedisDo(t.Context(), server.Addr(), "DBSIZE")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := size(); n != int64(0) {
		t.Errorf("the doctor wrote %v names", n)
	}
	run(t, `{"id":"a"}`, "keys", "import", "--config", file, "--store-name", "alone").check(t, term.ExitDone, "imported 1")
	other := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { alone: { redis: { url: %q, compact: { window: 1h } } } }", server.URL()))
	got = run(t, "", "doctor", other, "--json")
	got.check(t, term.ExitFound, "2 broken")
	if !strings.Contains(got.stdout, `"severity":"broken","subject":"prefix","found":"Options.Compact: the prefix was first used without it"`) {
		t.Errorf("with other terms: %s", got.stdout)
	}
}

func TestDoctorFindsWhatPostgresMayForget(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"synchronous_commit": "off"}})
	const text = "stores: { db: { postgres: { dsn: %q } } }"
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(text, server.URL()))
	got := run(t, "", "doctor", file)
	got.check(t, term.ExitFound, "1 broken\n")
	if !strings.Contains(got.stdout, "  broken   open ") || !strings.Contains(got.stdout, "do:   semel migrate up --config "+file+" --store-name db\n") {
		t.Errorf("without tables:\n%s", got.stdout)
	}
	run(t, "", "migrate", "up", "--config", file).check(t, term.ExitDone, "applied 1")
	got = run(t, "", "doctor", file, "--json")
	got.check(t, term.ExitFound, "1 broken\n")
	if !strings.Contains(got.stdout, `"severity":"broken","subject":"synchronous_commit","found":"off"`) {
		t.Errorf("with tables:\n%s", got.stdout)
	}
	separator := "?"
	if strings.Contains(server.URL(), "?") {
		separator = "&"
	}
	strict := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(text, server.URL()+separator+"default_transaction_isolation=serializable"))
	got = run(t, "", "doctor", strict)
	got.check(t, term.ExitFound, "1 broken\n")
	if !strings.Contains(got.stdout, "serializable") || !strings.Contains(got.stdout, "set default_transaction_isolation to 'read committed'") {
		t.Errorf("with another isolation:\n%s", got.stdout)
	}
}

// TestNothingShowsASecret runs every verb that reads a configuration, against
// servers that refuse the password or do not exist. It looks for the password in
// all output.
func TestNothingShowsASecret(t *testing.T) {
	t.Parallel()
	const canary = "canary-5e1f"
	redis := servicestest.StartRedis(t, nil)
	if _, err := services.RedisDo(t.Context(), redis.Addr(), "CONFIG", "SET", "requirepass", "other"); err != nil {
		t.Fatal(err)
	}
	postgres := strings.TrimPrefix(servers.Database(t), "postgres://postgres@")
	closed := servicestest.FreeAddr(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "secret"), canary+"\n")
	host, port, _ := net.SplitHostPort(closed)
	for i, store := range []string{
		fmt.Sprintf(`redis: { url: "redis://:%s@%s" }`, canary, redis.Addr()),
		fmt.Sprintf(`redis: { url: "redis://app:${file:secret}@%s/0" }`, redis.Addr()),
		fmt.Sprintf(`redis: { cluster: [%q], username: app, password: %s }`, redis.Addr(), canary),
		fmt.Sprintf(`redis: { sentinel: { addresses: [%q], master: m, password: "${env:CANARY}" }, password: "${env:CANARY}" }`, redis.Addr()),
		fmt.Sprintf(`redis: { url: "rediss://:%s@%s", timeout: 300ms }`, canary, redis.Addr()),
		fmt.Sprintf(`redis: { url: "redis://:%s@%s", timeout: 300ms }`, canary, closed),
		fmt.Sprintf(`redis: { url: "redis://:%s@[::bad", timeout: 300ms }`, canary),
		fmt.Sprintf(`postgres: { dsn: "postgres://nobody:%s@%s" }`, canary, postgres),
		fmt.Sprintf(`postgres: { dsn: "postgres://nobody:${env:CANARY}@%s" }`, postgres),
		fmt.Sprintf(`postgres: { dsn: "postgres://postgres:%s@%s/none?sslmode=disable&sslpassword=%s" }`, canary, closed, canary),
		fmt.Sprintf(`postgres: { dsn: "host=%s port=%s user=app password='%s' dbname=x" }`, host, port, canary),
		fmt.Sprintf(`postgres: { dsn: "host=%s port=bad user=app password='%s'" }`, host, canary),
		fmt.Sprintf(`postgres: { dsn: "postgres://u:%s@%s:bad/x?sslmode=nope" }`, canary, host),
		`postgres: { dsn: "${env:CANARY}" }`,
	} {
		file := writeFile(t, filepath.Join(dir, fmt.Sprintf("c%d.yaml", i)), "stores: { s: { "+store+" } }")
		for _, args := range []string{
			"keys ls", "keys stats --json", "keys show x", "keys import", "keys rm x --reason y", "migrate up", "migrate status", "migrate sql", "doctor", "doctor --json",
		} {
			words := append(strings.Fields(args), "--config", file)
			if strings.HasPrefix(args, "doctor") {
				words = append(strings.Fields(args), file)
			}
			var stdout, stderr strings.Builder
			env := func(name string) string { return map[string]string{"CANARY": canary}[name] }
			status := Main(t.Context(), kind.All(), words, strings.NewReader(`{"id":"x"}`), &stdout, &stderr, env)
			if said := stdout.String() + stderr.String(); strings.Contains(said, canary) {
				t.Errorf("%s with %s shows the secret: %s", args, store, said)
			}
			if works := args == "migrate sql" || strings.Contains(store, "nobody") && !strings.HasPrefix(args, "keys"); status == term.ExitDone && !works {
				t.Errorf("%s with %s succeeded: %s", args, store, stdout.String()+stderr.String())
			}
			if n := strings.Count(stderr.String(), "\n"); n > 2 {
				t.Errorf("%s with %s says %d lines: %s", args, store, n, stderr.String())
			}
		}
	}
}

func TestServerThatDoesNotAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: \"postgres://u@%s/x?sslmode=disable\" } } }", silent.Addr()))
	for words, want := range map[string]string{"keys ls --config " + file: "semel: open the store db: no answer in 0.2 s: ", "doctor " + file: "semel: db: "} {
		var stderr strings.Builder
		a := &term.App{Kinds: kind.All(), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Env: noEnv, Patience: 200 * time.Millisecond, Redact: strings.Clone, Interruptible: func(r io.Reader) io.Reader { return r }}
		root := newRootCommand(a)
		root.SetArgs(strings.Fields(words))
		err := root.ExecuteContext(t.Context())
		if status := a.Report(t.Context(), "semel", err); status != term.ExitFailed || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: status %d, %s", words, status, &stderr)
		}
	}
}

// TestDoctorNamesTheSessionThatHoldsALock locks the target table, and then a table of the
// store.
func TestDoctorNamesTheSessionThatHoldsALock(t *testing.T) {
	t.Parallel()
	database, dir := servers.Database(t), t.TempDir()
	admin := connect(t, database+"&application_name=alter-job")(t)
	writeFile(t, filepath.Join(dir, "in.jsonl"), "{}\n")
	file := writeFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: %q } } }
pipelines:
  rows: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, store: db, sink: { postgres: { store: db, table: rows, columns: { id: .id } } }, parked: { store: db } }
`, database))
	run(t, "", "migrate", "up", "--config", file).check(t, term.ExitDone, "applied 1")
	var session int
	_, err := admin.Exec(t.Context(), "CREATE TABLE rows (id text)")
	if err = errors.Join(err, admin.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&session)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		table, where string
		args         []string
	}{
		{"rows", "rows: sink", []string{"doctor", file}},
		{"semel_keys", "db", []string{"doctor", file, "db"}},
		{"semel_meta", "db", []string{"doctor", file, "db"}},
		{"rows", "rows", []string{"run", file, "--check"}},
	} {
		locked, err := admin.Begin(t.Context())
		if err == nil {
			_, err = locked.Exec(t.Context(), "LOCK TABLE "+c.table)
		}
		if err != nil {
			t.Fatal(err)
		}
		got, want := run(t, "", c.args...), fmt.Sprintf("a statement waited for a lock that PostgreSQL session %d holds (alter-job, user postgres, idle in transaction, open since 2", session)
		if got.status != term.ExitFailed || !strings.Contains(got.stdout+got.stderr, want) || !strings.Contains(got.stdout+got.stderr, fmt.Sprintf("wait, or end it with SELECT pg_terminate_backend(%d)", session)) || strings.Contains(got.stderr, "unavailable") {
			t.Errorf("%s with a lock on %s does not say %q: %+v", c.args, c.table, want, got)
		}
		if c.args[0] == "doctor" && !strings.Contains(got.stderr, "semel doctor: "+c.where+": ") {
			t.Errorf("%s does not say %q: %s", c.args, c.where, got.stderr)
		}
		if err := locked.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheGuidesRedisUserCanWork runs a pipeline as a user with the permissions of the
// guide. Without one of them, doctor and run print the command that grants it.
func TestTheGuidesRedisUserCanWork(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/guides/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(guide), "\nACL SETUSER semel ")
	line, _, _ = strings.Cut(line, "\n")
	server, dir := servicestest.StartRedis(t, &services.RedisOptions{Bloom: true}), t.TempDir()
	acl := func(rules ...string) {
		t.Helper()
		if _, err := services.RedisDo(t.Context(), server.Addr(), append([]string{"ACL", "SETUSER", "semel"}, rules...)...); err != nil {
			t.Fatal(err)
		}
	}
	acl(strings.Fields(strings.ReplaceAll(line, "PASSWORD", "secret"))...)
	writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n{\"id\":\"1\"}\n")
	file := writeFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { redis: { url: "redis://semel:secret@%s" } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, window: 1d, store: keys, sink: { file: { path: out } }, parked: { path: p } }
`, server.Addr()))
	got := run(t, "", "doctor", file, "keys", "--json")
	if !strings.Contains(got.stdout, `"severity":"fine","subject":"permissions"`) {
		t.Errorf("with the guide's permissions: %+v", got)
	}
	run(t, "", "run", file, "--admin", "off").check(t, term.ExitDone, `"fresh":1,"duplicate":1`)
	run(t, "", "keys", "rm", "1", "--reason", "again", "--config", file).check(t, term.ExitDone, "forgot")

	acl("-pexpireat", "-sadd")
	got = run(t, "", "doctor", file, "keys")
	got.check(t, term.ExitFound, "1 broken")
	if !strings.Contains(got.stdout, "the user may not run PEXPIREAT, SADD\n") || !strings.Contains(got.stdout, "do:   in redis-cli, ACL SETUSER USER ~semel:* +ping ") {
		t.Errorf("without PEXPIREAT and SADD:\n%s", got.stdout)
	}
	acl("-get")
	address := servicestest.FreeAddr(t)
	stop := backgroundUntil(t, "cannot start yet", noEnv, "run", file, "--admin", address)
	stop().check(t, term.ExitDone, "in redis-cli, ACL SETUSER semel ~semel:* +ping ")
}
