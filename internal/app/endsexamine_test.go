package app

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// examined returns the findings about the only pipeline of a configuration, each
// as "severity subject: found".
func examined(t *testing.T, dir, text string) (lines string, report *config.Examination) {
	t.Helper()
	f, err := kind.All().Parse(filepath.Join(dir, "semel.yaml"), []byte(text), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	report = ExaminePipeline(t.Context(), f, f.Pipelines[0], time.Minute)
	for _, x := range report.Findings {
		lines += fmt.Sprintf("%s %s: %s\n", x.Severity, x.Subject, x.Found)
	}
	return lines, report
}

func wants(t *testing.T, lines string, list ...string) {
	t.Helper()
	for _, want := range list {
		if !strings.Contains(lines, want) {
			t.Errorf("%q is missing in\n%s", want, lines)
		}
	}
}

func TestExaminePipelineLooksAtFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "in.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const text = `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p: { source: { file: { paths: ["*.jsonl"] } }, key: { id: .id }, store: keys, sink: { file: { path: new/out } } }
`
	lines, report := examined(t, dir, text)
	wants(t, lines, "fine source.file.paths: "+dir+"/*.jsonl: 1 to read\n", "fine source.file.state: ", "fine sink.file.path: "+dir+"/new can be written\n", "fine parked.path: ")
	if report.Err != nil || len(report.Findings) != 4 {
		t.Errorf("%v\n%s", report.Err, lines)
	}
	lines, _ = examined(t, dir, strings.NewReplacer("*.jsonl", "*.csv", "new/out", "in.jsonl/out").Replace(text))
	wants(t, lines, "broken source.file.paths: "+dir+"/*.csv matches no file\n", "broken sink.file.path: "+dir+"/in.jsonl is not a directory\n")
	lines, _ = examined(t, dir, strings.Replace(text, `"*.jsonl"]`, `"*.csv"], follow: true`, 1))
	wants(t, lines, "notice source.file.paths: "+dir+"/*.csv matches no file yet\n")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("something was left: %v %v", entries, err)
	}
	lines, _ = examined(t, dir, strings.NewReplacer("new/out", "../"+filepath.Base(dir)).Replace(text))
	wants(t, lines, "broken sink.file.path: "+dir+" is not a regular file\n")
}

// TestExaminePipelineAcceptsRegularFilesOnly: the pipeline skips non-regular
// files that a pattern matches. It refuses one that is named directly.
func TestExaminePipelineAcceptsRegularFilesOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub.jsonl"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p: { source: { file: { paths: ["*.jsonl"] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } }
`
	lines, _ := examined(t, dir, text)
	wants(t, lines, "broken source.file.paths: "+dir+"/*.jsonl matches no file\n")
	lines, _ = examined(t, dir, strings.Replace(text, "*", "sub", 1))
	wants(t, lines, "broken source.file.paths: "+dir+"/sub.jsonl is not a regular file\n")
}

func TestExaminePipelineReachesATargetAndSendsNothing(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") }))
	text := `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p: { source: { http: { listen: "` + strings.TrimPrefix(target.URL, "http://") + `" } }, key: { id: .id }, store: keys, sink: { webhook: { url: "` + target.URL + `" } } }
`
	lines, report := examined(t, t.TempDir(), text)
	wants(t, lines, "notice source.http.listen: ", "fine sink.webhook.url: the target accepts connections\n")
	if report.Err != nil {
		t.Error(report.Err)
	}
	target.Close()
	for _, free := range []string{servicestest.FreeAddr(t), servicestest.FreeAddr(t)} {
		text = strings.Replace(text, strings.TrimPrefix(target.URL, "http://"), free, 1)
	}
	lines, report = examined(t, t.TempDir(), text)
	wants(t, lines, "fine source.http.listen: ")
	if report.Err == nil || !strings.HasPrefix(report.Err.Error(), "sink: ") {
		t.Errorf("%v\n%s", report.Err, lines)
	}
}

func TestExaminePipelineLetsTheServerPlanTheStatement(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "CREATE TABLE pay (id text PRIMARY KEY, amount numeric NOT NULL, version bigint)"); err != nil {
		t.Fatal(err)
	}
	const columns = "columns: { id: .id, amount: .amount, version: .version }"
	for sink, want := range map[string]string{
		"table: pay, " + columns:                                                      "fine sink.postgres.table: ",
		"table: pya, " + columns:                                                      "broken sink.postgres.table: table pya does not exist",
		"table: pay, key: [id], version: version, " + columns:                         "fine sink.postgres.table: ",
		"table: pay, key: [id, amount], version: version, " + columns:                 "broken sink.postgres.table: no unique index of table pay has the columns (id, amount)",
		`statement: "UPDATE pay SET amount = $1 WHERE id = $2", args: [.amount, .id]`: "fine sink.postgres.statement: ",
		`statement: "UPDATE pay SET amonut = $1 WHERE id = $2", args: [.amount, .id]`: "broken sink.postgres.statement: column \"amonut\"",
	} {
		lines, report := examined(t, t.TempDir(), `
stores: { db: { postgres: { dsn: "`+address+`" } } }
pipelines:
  p: { source: { http: { listen: "127.0.0.1:0" } }, key: { id: .id }, store: db, sink: { postgres: { store: db, `+sink+` } }, parked: { store: db } }
`)
		wants(t, lines, want, "broken parked.store: ")
		if report.Err != nil {
			t.Error(sink, report.Err)
		}
	}
	var rows int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pay").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows, %v", rows, err)
	}
}
