package auditcmd_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/programtest"
)

func TestAuditVerifyNamesTheFirstLineThatWasChanged(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	name := filepath.Join(dir, logstore.AuditName)
	programtest.Run(t, "", "audit", "verify", dir).Check(t, term.ExitUsage, name+": there is no audit log")
	programtest.Run(t, "", "audit", "verify").Check(t, term.ExitUsage, "FILE is missing")
	programtest.Run(t, "", "audit", "verify", dir, "--contains", "abc").Check(t, term.ExitUsage, "--contains abc: expected a hash of 64 hexadecimal digits")

	const old = `{"time":"2026-01-01T00:00:00Z","operation":"A","verb":"rm","reason":"before hashes"}` + "\n"
	programtest.WriteFile(t, name, old)
	programtest.Run(t, "", "keys", "rm", "order-1", "--store", dir, "--reason", "sent twice", "-q").Check(t, term.ExitDone)
	got := programtest.Run(t, "", "audit", "verify", dir)
	got.Check(t, term.ExitDone)
	const intact = ": intact: 3 lines, 2 with a hash, 1 older lines without, last hash "
	_, hash, found := strings.Cut(strings.TrimSpace(got.Stdout), intact)
	if !found {
		t.Fatalf("%s", got.Stdout)
	}
	programtest.Run(t, "", "keys", "resolve", "order-2", "--as", "done", "--reason", "it is in the bank's list", "--store", dir, "-q").Check(t, term.ExitDone)
	programtest.Run(t, "", "audit", "verify", name, "--contains", hash).Check(t, term.ExitDone)

	log := programtest.ReadFile(t, name)
	lines := strings.SplitAfter(strings.TrimSuffix(log, "\n"), "\n")
	for what, c := range map[string]struct{ log, found string }{
		"changed":  {strings.Replace(log, "sent twice", "sent once", 1), ":2: its content does not match its hash: it was changed\n"},
		"removed":  {strings.Replace(log, lines[2], "", 1), ":3: it does not continue the line before: lines were removed or inserted before it\n"},
		"inserted": {strings.Replace(log, lines[3], old+lines[3], 1), ":4: it has no hash: it was inserted or changed"},
		"older":    {strings.Replace(log, "before hashes", "after hashes", 1), ":2: it does not continue the lines before, of which the last have no hash"},
	} {
		programtest.WriteFile(t, name, c.log)
		got := programtest.Run(t, "", "audit", "verify", name)
		got.Check(t, term.ExitFound)
		if !strings.HasPrefix(got.Stdout, name+c.found) {
			t.Errorf("%s: %s", what, got.Stdout)
		}
	}
	programtest.WriteFile(t, name, strings.Replace(log, "before hashes", "after hashes", 1))
	if got := programtest.Run(t, "", "audit", "verify", name, "--json"); !strings.Contains(got.Stdout, `"intact":false,"line":2,"found":"it does not continue`) {
		t.Errorf("%s", got.Stdout)
	}

	for what, c := range map[string]struct{ log, found string }{
		"emptied":   {"", ": unproven: no line has a hash: "},
		"no hashes": {old + old, ": unproven: no line has a hash: "},
		"cut short": {log[:len(log)-20], ":5: it was cut short, "},
	} {
		programtest.WriteFile(t, name, c.log)
		got := programtest.Run(t, "", "audit", "verify", name)
		got.Check(t, term.ExitFound)
		if !strings.HasPrefix(got.Stdout, name+c.found) {
			t.Errorf("%s: %s", what, got.Stdout)
		}
	}
	programtest.WriteFile(t, name, log[:len(log)-20]) // the kept hash shows that all up to it is there
	programtest.Run(t, "", "audit", "verify", name, "--contains", hash).Check(t, term.ExitDone)

	programtest.WriteFile(t, name, lines[0]+lines[1]) // the end is gone: only the known hash shows it
	programtest.Run(t, "", "audit", "verify", name).Check(t, term.ExitDone)
	got = programtest.Run(t, "", "audit", "verify", name, "--contains", hash)
	got.Check(t, term.ExitFound)
	if !strings.Contains(got.Stdout, "lines were removed from the end") {
		t.Errorf("%s", got.Stdout)
	}
}

// Several processes settle the messages of one directory at the same time.
func TestAuditLogOfParkedMessagesIsOneChain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "semel.yaml")
	programtest.WriteFile(t, file, strings.NewReplacer("./ledger", dir+"/ledger", "in.jsonl", dir+"/in.jsonl", "out.jsonl", dir+"/out.jsonl").Replace(programtest.PipelinesExample))
	programtest.AddParked(t, dir)
	ids := []string{"9f2c41d07be35a1186c0de42", "0c51aa7e9d3b4f62a8d17e05", "77e0b5c2f14d4a9c83d6fb10"}
	done := make(chan programtest.Outcome)
	for _, id := range ids {
		go func() {
			done <- programtest.Run(t, "", "parked", "skip", id, "--reason", "test data", "--config", file, "-q")
		}()
	}
	for range ids {
		(<-done).Check(t, term.ExitDone)
	}
	got := programtest.Run(t, "", "audit", "verify", filepath.Join(dir, "semel-parked"))
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "intact: 3 lines, 3 with a hash, last hash ") {
		t.Errorf("%s", got.Stdout)
	}
}

// TestTheDatabaseKeepsTheAuditLogAppendOnly runs the statement of SECURITY.md. The role of
// the program still removes keys, but cannot change the log.
func TestTheDatabaseKeepsTheAuditLogAppendOnly(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statement, ok := strings.Cut(string(page), "  REVOKE ")
	statement, _, _ = strings.Cut("REVOKE "+statement, ";")
	if !ok || !strings.Contains(statement, " FROM app") {
		t.Fatalf("SECURITY.md has no such statement: %q", statement)
	}
	database, role := programtest.Servers.Database(t), fmt.Sprintf("auditor_%d", os.Getpid())
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: %q } } }", database))
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 4")
	admin := programtest.Connect(t, database)(t)
	for _, sql := range []string{
		"CREATE ROLE " + role + " LOGIN PASSWORD 'x'", "GRANT ALL ON ALL TABLES IN SCHEMA public TO " + role, "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO " + role,
		strings.ReplaceAll(statement, "FROM app", "FROM "+role),
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(role, "x")
	mine := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf("stores: { db: { postgres: { dsn: %q } } }", address))
	programtest.Run(t, `{"id":"a"}`, "keys", "import", "--config", mine).Check(t, term.ExitDone, "imported 1")
	programtest.Run(t, "", "keys", "rm", "a", "--reason", "a mistake", "--config", mine).Check(t, term.ExitDone, "forgot")
	own := programtest.Connect(t, address.String())(t)
	for _, sql := range []string{"UPDATE semel_audit SET line = '{}'", "DELETE FROM semel_audit", "TRUNCATE semel_audit"} {
		if _, err := own.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v, want no permission", sql, err)
		}
	}
	var lines int
	if err := own.QueryRow(t.Context(), "SELECT count(*) FROM semel_audit").Scan(&lines); err != nil || lines != 2 {
		t.Errorf("%d lines, %v", lines, err)
	}
}
