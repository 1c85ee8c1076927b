package runcmd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// relayConfig writes a configuration that reads the outbox of a database, and creates
// the tables of outbox and sink.
func relayConfig(t *testing.T, more string) (file string, pool *pgxpool.Pool) {
	t.Helper()
	return relayConfigOn(t, programtest.Servers.Database(t), more)
}

func relayConfigOn(t *testing.T, address, more string) (file string, pool *pgxpool.Pool) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `stores:
  db: { postgres: { dsn: "%s" } }
pipelines:
  events:
    source: { outbox: { store: db } }
    key: { id: property:message-id }
    sink: { postgres: { store: db, table: delivered, columns: { id: key, aggregate: record-key, body: body } } }
    parked: { store: db }
    lease: 1m
%s`, address, more), 0o600); err != nil {
		t.Fatal(err)
	}
	programtest.Exec(t, address, "CREATE TABLE delivered (n bigint GENERATED ALWAYS AS IDENTITY, id uuid, aggregate text, body text CHECK (body <> 'poison'))")
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return file, pool
}

func TestOutboxIsExplainedAndExamined(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil) // its own: doctor also judges standbys, slots and transactions of a whole server
	file, pool := relayConfigOn(t, server.URL(), "")
	programtest.Run(t, "", "doctor", file).Check(t, term.ExitFound, "") // no tables
	if got := programtest.Run(t, "", "doctor", file); !strings.Contains(got.Stdout, "the database has no outbox") || !strings.Contains(got.Stdout, "semel migrate up --config "+file+" --store-name db") {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 5: outbox")
	programtest.Run(t, "", "lint", file).Check(t, term.ExitDone, "0 to note, 0 with a warning, 0 broken")
	got := programtest.Run(t, "", "explain", file)
	for _, want := range []string{"outbox of db → postgres table delivered", "commits by        deliver, remove the row from the outbox", "nothing lost      yes", "no second effect  unless", "under the same id: a consumer that remembers ids drops it"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("explain lacks %q: %s", want, got.Stdout)
		}
	}
	const id = "018f3c5a-0000-7000-8000-000000000001"
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, outbox.Message{ID: id, Payload: []byte("a")}, outbox.Message{ID: id, Payload: []byte("a")})
	}); err != nil {
		t.Fatal(err)
	}
	if got := programtest.Run(t, "", "dry-run", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "read 2") || !strings.Contains(got.Stdout, "1  processed: the pipeline keeps no keys") || !strings.Contains(got.Stdout, "events keeps no keys: it delivers every row of its outbox") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "doctor", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "0 live relays, and 0 shards without a relay whose rows wait") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "why", "x", "--config", file); !strings.Contains(got.Stdout, "events keeps no keys") {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct{ more, want string }{
		{"  second:\n    source: { outbox: { store: db } }\n    key: { id: property:message-id }\n    sink: { file: { path: out } }\n", "events reads the same outbox (line 4)"},
		{"  second:\n    source: { outbox: { store: dc } }\n    key: { id: property:message-id }\n    sink: { file: { path: out } }\n", `there is no store "dc"`},
	} {
		file, _ := relayConfig(t, c.more)
		programtest.Run(t, "", "lint", file).Check(t, term.ExitUsage, c.want)
	}
	other, _ := relayConfig(t, "  lines:\n    source: { file: { paths: [in] } }\n    store: db\n    key: { id: .id }\n    sink: { file: { path: out } }\n")
	programtest.Run(t, "", "outbox", "relay", other, "lines").Check(t, term.ExitUsage, "the source of lines is no outbox: semel run "+other+" lines")
}

// TestPoisonEventDelaysOnlyItsAggregate has an event that the target refuses permanently. Those
// behind it follow when it is parked; parked retry delivers it later.
func TestPoisonEventDelaysOnlyItsAggregate(t *testing.T) {
	t.Parallel()
	file, pool := relayConfig(t, "    on_failure: { attempts: 3, backoff: 200ms }\n")
	programtest.Start(t, "running", "outbox", "relay", file, "--admin", "off", "--migrate")
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, outbox.Message{Aggregate: "a", Payload: []byte("poison")}, outbox.Message{Aggregate: "a", Payload: []byte("behind")}, outbox.Message{Aggregate: "b", Payload: []byte("other")})
	}); err != nil {
		t.Fatal(err)
	}
	programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM delivered) = 2 AND (SELECT count(*) FROM semel_parked) = 1")
	programtest.Exec(t, pool.Config().ConnString(), "ALTER TABLE delivered DROP CONSTRAINT delivered_body_check")
	if got := programtest.Run(t, "", "parked", "retry", "--config", file, "--all"); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	programtest.BecomesTrue(t, pool, "SELECT count(*) = 1 FROM delivered WHERE body = 'poison'")
}

// order changes a row of orders and writes an event, in one transaction that may be long
// and that may be rolled back. The event names the number of the change.
func order(ctx context.Context, pool *pgxpool.Pool, random *rand.Rand) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // no effect after a commit
	var n int
	id := random.IntN(20)
	if err := tx.QueryRow(ctx, "UPDATE orders SET n = n + 1 WHERE id = $1 RETURNING n", id).Scan(&n); err != nil {
		return err
	}
	if err := outbox.Write(ctx, tx, outbox.Message{Aggregate: fmt.Sprint(id), Topic: "orders", Payload: fmt.Append(nil, n)}); err != nil {
		return err
	}
	if random.IntN(10) == 0 { // the server holds it open for up to half a second
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()/2); err != nil {
			return err
		}
	}
	if random.IntN(10) == 0 {
		return tx.Rollback(ctx)
	}
	return tx.Commit(ctx)
}

// TestRelaysThatDieLoseNothing compares what two relays deliver with what writers
// committed, while relays are killed, and stopped for longer than their lease. The
// changes of an order are numbered without gaps, because a number that was rolled back is
// used again.
func TestRelaysThatDieLoseNothing(t *testing.T) {
	t.Parallel()
	rounds := 1
	if !testing.Short() {
		rounds = 10
	}
	file, pool := relayConfig(t, "")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, file, strings.NewReplacer("outbox: { store: db }", "outbox: { store: db, keep: 7d }", "lease: 1m", "lease: 1s").Replace(string(text)))
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 5: outbox")
	programtest.Exec(t, pool.Config().ConnString(), "CREATE TABLE orders AS SELECT id, 0 AS n FROM generate_series(0, 19) AS id")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	var writers sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		writers.Go(func() {
			for writing.Err() == nil {
				if err := order(t.Context(), pool, random); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	begin := func() *exec.Cmd {
		return programtest.Start(t, "running", "outbox", "relay", file, "--admin", "off", "--no-progress")
	}
	both := "SELECT count(DISTINCT owner) = 2 FROM semel_outbox_shards WHERE until > now()"
	first, second := begin(), begin()
	for range rounds {
		programtest.BecomesTrue(t, pool, both)
		if err := first.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait() // it was killed
		first = begin()
		programtest.BecomesTrue(t, pool, both)
		if err := second.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		programtest.BecomesTrue(t, pool, "SELECT count(DISTINCT owner) = 1 AND count(*) = 64 FROM semel_outbox_shards WHERE until > now()")
		if err := second.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	writers.Wait()
	programtest.BecomesTrue(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	checkEvents(t, pool, pool)
}

// checkEvents compares the events that transactions wrote to an outbox with those that were
// delivered: each aggregate has all of them, in their order, and each is moved once.
func checkEvents(t *testing.T, source, target *pgxpool.Pool) {
	t.Helper()
	const firsts = `WITH firsts AS (SELECT DISTINCT ON (id) n, aggregate, body::int AS change FROM delivered ORDER BY id, n) `
	if wrong := programtest.QueryValue[int](t, target, firsts+`SELECT count(*) FROM (SELECT change, row_number() OVER (PARTITION BY aggregate ORDER BY n) AS want FROM firsts) AS f WHERE change <> want`); wrong > 0 {
		t.Errorf("%d events are out of order, lost, or of transactions that were rolled back", wrong)
	}
	want, got := programtest.QueryValue[int](t, source, "SELECT sum(n) FROM orders"), programtest.QueryValue[int](t, target, firsts+"SELECT count(*) FROM firsts")
	if want != got || want < 20 {
		t.Errorf("%d events were committed, and %d delivered", want, got)
	}
	if kept := programtest.QueryValue[int](t, source, "SELECT count(*) FROM semel_outbox_log"); kept != want || programtest.QueryValue[int](t, source, "SELECT count(DISTINCT id) FROM semel_outbox_log") != want {
		t.Errorf("%d rows are kept of %d events: each is moved once", kept, want)
	}
	t.Logf("%d events, %d deliveries", got, programtest.QueryValue[int](t, target, "SELECT count(*) FROM delivered"))
}
