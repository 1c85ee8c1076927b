package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// exampleDir creates a directory with all files that the examples mention, and a
// path with the program's name.
func exampleDir(t *testing.T) (dir, binaries string) {
	t.Helper()
	dir, binaries = t.TempDir(), t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(binaries, "semel")); err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(filepath.Join("..", "..", "examples", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	const orders = `{"user":{"id":"u-1"},"order_id":7}` + "\n" + `{"user":{"id":"u-2"},"order_id":7}` + "\n"
	for name, content := range map[string][]byte{
		"events.jsonl":          events,
		"examples/events.jsonl": events,
		"day-1.jsonl":           events,
		"in.jsonl":              events,
		"day-2.jsonl":           events,
		"logs/app-1.gz":         zipped(t, orders),
		"logs/app-2.gz":         zipped(t, orders),
		"semel.yaml":            []byte("stores:\n  ledger: { embedded: { path: ./ledger } }\n  db: { postgres: { dsn: \"${env:DATABASE_URL:-host=localhost}\" } }\n"),
		"pipelines.yaml":        []byte(pipelinesExample),
		"backfill.yaml":         []byte(strings.ReplaceAll(pipelinesExample, "in.jsonl", "keys.jsonl")),
		"api.yaml":              []byte("stores:\n  keys: { embedded: { path: ./keys } }\nproxy: { listen: \"127.0.0.1:0\", upstream: \"http://127.0.0.1:9000\", store: keys, scope: basic }\nadmin: { listen: \"127.0.0.1:0\" }\n"),
		"cases.jsonl":           []byte(`{"name":"an order","body":{"id":"order-7"},"key":"order-7","decision":"fresh"}` + "\n"),
		"keys.jsonl":            []byte(`{"id":"order-40"}` + "\n"),
	} {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, binaries
}

// pipelinesExample is the configuration that the pipeline examples use.
const pipelinesExample = `stores:
  ledger: { embedded: { path: ./ledger } }
pipelines:
  lines:
    source: { file: { paths: [in.jsonl] } }
    key: { id: .id }
    store: ledger
    sink: { file: { path: out.jsonl } }
`

// databaseFor creates a database, with or without tables.
func databaseFor(t *testing.T, migrated bool) string {
	t.Helper()
	address := servers.Database(t)
	if migrated {
		file := filepath.Join(t.TempDir(), "migrate.yaml")
		writeFile(t, file, "stores: { db: { postgres: { dsn: \""+address+"\" } } }")
		run(t, "", "migrate", "up", "--config", file, "--quiet").check(t, term.ExitDone)
	}
	return address
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// addStores adds the stores that the keys examples read: seen as dedup leaves it,
// and ledger as a program with readable ids leaves it.
func addStores(t *testing.T, dir string) {
	t.Helper()
	seen, err := logstore.Open(filepath.Join(dir, "seen"), &logstore.Options{Fsync: logstore.Never})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"evt_01HX7Z2M", "evt_01HX7Z3C"} {
		claim(t, seen, semel.ClaimRequest{Key: semel.Key{ID: id}, Done: true})
	}
	if err := seen.Close(); err != nil {
		t.Fatal(err)
	}
	ledger := fill(t, func(_ context.Context, store *logstore.Store) {
		claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: "order-41"}, Done: true})
		addUnknown(t, store, "order-42")
		addUnknown(t, store, "order-43")
	})
	if err := os.Rename(ledger, filepath.Join(dir, "ledger")); err != nil {
		t.Fatal(err)
	}
}

// addParked parks the messages that the parked examples mention.
func addParked(t *testing.T, dir string) {
	t.Helper()
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(dir, "semel-parked"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Hour)
	err = letters.Park(t.Context(), []pipeline.Parked{
		{ID: "9f2c41d07be35a1186c0de42", Pipeline: "lines", Key: semel.Key{Scope: "lines", ID: "order-7"}, Reason: "permanent", Error: "the target refused it", Attempts: 1, At: at,
			Message: semel.Message{Body: []byte(`{"id":"order-7"}`)}},
		{ID: "0c51aa7e9d3b4f62a8d17e05", Pipeline: "lines", Reason: "key-missing", Error: "key: .id is absent", At: at, Message: semel.Message{Body: []byte(`{"id":"order-9"}`)}},
		{ID: "77e0b5c2f14d4a9c83d6fb10", Pipeline: "lines", Key: semel.Key{Scope: "lines", ID: "order-8"}, Reason: "unknown", Error: "outcome unknown", Attempts: 2, At: at},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// addAudit makes changes by hand, for the audit examples.
func addAudit(t *testing.T, dir string) {
	t.Helper()
	run(t, "", "keys", "rm", "order-41", "--store", filepath.Join(dir, "ledger"), "--reason", "sent twice", "-q").check(t, term.ExitDone)
	file := filepath.Join(dir, "audited.yaml")
	writeFile(t, file, pipelinesExample)
	run(t, "", "parked", "skip", "77e0b5c2f14d4a9c83d6fb10", "--reason", "test data", "--config", file, "-q").check(t, term.ExitDone)
}

// This must not run in parallel with other tests. A child that was forked and has
// not yet become sh holds every file of this process, and with it the locks of
// their stores.
func TestExamplesOfEveryHelpWorkAsPrinted(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			checkExamples(t, path, cmd.Example)
		})
		for _, child := range cmd.Commands() {
			walk(child)
		}
	}
	walk(newRootCommand(&term.App{Kinds: kind.All()}))
}

// servedLine starts the proxy of a line, ends it when it serves, and has its exit status.
func servedLine(line string) string {
	if !strings.Contains(line, ".yaml") {
		line += " --listen 127.0.0.1:0 --admin off"
	}
	return endedAt("proxy", strings.Replace(line, " --log-level warn", "", 1))
}

// endedAt starts the program of a line, ends it when it logs this message, and has its
// exit status.
func endedAt(message, line string) string {
	return line + ` 2> log & program=$!
until grep -q '"msg":"` + message + `"' log; do kill -0 $program || { cat log; exit 1; }; done
kill $program && wait $program`
}

// outboxExample is a configuration that reads an outbox.
const outboxExample = `stores:
  db: { postgres: { dsn: "${env:DATABASE_URL}" } }
pipelines:
  events:
    source: { outbox: { store: db } }
    key: { id: property:message-id }
    sink: { file: { path: events.jsonl } }
`

func checkExamples(t *testing.T, path, examples string) {
	lines := strings.Split(examples, "\n")
	if len(lines) < 2 || len(lines) > 3 {
		t.Errorf("%s has %d examples: two or three are wanted", path, len(lines))
	}
	for _, line := range lines {
		dir, binaries := exampleDir(t)
		if strings.Contains(line, "semel keys ") || strings.Contains(line, "semel parked done ") || strings.Contains(line, "semel doctor ") || strings.Contains(line, "semel why ") {
			addStores(t, dir)
		}
		if strings.Contains(line, "semel parked ") {
			addParked(t, dir)
		}
		if strings.Contains(line, "semel audit ") {
			addStores(t, dir)
			addParked(t, dir)
			addAudit(t, dir)
		}
		database := ""
		if strings.Contains(line, "semel migrate ") && !strings.Contains(line, "semel migrate sql ") {
			database = databaseFor(t, strings.Contains(line, "semel migrate status "))
		}
		if strings.Contains(line, "semel outbox ") {
			database = databaseFor(t, true)
			writeFile(t, filepath.Join(dir, "relay.yaml"), outboxExample)
			line = endedAt("running", line)
		}
		if strings.Contains(line, "semel status ") {
			address := servicestest.FreeAddr(t)
			running := copyConfig(t, ", follow: true", "")
			writeFile(t, running, strings.Replace(readFile(t, running), "  copy:", "  lines:", 1))
			background(t, "run", running, "--admin", address)
			writeFile(t, filepath.Join(dir, "pipelines.yaml"), pipelinesExample+"admin: { listen: \""+address+"\" }\n")
			line = strings.ReplaceAll(line, "127.0.0.1:4195", address)
		}
		if strings.Contains(line, "semel kafka ") {
			broker := kafkaWithATransaction(t)
			writeFile(t, filepath.Join(dir, "kafka.yaml"), strings.ReplaceAll(kafkaExample, "127.0.0.1:9092", broker))
			line = strings.ReplaceAll(line, "127.0.0.1:9092", broker)
		}
		if strings.Contains(line, "semel verify http ") {
			upstream, scope := verifyUpstream(t), httpidem.Global
			if strings.Contains(line, " --as ") {
				scope = apiKey
			}
			line = strings.NewReplacer("http://127.0.0.1:8080", keyed(t, upstream, scope), "http://127.0.0.1:9000", upstream).Replace(line)
		} else if strings.Contains(line, "semel verify upstream") {
			line = "timeout 2 " + strings.TrimSuffix(line, " --listen 127.0.0.1:9000") + " --listen 127.0.0.1:0 2>log || grep 'listens on http://' log"
		}
		if !strings.Contains(line, "semel ") {
			t.Errorf("%s: the example does not run the program: %s", path, line)
		}
		if strings.Contains(line, "semel proxy ") {
			line = servedLine(line)
		}
		shell := exec.CommandContext(t.Context(), "sh", "-e", "-c", line)
		shell.Dir = dir
		shell.Env = append(os.Environ(), "PATH="+binaries+string(os.PathListSeparator)+os.Getenv("PATH"), programVariable+"=1", "DATABASE_URL="+database, "ALICE=alice", "BOB=bob",
			"GORACE=atexit_sleep_ms=0") // by default each program sleeps for a second when it ends
		if output, err := shell.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, output)
		}
	}
}
