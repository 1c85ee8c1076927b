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

func TestAuditVerifyNamesDamagedLinesAndInterruptedChanges(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	name := filepath.Join(dir, logstore.AuditName)
	programtest.Run(t, "", "audit", "verify", dir).Check(t, term.ExitUsage, name+": there is no audit log")
	programtest.Run(t, "", "audit", "verify").Check(t, term.ExitUsage, "FILE is missing")

	programtest.Run(t, "", "keys", "rm", "order-1", "--store", dir, "--reason", "sent twice", "-q").Check(t, term.ExitDone)
	programtest.Run(t, "", "keys", "resolve", "order-2", "--as", "done", "--reason", "it is in the bank's list", "--store", dir, "-q").Check(t, term.ExitDone)
	got := programtest.Run(t, "", "audit", "verify", dir)
	got.Check(t, term.ExitDone)
	if got.Stdout != name+": whole: 4 lines\n" {
		t.Errorf("%s", got.Stdout)
	}

	log := programtest.ReadFile(t, name)
	lines := strings.SplitAfter(strings.TrimSuffix(log, "\n"), "\n")
	programtest.WriteFile(t, name, lines[0]+lines[2]+log[len(lines[0]+lines[1]+lines[2]):len(log)-20])
	got = programtest.Run(t, "", "audit", "verify", name)
	got.Check(t, term.ExitFound)
	const open, short = "the outcome of this change is missing", "it is not a whole line"
	for i, found := range []string{open, open, short} {
		if !strings.Contains(got.Stdout, fmt.Sprintf("%s:%d: %s", name, i+1, found)) {
			t.Errorf("%s", got.Stdout)
		}
	}
	if got := programtest.Run(t, "", "audit", "verify", name, "--json"); !strings.Contains(got.Stdout, `"lines":3,"findings":[{"line":1,"found":"the outcome`) {
		t.Errorf("%s", got.Stdout)
	}
}

// Several processes settle the messages of one directory at the same time.
func TestAuditLogOfParkedMessagesHasALineOfEachProcess(t *testing.T) {
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
	if !strings.Contains(got.Stdout, "whole: 3 lines") {
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
