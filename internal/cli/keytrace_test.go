package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/outbox"
)

// TestTraceFollowsAKey follows an event from the outbox through Kafka into a table, and
// one that the table refuses.
func TestTraceFollowsAKey(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	_, broker := fakeKafka(t)
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `stores:
  db: { postgres: { dsn: %q } }
pipelines:
  relay:
    source: { outbox: { store: db, keep: 7d } }
    key: { id: property:message-id }
    sink: { kafka: { brokers: [%[2]q], topic: orders } }
    parked: { store: db }
  shipping:
    source: { kafka: { brokers: [%[2]q], topics: [orders], group: shipping } }
    key: { id: header:semel-key }
    window: 7d
    store: db
    sink: { postgres: { store: db, table: shipped, columns: { id: key, body: body } } }
    on_failure: { attempts: 1 }
    parked: { store: db }
`, address, broker), 0o600); err != nil {
		t.Fatal(err)
	}
	execute(t, address, "CREATE TABLE shipped (id uuid, body text CHECK (body <> 'poison'))")
	run(t, "", "migrate", "up", "--config", file).check(t, term.ExitDone, "outbox")
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const good, poison = "018f3c5a-0000-7000-8000-000000000001", "018f3c5a-0000-7000-8000-000000000002"
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, outbox.Message{ID: good, Aggregate: "a", Payload: []byte("a")}, outbox.Message{ID: poison, Aggregate: "b", Payload: []byte("poison")},
			outbox.Message{Aggregate: "c", DeliverAt: time.Now().Add(time.Hour), Headers: nil, Payload: []byte("later")})
	}); err != nil {
		t.Fatal(err)
	}
	trace := func(args ...string) string {
		t.Helper()
		got := run(t, "", append([]string{"trace", "--config", file, "--key"}, args...)...)
		if got.status != term.ExitDone {
			t.Errorf("%+v", got)
		}
		return got.stdout
	}
	if got := trace(good); !strings.Contains(got, "outbox of db, row 1: written to the outbox; it waits, and no relay owns its shard") {
		t.Errorf("before it was delivered: %s", got)
	}
	if got := trace("nothing"); !strings.HasPrefix(got, "nothing is known of this key\n\nlooked in\n") {
		t.Errorf("of no key: %s", got)
	}
	stop := background(t, "run", file, "--admin", "off")
	becomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 1 AND (SELECT count(*) FROM shipped) = 1 AND (SELECT count(*) FROM semel_parked) = 1")
	if got := stop(); got.status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	for id, want := range map[string][]string{
		good:   {"outbox of db, row 1: written to the outbox\n", ": published by relay (the time of the message, not of its publication)", "outbox of db, row 1: delivered to topic orders by the relay ", ", attempt 1\n", "outbox of db: rows that relay has not delivered, and those that it has kept", ": in the input of shipping", "store db, pipeline shipping: first seen at orders "},
		poison: {": published by relay", ": in the input of shipping", "parked messages of shipping: parked as "},
	} {
		got := trace(id)
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s lacks %q:\n%s", id, text, got)
			}
		}
		if strings.Contains(got, "written to the outbox; it waits") || !strings.Contains(got, "topic orders, messages since ") || !strings.Contains(got, " UTC: 2\n") {
			t.Errorf("%s:\n%s", id, got)
		}
		var last time.Time
		for line := range strings.Lines(trace(id, "--json")) {
			var event struct{ Time time.Time }
			if err := json.Unmarshal([]byte(line), &event); err != nil {
				t.Fatal(err)
			}
			if event.Time.Before(last) && !event.Time.IsZero() {
				t.Errorf("out of order: %s", line)
			}
			last = event.Time
		}
	}
	if got := trace(good, "--messages", "1", "--scope", "other"); !strings.Contains(got, "only the newest 1 of each partition") && !strings.Contains(got, "the scope shipping has the key: add --scope shipping") {
		t.Errorf("with limits: %s", got)
	}
	run(t, "", "trace", "--config", file, "--key", good, "--since", "0s").check(t, term.ExitUsage, "--since must be above 0")
	run(t, "", "trace", "--key", good).check(t, term.ExitUsage, "--config FILE is missing")
}
