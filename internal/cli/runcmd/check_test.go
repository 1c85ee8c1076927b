package runcmd_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// tree returns the names and contents of all files below a directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			fmt.Fprintf(&text, "%s: %s\n", name, programtest.ReadFile(t, name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// TestRunCheckShowsEverythingInOneTable checks a configuration whose tables are missing,
// then with tables, then with a server that is down. It changes nothing.
func TestRunCheckShowsEverythingInOneTable(t *testing.T) {
	t.Parallel()
	database, dir := servicestest.StartPostgres(t, nil).URL(), t.TempDir() // its own: doctor judges a whole server
	admin := programtest.Connect(t, database)(t)
	if _, err := admin.Exec(t.Context(), "CREATE TABLE rows (id text)"); err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n{\"id\":\"1\"}\n{\"id\":\"2\"}\n{}\n")
	config := func(name, dsn, missing string) string {
		return programtest.WriteFile(t, filepath.Join(dir, name), fmt.Sprintf(`
stores:
  db:   { postgres: { dsn: %q } }
  keys: { embedded: { path: keys } }
pipelines:
  rows: { source: { file: { paths: [in.jsonl] } }, key: { id: .id, on_missing: %s }, window: 30d, store: db, sink: { postgres: { store: db, table: rows, columns: { id: .id } } }, parked: { store: db } }
  copy: { source: { file: { paths: [in.jsonl] } }, key: { id: .id, on_missing: hash }, window: 30d, store: keys, sink: { file: { path: out } }, parked: { path: p } }
  hook: { source: { http: { listen: "127.0.0.1:0", token: "${env:NONE:-s3cret-canary-0123456789}" } }, key: { id: .id }, window: 30d, store: keys, sink: { file: { path: out2 } }, parked: { path: p } }
`, dsn, missing))
	}
	file := config("c.yaml", database, "hash")
	before := tree(t, dir)

	got := programtest.Run(t, "", "run", file, "--check")
	got.Check(t, term.ExitFound, "0 with a warning, 2 broken, 3 skipped, 0 not checked\n")
	for _, want := range []string{
		"STAGE    WHAT    STATUS       FOUND AND REMEDY\nlint     c.yaml  fine         no findings\n",
		"\nmigrate  db      broken       0 of 8 steps applied\n                              cost: the store cannot be opened\n                              do:   semel migrate up --config " + file + " --store-name db\n",
		"\ndoctor   db      skipped      its tables are missing\n", "\ndry-run  rows    skipped      db: its tables are missing\n", `: there is no table "public"."semel_parked"` + "\n",
		"\ndry-run  hook    skipped      its source receives messages and cannot be read in advance",
	} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("without tables, the table lacks %q:\n%s", want, got.Stdout)
		}
	}
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 4")

	got = programtest.Run(t, "", "run", file, "rows", "copy", "--check", "--json")
	got.Check(t, term.ExitDone, "0 with a warning, 0 broken, 0 skipped, 0 not checked\n")
	stages := map[string]string{}
	for _, line := range programtest.JSONLines(t, got.Stdout) {
		stages[line["stage"].(string)+" "+line["what"].(string)] = line["status"].(string) + " " + line["found"].(string)
	}
	for what, want := range map[string]string{
		"migrate db": "fine 8 of 8 steps applied", "dry-run rows": "fine read 4, 3 fresh (processed), 1 duplicate (dropped), 1 missing (processed, with its content as its key)", "dry-run copy": "fine read 4, ",
	} {
		if !strings.HasPrefix(stages[what], want) {
			t.Errorf("%s: %q, want %q", what, stages[what], want)
		}
	}

	got = programtest.Run(t, "", "run", file, "hook", "--check")
	if !strings.Contains(got.Stdout, "its source receives messages and cannot be read in advance") || strings.Contains(got.Stdout+got.Stderr, "canary") {
		t.Errorf("a source that cannot be read: %+v", got)
	}
	parks := config("parks.yaml", database, "park")
	got = programtest.Run(t, "", "run", parks, "rows", "--check")
	got.Check(t, term.ExitFound, "1 with a warning, 0 broken")
	if !strings.Contains(got.Stdout, "1 missing (parked)") || !strings.Contains(got.Stdout, "semel dry-run "+parks+" rows\n") {
		t.Errorf("a message that would be parked:\n%s", got.Stdout)
	}
	down := config("down.yaml", "postgres://u:canary-9@127.0.0.1:1/x", "hash")
	got = programtest.Run(t, "", "run", down, "rows", "--check")
	got.Check(t, term.ExitFailed, "checks could not be made: fix what the table says")
	if !strings.Contains(got.Stdout, "not checked  no server listens at 127.0.0.1:1: connection refused") || strings.Contains(got.Stdout+got.Stderr, "canary") {
		t.Errorf("a server that is down: %+v", got)
	}
	for _, name := range []string{parks, down} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if after := tree(t, dir); after != before {
		t.Errorf("the check changed files:\n%s\n%s", before, after)
	}
	var written int
	if err := admin.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM rows) + (SELECT count(*) FROM semel_keys) + (SELECT count(*) FROM semel_parked)").Scan(&written); err != nil || written != 0 {
		t.Errorf("the check wrote %d rows, %v", written, err)
	}
	programtest.Run(t, "", "run", file, "--check", "--migrate").Check(t, term.ExitUsage, "--check and --migrate exclude each other")
}

// TestRunMigratesFirst runs a pipeline in an empty database, again, and as a role that may
// not create tables.
func TestRunMigratesFirst(t *testing.T) {
	t.Parallel()
	database, dir := programtest.Servers.Database(t), t.TempDir()
	admin := programtest.Connect(t, database)(t)
	role := "reader_" + strings.ToLower(strings.ReplaceAll(filepath.Base(dir), "-", "_")) + fmt.Sprint(os.Getpid())
	for _, statement := range []string{"CREATE TABLE rows (id text)", "CREATE ROLE " + role + " LOGIN PASSWORD 'x'"} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	config := func(name, dsn string) string {
		return programtest.WriteFile(t, filepath.Join(dir, name), fmt.Sprintf(`
stores:
  db: { postgres: { dsn: %q, schema: app } }
pipelines:
  rows: { source: { file: { paths: [in.jsonl] } }, key: { id: .id }, store: db, sink: { postgres: { store: db, table: rows, columns: { id: .id } } }, parked: { store: db } }
`, dsn))
	}
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.UserPassword(role, "x")
	poor := config("poor.yaml", address.String())
	refused := programtest.Run(t, "", "run", poor, "--admin", "off", "--migrate")
	refused.Check(t, term.ExitFailed, "migrate db: user "+role+" may not create tables: ", "run semel migrate up with a role that may, or GRANT CREATE ON ")
	file := config("c.yaml", database)
	waiting := programtest.StartRun(t, file)
	waiting.Line("cannot start yet", "semel migrate up --config "+file+" --store-name db")
	waiting.Stop()
	programtest.Run(t, "", "run", file, "--admin", "off", "--migrate").Check(t, term.ExitDone, `"migrated","store":"db","version":4`, `"fresh":1`)
	programtest.Run(t, "", "run", file, "--admin", "off", "--migrate").Check(t, term.ExitDone, `"nothing to migrate","store":"db"`)
	var rows int
	if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM rows").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// TestRunCheckOfFilesNeedsNoServer checks pipelines between files, before and after a run,
// and a store whose server is down.
func TestRunCheckOfFilesNeedsNoServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{\"id\":1}\n{}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores:
  keys: { embedded: { path: keys } }
  down: { redis: { url: "redis://:${env:NONE:-canary-9}@127.0.0.1:1" } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl] } }, key: { id: .id, on_missing: park }, window: 30d, store: keys, sink: { file: { path: out } }, parked: { path: p } }
  hook: { source: { http: { listen: "127.0.0.1:0", token: "${env:NONE:-s3cret-canary-0123456789}" } }, key: { id: .id }, window: 30d, store: keys, sink: { file: { path: out2 } }, parked: { path: p } }
  away: { source: { file: { paths: [in.jsonl] } }, key: { id: .id, on_missing: hash, scope: away }, window: 30d, store: down, sink: { file: { path: out3 } }, parked: { path: p } }
`)
	before := tree(t, dir)
	got := programtest.Run(t, "", "run", file, "copy", "hook", "--check")
	got.Check(t, term.ExitFound, "3 fine, 1 to note, 1 with a warning, 0 broken, 1 skipped, 0 not checked\n")
	for _, want := range []string{
		"STAGE    WHAT    STATUS       FOUND AND REMEDY\n", "\nlint     c.yaml  fine         no findings\n", "\ndoctor   keys    notice       directory: " + filepath.Join(dir, "keys") + " holds no store yet\n",
		"\ndoctor   copy    fine         4 checks\n", "\ndry-run  copy    warning      read 3, 1 fresh (processed), 1 duplicate (dropped), 1 missing (parked); compared only with each other: store keys: ",
		"\n                              do:   semel dry-run " + file + " copy\n", "\ndry-run  hook    skipped      its source receives messages and cannot be read in advance\n",
	} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, got.Stdout)
		}
	}
	if after := tree(t, dir); after != before {
		t.Errorf("the check changed files:\n%s\n%s", before, after)
	}

	programtest.Run(t, "", "run", file, "copy", "--admin", "off", "-q").Check(t, term.ExitDone)
	if err := os.Remove(filepath.Join(dir, "in.jsonl")); err != nil {
		t.Fatal(err)
	}
	got = programtest.Run(t, "", "run", file, "copy", "--check", "--json")
	got.Check(t, term.ExitFailed, " 1 broken, 0 skipped, 1 not checked\n", "1 check could not be made: fix what the table says")
	found := map[string]string{}
	for _, line := range programtest.JSONLines(t, got.Stdout) {
		found[fmt.Sprint(line["stage"], " ", line["what"], " ", line["status"])] = fmt.Sprint(line["found"])
	}
	if found["lint c.yaml fine"] != "no findings" || found["doctor keys fine"] == "" || !strings.Contains(found["doctor copy broken"], "in.jsonl matches no file") || found["dry-run copy not checked"] == "" {
		t.Errorf("without its input: %s", got.Stdout)
	}

	got = programtest.Run(t, "", "run", file, "away", "--check")
	got.Check(t, term.ExitFailed, " could not be made: fix what the table says")
	if !strings.Contains(got.Stdout, "connection refused: is the server up, and the port right?") || strings.Contains(got.Stdout+got.Stderr, "canary") {
		t.Errorf("a server that is down: %+v", got)
	}
}

func TestOutboxRelayRunsPipelinesOfOutboxesAlone(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, "", "")
	programtest.Run(t, "", "outbox", "relay", file).Check(t, term.ExitUsage, file+": no pipeline reads an outbox: write source: { outbox: { store: NAME } } with a store of the kind postgres\n")
	programtest.Run(t, "", "outbox", "relay", file, "copy").Check(t, term.ExitUsage, file+": the source of copy is no outbox: semel run "+file+" copy\n")
	programtest.Run(t, "", "outbox", "relay", file, "cpoy").Check(t, term.ExitUsage, "did you mean copy?")
	programtest.Run(t, "", "outbox", "relay").Check(t, term.ExitUsage, term.MissingFile)
}
