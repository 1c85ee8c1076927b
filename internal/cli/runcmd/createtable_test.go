package runcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestRunCheckPrintsTheTableThatIsMissing creates the table as printed. Its names need quotes.
func TestRunCheckPrintsTheTableThatIsMissing(t *testing.T) {
	t.Parallel()
	database, dir := programtest.Servers.Database(t), t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\",\"v\":1}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: %q } } }
pipelines:
  rows:
    source: { file: { paths: [in.jsonl] } }
    key: { id: .id }
    window: 30d
    store: db
    sink: { postgres: { store: db, table: order, columns: { id: .id, customerId: .customer, event: body, at: time, v: .v }, key: [id], version: v } }
    parked: { store: db }
`, database))
	remedy := func() string {
		t.Helper()
		for _, line := range programtest.JSONLines(t, programtest.Run(t, "", "run", file, "--check", "--json").Stdout) {
			if line["subject"] == "sink.postgres.table" {
				return fmt.Sprint(line["remedy"])
			}
		}
		return ""
	}
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied")
	_, sql, ok := strings.Cut(remedy(), "; with types to your taste: ")
	if want := `CREATE TABLE "order" (id text, "customerId" text, event jsonb, at timestamptz, v bigint, PRIMARY KEY (id))`; !ok || sql != want {
		t.Fatalf("got  %s\nwant %s", sql, want)
	}
	db := programtest.Connect(t, database)(t)
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	if left := remedy(); left != "" {
		t.Errorf("with the table: %s", left)
	}
	programtest.Run(t, "", "run", file, "--admin", "off", "--quiet").Check(t, term.ExitDone)
}
