package runcmd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var fence = regexp.MustCompile("(?ms)^```(console wait|console|sh|yaml)\n(.*?)^```$")

var (
	sqlFence  = regexp.MustCompile("(?ms)^```sql\n(.*?)^```$")
	grantLine = regexp.MustCompile(`(?m)^GRANT .* TO (\w+);$`)
)

// grantsOf returns the grants to a role that a page has, for another role.
func grantsOf(t *testing.T, page, role, to string) string {
	t.Helper()
	var grants []string
	for _, block := range sqlFence.FindAllStringSubmatch(programtest.ReadFile(t, filepath.Join("..", "..", "..", "docs", page)), -1) {
		for _, line := range grantLine.FindAllStringSubmatch(block[1], -1) {
			if line[1] == role {
				grants = append(grants, strings.TrimSuffix(line[0], line[1]+";")+to)
			}
		}
	}
	if grants == nil {
		t.Fatalf("docs/%s grants nothing to %s", page, role)
	}
	return strings.Join(grants, "; ")
}

// roleFor creates a role that may log in, and returns its name and the address of a database
// under it.
func roleFor(t *testing.T, address string) (role, as string) {
	t.Helper()
	role = "semel_test_" + strings.ToLower(rand.Text()[:10])
	programtest.Exec(t, address, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), address)
		if err == nil {
			_, err = conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
			err = errors.Join(err, conn.Close(context.Background()))
		}
		if err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return role, u.String()
}

// pageFile returns a configuration of a page, with values replaced.
func pageFile(t *testing.T, page, name string, replace ...string) string {
	t.Helper()
	for _, block := range fence.FindAllStringSubmatch(programtest.ReadFile(t, filepath.Join("..", "..", "..", "docs", page)), -1) {
		if block[1] == "yaml" && strings.HasPrefix(block[2], "# "+name+"\n") {
			text := block[2]
			for i := 0; i < len(replace); i += 2 {
				if !strings.Contains(text, replace[i]) {
					t.Fatalf("%s of docs/%s has no %q", name, page, replace[i])
				}
				text = strings.ReplaceAll(text, replace[i], replace[i+1])
			}
			file := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		}
	}
	t.Fatalf("docs/%s has no %s", page, name)
	return ""
}

// TestGuideOfTheOutboxRunsUnderItsRoles runs the relay of the guide with the rights that the
// guide grants, in each of its forms, and parks and redrives a message.
func TestGuideOfTheOutboxRunsUnderItsRoles(t *testing.T) {
	t.Parallel()
	const page = "guides/outbox.md"
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"wal_level": "logical"}})
	for name, form := range map[string]string{"delete": "outbox: { store: db }", "keep": "outbox: { store: db, keep: 7d }", "wal": "outbox: { store: db, mode: wal }"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := servicestest.NewDatabase(t, server.URL())
			out := filepath.Join(t.TempDir(), "events.jsonl")
			owner := pageFile(t, page, "relay.yaml", "${env:DATABASE_URL}", address)
			programtest.Run(t, "", "migrate", "up", "--config", owner).Check(t, term.ExitDone, "outbox checks")
			relay, asRelay := roleFor(t, address)
			app, asApp := roleFor(t, address)
			write := "SELECT semel_outbox_write('orders', '{}', 'order-1')"
			file := pageFile(t, page, "relay.yaml", "${env:DATABASE_URL}", asRelay, "events.jsonl", out, "outbox: { store: db }", form)
			if got := programtest.Run(t, "", "doctor", file); got.Status == term.ExitDone || !strings.Contains(got.Stdout, "role "+relay+" lacks SELECT, INSERT, UPDATE, DELETE on \"public\".\"semel_parked\"") {
				t.Errorf("without a right, doctor says %+v", got)
			}
			programtest.Exec(t, address, grantsOf(t, page, "app", app)+"; "+grantsOf(t, page, "relay", relay))
			if strings.Contains(form, "wal") {
				programtest.Exec(t, address, "ALTER ROLE "+relay+" REPLICATION; CREATE PUBLICATION semel_outbox FOR TABLE public.semel_outbox WITH (publish = 'insert')")
			}
			if got := programtest.Run(t, "", "doctor", file); got.Status == term.ExitFailed || !strings.Contains(got.Stderr, " 0 broken") {
				t.Errorf("doctor says %+v", got)
			}
			pool, err := pgxpool.New(t.Context(), address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			programtest.Exec(t, asApp, write)
			programtest.Exec(t, asApp, "INSERT INTO semel_outbox (aggregate, topic, payload) VALUES ('order-1', 'orders', '{}')")
			command := programtest.Start(t, "running", "outbox", "relay", file, "--admin", "off")
			programtest.BecomesTrue(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
			ends(t, command)
			if strings.Contains(form, "keep") {
				programtest.BecomesTrue(t, pool, "SELECT count(*) = 2 FROM semel_outbox_log")
			}
			parks := pageFile(t, page, "relay.yaml", "${env:DATABASE_URL}", asRelay, "events.jsonl", out, "outbox: { store: db }", form, "property:message-id", "header:order")
			programtest.Exec(t, asApp, write)
			command = programtest.Start(t, "running", "outbox", "relay", parks, "--admin", "off")
			programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM semel_parked) = 1")
			ends(t, command)
			command = programtest.Start(t, "running", "outbox", "relay", file, "--admin", "off")
			// It only queues the message: after three seconds it would deliver it, too, while a relay stands still.
			programtest.Run(t, "", "parked", "retry", "--config", file, "--all", "--wait", "1ms")
			programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_parked) = 0 AND (SELECT count(*) FROM semel_audit) = 1")
			ends(t, command)
			if strings.Contains(form, "wal") {
				programtest.BecomesTrue(t, pool, "SELECT NOT coalesce(bool_or(active), false) FROM pg_replication_slots")
				programtest.Exec(t, address, "SELECT pg_drop_replication_slot('semel_outbox')")
			}
			if lines := strings.Count(programtest.ReadFile(t, out), "\n"); lines != 3 {
				t.Errorf("%d messages were delivered, want 3", lines)
			}
		})
	}
}

// TestStoreRunsUnderItsRole runs a pipeline and its operators with the rights that
// docs/postgres.md grants.
func TestStoreRunsUnderItsRole(t *testing.T) {
	t.Parallel()
	address := programtest.Servers.Database(t)
	role, as := roleFor(t, address)
	dir := t.TempDir()
	input := filepath.Join(dir, "in.jsonl")
	if err := os.WriteFile(input, []byte(`{"id":"1"}`+"\n"+`{"id":"1"}`+"\n"+`{"no":"2"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(dsn string) string {
		file := filepath.Join(t.TempDir(), "semel.yaml")
		if err := os.WriteFile(file, []byte("stores:\n  db: { postgres: { dsn: \""+dsn+"\" } }\npipelines:\n  lines:\n    source: { file: { paths: ["+input+"], follow: false } }\n    key: { id: .id }\n    window: 7d\n    store: db\n    sink: { postgres: { store: db, table: lines, columns: { id: .id } } }\n    parked: { store: db }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	programtest.Run(t, "", "migrate", "up", "--config", config(address)).Check(t, term.ExitDone, "outbox checks")
	programtest.Exec(t, address, "CREATE TABLE lines (id text); GRANT INSERT ON lines TO "+role+"; "+grantsOf(t, "postgres.md", "app", role))
	file := config(as)
	if got := programtest.Run(t, "", "doctor", file); !strings.Contains(got.Stderr, " 0 broken") {
		t.Errorf("doctor says %+v", got)
	}
	programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitDone, "")
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM lines) = 1 AND (SELECT count(*) FROM semel_keys) = 1 AND (SELECT count(*) FROM semel_parked) = 1")
	programtest.Run(t, "", "keys", "rm", "1", "--config", file, "--reason", "test").Check(t, term.ExitDone, `forgot "1"`)
	programtest.Run(t, "", "parked", "skip", programtest.QueryValue[string](t, pool, "SELECT id FROM semel_parked"), "--config", file, "--reason", "test").Check(t, term.ExitDone, "")
	if got := programtest.QueryValue[string](t, pool, "SELECT (SELECT count(*) FROM semel_keys WHERE until > now()) || ' ' || (SELECT count(*) FROM semel_parked) || ' ' || (SELECT count(*) > 1 FROM semel_audit)"); got != "0 0 true" {
		t.Errorf("keys, parked messages, and whether the audit log has both: %s", got)
	}
}

// ends asks a process to end, and waits for it.
func ends(t *testing.T, command *exec.Cmd) {
	t.Helper()
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}
