package doctorcmd_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestDoctorReportsOnStoresWithoutServers(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`
stores:
  mem:   { memory: {} }
  other: { memory: {} }
  files: { embedded: { path: %q } }
  fast:  { embedded: { path: ./fast, fsync: never } }
  stack: { tiered: [mem, files] }
  loose: { tiered: { layers: [other, fast] } }
`, dir))
	got := programtest.Run(t, "", "doctor", file, "stack")
	got.Check(t, term.ExitDone, "3 stores: 3 fine, 1 to note, 0 with a warning, 0 broken\n")
	for _, want := range []string{"stack (tiered)\n  fine     decides                      files\n", "mem (memory)\n  notice   memory ", "files (embedded)\n  fine     fsync                        always\n"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, got.Stdout)
		}
	}
	got = programtest.Run(t, "", "doctor", file, "loose", "--json")
	got.Check(t, term.ExitFound, "1 with a warning")
	found := map[string]string{}
	for _, line := range programtest.JSONLines(t, got.Stdout) {
		found[line["store"].(string)+"/"+line["subject"].(string)] = line["severity"].(string)
	}
	if found["loose/decides"] != "fine" || found["fast/fsync"] != "warning" || found["fast/directory"] != "notice" || found["other/memory"] != "notice" {
		t.Errorf("found %v", found)
	}
	programtest.Run(t, "", "doctor").Check(t, term.ExitUsage, "semel doctor: FILE is missing: name the configuration\n")
	programtest.Run(t, "", "doctor", file, "stakc").Check(t, term.ExitUsage, "stakc: "+file+" has no such store or pipeline: did you mean stack?\n")
	programtest.Run(t, "", "doctor", file, "a", "b").Check(t, term.ExitUsage, `unexpected argument "b"`)
}

func TestDoctorTellsADamagedStoreFromAMissingOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), "stores: { keys: { embedded: { path: keys } } }\n")
	got := programtest.Run(t, "", "doctor", file)
	got.Check(t, term.ExitDone, "0 broken")
	if !strings.Contains(got.Stdout, "the first run creates it") {
		t.Errorf("%+v", got)
	}
	if err := os.Mkdir(filepath.Join(dir, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	segment := programtest.WriteFile(t, filepath.Join(dir, "keys", "00000001.seg"), "x")
	got = programtest.Run(t, "", "doctor", file)
	got.Check(t, term.ExitFound, "1 broken")
	if !strings.Contains(got.Stdout, "STORE is corrupt at offset 0: the file is missing, but the directory has segments") {
		t.Errorf("%+v", got)
	}
	if err := os.Rename(segment, filepath.Join(dir, "keys", "letter.txt")); err != nil {
		t.Fatal(err)
	}
	got = programtest.Run(t, "", "doctor", file)
	got.Check(t, term.ExitFound, "1 broken")
	if !strings.Contains(got.Stdout, `is not a store and not empty: it contains "letter.txt"`) {
		t.Errorf("%+v", got)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "keys")); err != nil || len(entries) != 1 {
		t.Errorf("something was made: %v %v", entries, err)
	}
}

func TestDoctorWarnsOfRedisSettingsThatLoseKeys(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru", "--appendonly", "no"}})
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`
stores:
  alone: { redis: { url: %q } }
  layer: { redis: { url: %q, prefix: "layer:" } }
  files: { embedded: { path: ./files } }
  stack: { tiered: [layer, files] }
`, server.URL(), server.URL()))
	severity := func(got programtest.Outcome) string {
		t.Helper()
		for _, line := range programtest.JSONLines(t, got.Stdout) {
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
	got := programtest.Run(t, "", "doctor", file, "alone", "--json")
	got.Check(t, term.ExitFound, "broken")
	if s := severity(got); s != "broken" {
		t.Errorf("alone the policy is %s", s)
	}
	got = programtest.Run(t, "", "doctor", file, "stack", "--json")
	got.Check(t, term.ExitDone, "0 with a warning, 0 broken")
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
	programtest.Run(t, `{"id":"a"}`, "keys", "import", "--config", file, "--store-name", "alone").Check(t, term.ExitDone, "imported 1")
	other := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { alone: { redis: { url: %q, compact: { window: 1h } } } }", server.URL()))
	got = programtest.Run(t, "", "doctor", other, "--json")
	got.Check(t, term.ExitFound, "2 broken")
	if !strings.Contains(got.Stdout, `"severity":"broken","subject":"prefix","found":"Options.Compact: the prefix was first used without it"`) {
		t.Errorf("with other terms: %s", got.Stdout)
	}
}

func TestDoctorWarnsOfPostgresSettingsThatLoseCommits(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"synchronous_commit": "off"}})
	const text = "stores: { db: { postgres: { dsn: %q } } }"
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(text, server.URL()))
	got := programtest.Run(t, "", "doctor", file)
	got.Check(t, term.ExitFound, "1 broken\n")
	if !strings.Contains(got.Stdout, "  broken   open ") || !strings.Contains(got.Stdout, "do:   semel migrate up --config "+file+" --store-name db\n") {
		t.Errorf("without tables:\n%s", got.Stdout)
	}
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1")
	got = programtest.Run(t, "", "doctor", file, "--json")
	got.Check(t, term.ExitFound, "1 broken\n")
	if !strings.Contains(got.Stdout, `"severity":"broken","subject":"synchronous_commit","found":"off"`) {
		t.Errorf("with tables:\n%s", got.Stdout)
	}
	separator := "?"
	if strings.Contains(server.URL(), "?") {
		separator = "&"
	}
	strict := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(text, server.URL()+separator+"default_transaction_isolation=serializable"))
	got = programtest.Run(t, "", "doctor", strict)
	got.Check(t, term.ExitFound, "1 broken\n")
	if !strings.Contains(got.Stdout, "serializable") || !strings.Contains(got.Stdout, "set default_transaction_isolation to 'read committed'") {
		t.Errorf("with another isolation:\n%s", got.Stdout)
	}
}

func TestDoctorGivesUpOnAServerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: \"postgres://u@%s/x?sslmode=disable\" } } }", silent.Addr()))
	for words, want := range map[string]string{"keys ls --config " + file: "semel: open the store db: no answer in 0.2 s: ", "doctor " + file: "semel: db: "} {
		var stderr strings.Builder
		a := &term.App{Kinds: kind.All(), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Env: programtest.NoEnv, Patience: 200 * time.Millisecond, Redact: strings.Clone, Interruptible: func(r io.Reader) io.Reader { return r }}
		root := cli.NewCommand(a)
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
	database, dir := programtest.Servers.Database(t), t.TempDir()
	admin := programtest.Connect(t, database+"&application_name=alter-job")(t)
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: %q } } }
pipelines:
  rows: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, store: db, sink: { postgres: { store: db, table: rows, columns: { id: .id } } }, parked: { store: db } }
`, database))
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 1")
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
		got, want := programtest.Run(t, "", c.args...), fmt.Sprintf("a statement waited for a lock that PostgreSQL session %d holds (alter-job, user postgres, idle in transaction, open since 2", session)
		if got.Status != term.ExitFailed || !strings.Contains(got.Stdout+got.Stderr, want) || !strings.Contains(got.Stdout+got.Stderr, fmt.Sprintf("wait, or end it with SELECT pg_terminate_backend(%d)", session)) || strings.Contains(got.Stderr, "unavailable") {
			t.Errorf("%s with a lock on %s does not say %q: %+v", c.args, c.table, want, got)
		}
		if c.args[0] == "doctor" && !strings.Contains(got.Stderr, "semel doctor: "+c.where+": ") {
			t.Errorf("%s does not say %q: %s", c.args, c.where, got.Stderr)
		}
		if err := locked.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheRedisUserOfTheGuideHasTheRightsThatSemelNeeds runs a pipeline as a user with the permissions of the
// guide. Without one of them, doctor and run print the command that grants it.
func TestTheRedisUserOfTheGuideHasTheRightsThatSemelNeeds(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/guides/redis.md")
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
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n{\"id\":\"1\"}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { redis: { url: "redis://semel:secret@%s" } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, window: 1d, store: keys, sink: { file: { path: out } }, parked: { path: p } }
`, server.Addr()))
	got := programtest.Run(t, "", "doctor", file, "keys", "--json")
	if !strings.Contains(got.Stdout, `"severity":"fine","subject":"permissions"`) {
		t.Errorf("with the guide's permissions: %+v", got)
	}
	programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitDone, `"fresh":1,"duplicate":1`)
	programtest.Run(t, "", "keys", "rm", "1", "--reason", "again", "--config", file).Check(t, term.ExitDone, "forgot")

	acl("-pexpireat", "-sadd")
	got = programtest.Run(t, "", "doctor", file, "keys")
	got.Check(t, term.ExitFound, "1 broken")
	if !strings.Contains(got.Stdout, "the user may not run PEXPIREAT, SADD\n") || !strings.Contains(got.Stdout, "do:   in redis-cli, ACL SETUSER USER ~semel:* +ping ") {
		t.Errorf("without PEXPIREAT and SADD:\n%s", got.Stdout)
	}
	acl("-get")
	address := servicestest.FreeAddr(t)
	stop := programtest.BackgroundUntil(t, "cannot start yet", programtest.NoEnv, "run", file, "--admin", address)
	stop().Check(t, term.ExitDone, "in redis-cli, ACL SETUSER semel ~semel:* +ping ")
}
