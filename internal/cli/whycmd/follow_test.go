package whycmd_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestWhyFollowsAKey follows an event from the outbox through Kafka into a table, and
// one that the table refuses.
func TestWhyFollowsAKey(t *testing.T) {
	t.Parallel()
	address := programtest.Servers.Database(t)
	_, broker := programtest.FakeKafka(t)
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
	programtest.Exec(t, address, "CREATE TABLE shipped (id uuid, body text CHECK (body <> 'poison'))")
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox")
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
	why := func(args ...string) string {
		t.Helper()
		got := programtest.Run(t, "", append([]string{"why", "--config", file}, args...)...)
		if got.Status != term.ExitDone {
			t.Errorf("%+v", got)
		}
		return got.Stdout
	}
	if got := why(good); !strings.Contains(got, "outbox of db, row 1: written to the outbox; it waits, and no relay owns its shard") {
		t.Errorf("before it was delivered: %s", got)
	}
	if got := why("nothing"); !strings.HasPrefix(got, "nothing is known of this key\n") || !strings.Contains(got, "\n\nlooked in\n") {
		t.Errorf("of no key: %s", got)
	}
	stop := programtest.Background(t, "run", file, "--admin", "off")
	programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 1 AND (SELECT count(*) FROM shipped) = 1 AND (SELECT count(*) FROM semel_parked) = 1")
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	for id, want := range map[string][]string{
		good:   {"outbox of db, row 1: written to the outbox\n", ": published by relay (the time of the message, not of its publication)", "outbox of db, row 1: delivered to topic orders by the relay ", ", attempt 1\n", "outbox of db: rows that relay has not delivered, and those that it has kept", ": in the input of shipping", "store db, pipeline shipping: first seen at orders "},
		poison: {": published by relay", ": in the input of shipping", "parked messages of shipping: parked as "},
	} {
		got := why(id)
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s lacks %q:\n%s", id, text, got)
			}
		}
		if strings.Contains(got, "written to the outbox; it waits") || !strings.Contains(got, "topic orders, messages since ") || !strings.Contains(got, " UTC: 2\n") {
			t.Errorf("%s:\n%s", id, got)
		}
		var last time.Time
		var answer struct {
			Events []struct{ Time time.Time }
			Parked []struct{ ID string }
		}
		if err := json.Unmarshal([]byte(why(id, "--json")), &answer); err != nil || len(answer.Events) < 3 || len(answer.Parked) > 0 != (id == poison) {
			t.Fatalf("%v %+v", err, answer)
		}
		for _, event := range answer.Events {
			if event.Time.Before(last) && !event.Time.IsZero() {
				t.Errorf("out of order: %+v", answer.Events)
			}
			last = event.Time
		}
	}
	if got := why(good, "--messages", "1", "--scope", "other"); !strings.Contains(got, "only the newest 1 of each partition") || !strings.Contains(got, "elsewhere    it is in scope shipping: --scope shipping") {
		t.Errorf("with limits: %s", got)
	}
	programtest.Run(t, "", "why", good, "--config", file, "--since", "0s").Check(t, term.ExitUsage, "--since must be above 0")
	programtest.Run(t, "", "why", good).Check(t, term.ExitUsage, "--config FILE is missing")
}

func TestWhyReadsTheKeysOfATransaction(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t) // free again once the cluster is closed
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "clean"),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) { return net.Listen(network, addr) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.ReplaceAll(programtest.KafkaExample, "127.0.0.1:9092", addr))
	ask := func(more ...string) programtest.Outcome {
		return programtest.Run(t, "", append([]string{"why", "order-7", "--config", file}, more...)...)
	}
	if got := ask(); !strings.Contains(got.Stdout, "orders has never run: topic orders-once-keys: there is no changelog yet") {
		t.Errorf("%+v", got)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, key := range []string{"order-6", "order-7", "order-7"} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Key: []byte(key)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	stop := programtest.Background(t, "run", file, "--admin", "off")
	var got programtest.Outcome
	for deadline := time.Now().Add(5 * time.Minute); !strings.Contains(got.Stdout, "state        done") && time.Now().Before(deadline); {
		<-time.After(50 * time.Millisecond)
		got = ask()
	}
	for _, want := range []string{"pipeline     orders\n", "key          order-7\n", "origin       orders 0/1\n", "next time    it is a duplicate: it is acknowledged without effect, until ", "  keys of orders: first seen at orders 0/1; now done\n", "  keys of orders: scope orders\n"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("lacks %q:\n%+v", want, got)
		}
	}
	if got = ask("--json"); !strings.Contains(got.Stdout, `"origin":"orders 0/1"`) {
		t.Errorf("%+v", got)
	}
	stop().Check(t, term.ExitDone, `"ended"`)
	cluster.Close()
	down := ask()
	down.Check(t, term.ExitFailed, "read the changelog of orders: ", "read the parked messages of pipeline orders: ")
}
