package runcmd_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// chain writes a configuration with a file that becomes rows and events in one
// transaction, and a relay that delivers the events to a file.
func chain(t *testing.T) (dir, file string, pool *pgxpool.Pool) {
	t.Helper()
	dir = t.TempDir()
	address := programtest.Servers.Database(t)
	file = programtest.WriteFile(t, filepath.Join(dir, "chain.yaml"), fmt.Sprintf(`stores:
  db: { postgres: { dsn: %q } }
pipelines:
  bill:
    source: { file: { paths: [orders.jsonl] } }
    key: { id: .id }
    window: 7d
    store: db
    sink: { postgres: { store: db, table: bills, columns: { id: key, amount: .amount }, outbox: { aggregate: .customer, topic: billed } } }
    parked: { store: db }
    batch: 20
    order: partition
  relay:
    source: { outbox: { store: db } }
    key: { id: ["header:semel-key", "property:message-id"] }
    sink: { file: { path: events.jsonl } }
    parked: { store: db }
    lease: 1s
`, address))
	programtest.Exec(t, address, "CREATE TABLE bills (id text PRIMARY KEY, amount int)")
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return dir, file, pool
}

func TestARowAndItsEventAreOneTransaction(t *testing.T) {
	t.Parallel()
	dir, file, pool := chain(t)
	programtest.WriteFile(t, filepath.Join(dir, "orders.jsonl"), `{"id":"a","customer":"alice","amount":1}
{"id":"b","customer":"bob","amount":"none"}
{"id":"c","amount":3}
{"id":"a","customer":"alice","amount":1}
{"id":"018f3c5a-0000-7000-8000-00000000000d","customer":"dora","amount":4}
`)
	programtest.Run(t, "", "lint", file).Check(t, term.ExitDone, "0 broken")
	if got := programtest.Run(t, "", "explain", file, "bill"); !strings.Contains(got.Stdout, "→ postgres table bills and outbox of db") || !strings.Contains(got.Stdout, "one transaction in PostgreSQL") {
		t.Errorf("%+v", got)
	}
	got := programtest.Run(t, "", "doctor", file)
	if !strings.Contains(got.Stdout, "the database has no outbox") {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox")
	if got = programtest.Run(t, "", "doctor", file); !strings.Contains(got.Stdout, "sink.postgres.outbox") || strings.Contains(got.Stdout, "has no outbox") {
		t.Errorf("%+v", got)
	}
	stop := programtest.Background(t, "run", file, "bill", "--admin", "off")
	programtest.BecomesTrue(t, pool, "SELECT count(*) = 2 FROM semel_parked")
	programtest.BecomesTrue(t, pool, "SELECT count(*) = 2 FROM bills")
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	const uuid = "018f3c5a-0000-7000-8000-00000000000d"
	for sql, want := range map[string]string{
		"SELECT string_agg(id, ' ' ORDER BY id) FROM bills":                                                                         uuid + " a",
		"SELECT string_agg(aggregate || ' ' || topic || ' ' || (headers->>'semel-key'), ', ' ORDER BY aggregate) FROM semel_outbox": "alice billed a, dora billed " + uuid,
		"SELECT id::text FROM semel_outbox WHERE aggregate = 'dora'":                                                                uuid,
		"SELECT (get_byte(uuid_send(id), 6) >> 4)::text FROM semel_outbox WHERE aggregate = 'alice'":                                "5",
		"SELECT convert_from(payload, 'UTF8') FROM semel_outbox WHERE aggregate = 'alice'":                                          `{"id":"a","customer":"alice","amount":1}`,
		"SELECT headers->>'semel-origin' FROM semel_outbox WHERE aggregate = 'alice'":                                               filepath.Join(dir, "orders.jsonl") + ", byte 0",
	} {
		if got := programtest.QueryValue[string](t, pool, sql); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	if got := programtest.Run(t, "", "parked", "ls", "--config", file, "--json"); !strings.Contains(got.Stdout, "the aggregate of the outbox, .customer, is missing") {
		t.Errorf("%+v", got)
	}
	text := strings.ReplaceAll(programtest.ReadFile(t, file), "  relay:\n    source: { outbox: { store: db } }", "  relay:\n    source: { file: { paths: [none] } }\n    store: db")
	alone := programtest.WriteFile(t, filepath.Join(dir, "alone.yaml"), text) // the relay has a file of its own
	if got := programtest.Run(t, "", "why", "a", "--config", alone); strings.Count(got.Stdout, "written to the outbox; it waits, and no relay owns its shard\n") != 1 || !strings.Contains(got.Stdout, "outbox of db: rows that wait; this file has no pipeline that reads it") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "why", "a", "--config", file); strings.Count(got.Stdout, "outbox of db, row") != 1 {
		t.Errorf("the event is not found by the key of the message: %+v", got)
	}
}

// TestEveryRowHasOneEventAfterKills kills the program while it makes rows and events, and
// delivers these. In the end each message has one row and one event, and the events of a
// customer are in their order.
func TestEveryRowHasOneEventAfterKills(t *testing.T) {
	t.Parallel()
	dir, file, pool := chain(t)
	const messages, customers, kills = 2000, 10, 5
	var lines bytes.Buffer
	for i := range messages {
		fmt.Fprintf(&lines, "{\"id\":\"o%d\",\"customer\":\"c%d\",\"amount\":%d}\n", i, i%customers, i)
	}
	programtest.WriteFile(t, filepath.Join(dir, "orders.jsonl"), lines.String())
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox")
	for n := range kills {
		command := programtest.Start(t, "running", "run", file, "--admin", "off")
		programtest.BecomesTrue(t, pool, fmt.Sprintf("SELECT count(*) >= %d FROM bills", messages*(n+1)/(kills+2)))
		_ = command.Process.Signal(syscall.SIGKILL)
		_ = command.Wait()
		// One statement, because the server may still commit what was on its way.
		if !programtest.QueryValue[bool](t, pool, "SELECT (SELECT count(*) FROM bills) = (SELECT count(*) FROM semel_keys)") {
			t.Fatal("there are not as many rows as keys")
		}
	}
	stop := programtest.Background(t, "run", file, "--admin", "off")
	programtest.BecomesTrue(t, pool, fmt.Sprintf("SELECT (SELECT count(*) FROM bills) = %d AND (SELECT count(*) FROM semel_outbox) = 0", messages))
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	first := map[string]bool{}
	var events []string
	data, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	repeats := 0
	for line := range strings.Lines(string(data)) {
		if !strings.HasSuffix(line, "}\n") || first[line] {
			repeats++ // a kill may cut a line, and repeat an event
			continue
		}
		first[line] = true
		events = append(events, line)
	}
	t.Logf("%d events, %d repeats", len(events), repeats)
	if len(events) != messages {
		t.Errorf("%d different events, want %d", len(events), messages)
	}
	for c := range customers {
		last := -1
		for _, line := range events {
			var id, of, amount int
			if _, err := fmt.Sscanf(line, `{"id":"o%d","customer":"c%d","amount":%d}`, &id, &of, &amount); err != nil {
				t.Fatal(line, err)
			}
			if of == c && id < last {
				t.Fatalf("event %d of customer %d comes after %d", id, c, last)
			} else if of == c {
				last = id
			}
		}
	}
}
