package runcmd_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestStatusOfARunningPipelineSaysWhatItWaitsFor runs a pipeline into a table that another session has
// locked, and one to a webhook that does not answer.
func TestStatusOfARunningPipelineSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	const secret = "canary-83b0"
	database, dir, address := programtest.Servers.Database(t), t.TempDir(), servicestest.FreeAddr(t)
	answers := make(chan struct{})
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is the end of its connection seen
		select {
		case <-answers:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(target.Close)
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores:
  db:   { postgres: { dsn: %q } }
  keys: { embedded: { path: keys } }
pipelines:
  rows:  { source: { file: { paths: [in.jsonl], follow: true, state: rows } }, key: { id: .id }, store: db, sink: { postgres: { store: db, table: rows, columns: { id: .id } } }, on_failure: { attempts: 1 }, parked: { path: p } }
  calls: { source: { file: { paths: [in.jsonl], follow: true, state: calls } }, key: { id: .id }, store: keys, sink: { webhook: { url: %q, allow_private: true, timeout: 10m } }, lease: 20m, parked: { path: p } }
  idle:  { source: { file: { paths: [none.jsonl], follow: true, state: idle } }, key: { id: .id }, store: keys, sink: { webhook: { url: %[2]q, allow_private: true } }, parked: { path: p } }
`, database, target.URL))
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "")
	programtest.WriteFile(t, filepath.Join(dir, "none.jsonl"), "")
	if got := programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db"); got.Status != term.ExitDone {
		t.Fatal(got.Stderr)
	}
	other, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	for _, statement := range []string{"CREATE TABLE rows (id text)", "BEGIN", "LOCK TABLE rows"} {
		if _, err := other.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	lock := fmt.Sprintf("a statement waited for a lock that PostgreSQL session %d holds (", other.PgConn().PID())
	end := fmt.Sprintf("wait, or end it with SELECT pg_terminate_backend(%d)", other.PgConn().PID())
	stop := programtest.Background(t, "run", file, "--admin", address, "--log-format", "json")
	for _, name := range []string{"rows", "calls", "idle"} {
		programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusOK, name+": ready")
	}
	began := time.Now()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\""+secret+"\"}\n{\"id\":\"two\"}\n")
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusServiceUnavailable, ": "+lock)
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusServiceUnavailable, "calls: not ready: stalled for ")
	if took := time.Since(began); took < 9*time.Second {
		t.Errorf("it was said after %v", took)
	}
	programtest.WaitForPage(t, address, "/metrics", time.Minute, http.StatusOK, `dedup_stalled{pipeline="rows"} 1`)
	for name, lag := range map[string]string{"rows": "34", "calls": "34", "idle": "0"} { // the lag is counted more rarely than the stall is noticed
		programtest.WaitForPage(t, address, "/metrics", time.Minute, http.StatusOK, `dedup_source_lag_bytes{partition="0",pipeline="`+name+`",source=""} `+lag)
	}
	_, text := programtest.GetPage(t, address, "/readyz")
	if strings.Contains(text, secret) || !strings.Contains(text, "rows: not ready: the sink has not worked since 2") || !strings.Contains(text, end) || !strings.Contains(text, "idle: ready") || !strings.Contains(text, "waiting for an answer from "+target.URL) {
		t.Errorf("%s", text)
	}
	if _, metrics := programtest.GetPage(t, address, "/metrics"); !strings.Contains(metrics, `dedup_stalled{pipeline="rows"} 1`) || !strings.Contains(metrics, `dedup_stalled{pipeline="idle"} 0`) {
		t.Error("the metrics do not say so")
	}
	shown := programtest.WaitForStatus(t, term.ExitFound, []string{
		"rows is not ready: the sink has not worked since ", "\nidle      ready    0/s   -      0 B   0          0       -\n", "\nrows      stalled  0/s   -      34 B  ", "\ncalls     stalled  0/s   -      34 B  2          0       -\n",
	}, "--admin", address)
	if strings.Contains(shown, secret) {
		t.Errorf("status shows a key:\n%s", shown)
	}
	if _, err := other.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	close(answers)
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusOK, "rows: ready\n")
	programtest.WaitForPage(t, address, "/metrics", time.Minute, http.StatusOK, `dedup_stalled{pipeline="rows"} 0`)
	programtest.WaitForStatus(t, term.ExitDone, []string{
		`{"pipeline":"rows","state":"ready","rate":`, `"read":2,"settled":2,"fresh":2,"duplicate":0,"filtered":0,"superseded":0,"parked":0,"dropped":0,"in_flight":0,`, `{"store":"db","state":"ready"`, `{"store":"keys","state":"ready"`,
	}, file, "--admin", "http://"+address, "--json")
	var rows int
	if err := other.QueryRow(t.Context(), "SELECT count(*) FROM rows").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
	got := stop()
	got.Check(t, term.ExitDone, `"msg":"stalled"`, `"msg":"moves_again"`)
	said := map[string]map[string]any{}
	for line := range strings.Lines(got.Stderr) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if entry["msg"] == "stalled" {
			said[entry["pipeline"].(string)] = entry
		}
	}
	if !strings.Contains(fmt.Sprint(said["rows"]["error"]), end) {
		t.Errorf("the stall does not say how it ends: %v", said["rows"])
	}
	for name, waiting := range map[string]string{"rows": "the sink, which has failed since 2", "calls": "an answer from " + target.URL} {
		entry := said[name]
		if entry["level"] != "WARN" || entry["in_flight"] != 2.0 || entry["oldest"] != filepath.Join(dir, "in.jsonl")+"/0/0" ||
			entry["for"] == nil || !strings.Contains(fmt.Sprint(entry["waiting_for"]), waiting) {
			t.Errorf("%s: %v", name, entry)
		}
	}
	if said["idle"] != nil {
		t.Errorf("a pipeline without work: %v", said["idle"])
	}
}

// TestRunSaysThatAServerIsSilentAtTheStart has a server that accepts connections and
// says nothing. The clients of PostgreSQL and Redis give up and try again. A try of the
// Kafka client takes longer than the ten seconds of a stall.
func TestRunSaysThatAServerIsSilentAtTheStart(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	dir, address := t.TempDir(), servicestest.FreeAddr(t)
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "")
	stop := programtest.BackgroundUntil(t, `"msg":"stalled","pipeline":"topic"`, programtest.NoEnv, "run", programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { db: { postgres: { dsn: "postgres://u@%[1]s/x?sslmode=disable" } }, red: { redis: { url: "redis://%[1]s" } }, brief: { memory: {} } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: db, sink: { file: { path: out } } }
  keys: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: red, sink: { file: { path: keys } } }
  topic: { source: { kafka: { brokers: ["%[1]s"], topics: [orders], group: orders } }, key: { id: .id }, store: brief, sink: { file: { path: records } }, parked: { path: parked } }
`, silent.Addr())), "--admin", address)
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusServiceUnavailable, "no Redis server answers at "+silent.Addr().String()+": is the server up")
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusServiceUnavailable, "store db: no answer from "+silent.Addr().String()+": is the server up")
	stop().Check(t, term.ExitDone, `"level":"WARN","msg":"stalled","pipeline":"topic","for":"1`, `"waiting_for":"the first answer of its servers: is each address right, and can this machine reach it?"`,
		`"pipeline":"copy","error":"store db: no answer from `+silent.Addr().String(), `"pipeline":"keys","error":"store red: no Redis server answers at `+silent.Addr().String())
}
