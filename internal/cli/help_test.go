package cli_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// addStores adds the stores that the keys examples read: seen as dedup leaves it,
// and ledger as a program with readable ids leaves it.
func addStores(t *testing.T, dir string) {
	t.Helper()
	seen, err := logstore.Open(filepath.Join(dir, "seen"), &logstore.Options{Fsync: logstore.Never})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"evt_01HX7Z2M", "evt_01HX7Z3C"} {
		programtest.Claim(t, seen, semel.ClaimRequest{Key: semel.Key{ID: id}, Done: true})
	}
	if err := seen.Close(); err != nil {
		t.Fatal(err)
	}
	ledger := programtest.NewStore(t, func(_ context.Context, store *logstore.Store) {
		programtest.Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: "order-41"}, Done: true})
		programtest.AddUnknown(t, store, "order-42")
		programtest.AddUnknown(t, store, "order-43")
	})
	if err := os.Rename(ledger, filepath.Join(dir, "ledger")); err != nil {
		t.Fatal(err)
	}
}

// addAudit makes changes by hand, for the audit examples.
func addAudit(t *testing.T, dir string) {
	t.Helper()
	programtest.Run(t, "", "keys", "rm", "order-41", "--store", filepath.Join(dir, "ledger"), "--reason", "sent twice", "-q").Check(t, term.ExitDone)
	file := filepath.Join(dir, "audited.yaml")
	programtest.WriteFile(t, file, programtest.PipelinesExample)
	programtest.Run(t, "", "parked", "skip", "77e0b5c2f14d4a9c83d6fb10", "--reason", "test data", "--config", file, "-q").Check(t, term.ExitDone)
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
	walk(cli.NewCommand(&term.App{Kinds: kind.All()}))
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
func endedAt(message, line string) string { return endedAfter(`"msg":"`+message+`"`, line) }

// endedAfter is endedAt for any text on stderr.
func endedAfter(text, line string) string {
	return line + ` 2> log & program=$!
until grep -q '` + text + `' log; do kill -0 $program || { cat log; exit 1; }; done
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
		dir, binaries := programtest.ExampleDir(t)
		if strings.Contains(line, "semel keys ") || strings.Contains(line, "semel parked done ") || strings.Contains(line, "semel doctor ") || strings.Contains(line, "semel why ") {
			addStores(t, dir)
		}
		if strings.Contains(line, "semel parked ") {
			programtest.AddParked(t, dir)
		}
		if strings.Contains(line, "semel audit ") {
			addStores(t, dir)
			programtest.AddParked(t, dir)
			addAudit(t, dir)
		}
		database := ""
		if strings.Contains(line, "semel migrate ") && !strings.Contains(line, "semel migrate sql ") {
			database = programtest.NewDatabase(t, strings.Contains(line, "semel migrate status "))
		}
		if strings.Contains(line, "semel outbox ") {
			database = programtest.NewDatabase(t, true)
			programtest.WriteFile(t, filepath.Join(dir, "relay.yaml"), outboxExample)
			line = endedAt("running", line)
		}
		if strings.Contains(line, "semel ui ") {
			database = programtest.NewDatabase(t, true)
			programtest.WriteFile(t, filepath.Join(dir, "pipelines.yaml"), outboxExample)
			line, _, _ = strings.Cut(line, " --listen ")
			line = endedAfter("open http://127.0.0.1:", line+" --listen 127.0.0.1:0")
		}
		if strings.Contains(line, "semel serve") {
			programtest.WriteFile(t, filepath.Join(dir, "api.yaml"), "stores: { keys: { embedded: { path: keys } } }\n")
			line, _, _ = strings.Cut(line, " --listen ")
			if !strings.Contains(line, " --socket ") {
				line += " --listen 127.0.0.1:0"
			}
			line = endedAt("serve", line+" --admin off")
		}
		if strings.Contains(line, "semel status ") {
			address := servicestest.FreeAddr(t)
			running := programtest.CopyConfig(t, ", follow: true", "")
			programtest.WriteFile(t, running, strings.Replace(programtest.ReadFile(t, running), "  copy:", "  lines:", 1))
			programtest.Background(t, "run", running, "--admin", address)
			programtest.WriteFile(t, filepath.Join(dir, "pipelines.yaml"), programtest.PipelinesExample+"admin: { listen: \""+address+"\" }\n")
			line = strings.ReplaceAll(line, "127.0.0.1:4195", address)
			line = "for try in 1 2 3; do if " + line + "; then exit; fi; done; exit 3" // a process that stands still is not ready
		}
		if strings.Contains(line, "semel kafka ") {
			broker := programtest.KafkaWithATransaction(t)
			programtest.WriteFile(t, filepath.Join(dir, "kafka.yaml"), strings.ReplaceAll(programtest.KafkaExample, "127.0.0.1:9092", broker))
			line = strings.ReplaceAll(line, "127.0.0.1:9092", broker)
		}
		if strings.Contains(line, "semel verify http ") {
			upstream, scope := programtest.StartVerifyUpstream(t), httpidem.AnyCaller
			if strings.Contains(line, " --as ") {
				scope = programtest.APIKey
			}
			line = strings.NewReplacer("http://127.0.0.1:8080", programtest.ProxyWithKeys(t, upstream, scope), "http://127.0.0.1:9000", upstream).Replace(line)
		} else if strings.Contains(line, "semel verify upstream") {
			line = endedAfter("listens on http://", strings.TrimSuffix(line, " --listen 127.0.0.1:9000")+" --listen 127.0.0.1:0")
		}
		if !strings.Contains(line, "semel ") {
			t.Errorf("%s: the example does not run the program: %s", path, line)
		}
		if strings.Contains(line, "semel proxy ") {
			line = servedLine(line)
		}
		shell := exec.CommandContext(t.Context(), "sh", "-e", "-c", line)
		shell.Dir = dir
		shell.Env = append(os.Environ(), "PATH="+binaries+string(os.PathListSeparator)+os.Getenv("PATH"), programtest.Variable+"=1", "DATABASE_URL="+database, "ALICE=alice", "BOB=bob",
			"GORACE=atexit_sleep_ms=0") // by default each program sleeps for a second when it ends
		if output, err := shell.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, output)
		}
	}
}
