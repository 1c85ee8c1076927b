package runcmd_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// outputs are the bodies that the sinks get.
var outputs = []string{`{"customer":7,"cents":9007199254740993}`, `{"customer":9,"cents":1}`}

// ended is the summary of a pipeline that has processed orders.
const ended = `msg=ended pipeline=p read=6 fresh=2 duplicate=2 parked=1 filtered=1`

func TestFilterAndMapFromFileToFile(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]string{"checkpointed": "embedded: { path: DIR/keys }", "two-phase": "memory: {}"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			out := filepath.Join(dir, "out.jsonl")
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), strings.Join(programtest.PaidOrders, "\n")+"\n")
			config := strings.NewReplacer("DIR", dir).Replace(`
stores: { keys: { ` + store + ` } }
pipelines:
  p:` + programtest.PaidOnly + `    window: 7d
    store: keys
    source: { file: { paths: [DIR/in.jsonl] } }
    sink: { file: { path: DIR/out.jsonl } }
    parked: { path: DIR/parked }
`)
			file := programtest.WriteFile(t, filepath.Join(dir, "semel.yaml"), config)
			dry := programtest.Run(t, "", "dry-run", file)
			for _, line := range []string{"  fresh                 2  processed\n", "  e1: " + outputs[0] + "\n", "  duplicate             2  dropped\n",
				"  filtered              1  not delivered, and remembered\n", "  failed                1  parked\n", `e3: filter value.status == "paid": no such key: status`} {
				if !strings.Contains(dry.Stdout, line) {
					t.Errorf("dry-run lacks %q: %s", line, dry.Stdout)
				}
			}
			programtest.Run(t, "", "run", file, "--admin", "off", "--log-format", "text").Check(t, term.ExitDone, ended, "msg=parked", `reason=permanent`, "no such key: status")
			if got := programtest.ReadFile(t, out); got != strings.Join(outputs, "\n")+"\n" {
				t.Errorf("the output is %q", got)
			}
			shown := programtest.Run(t, "", "parked", "ls", "--config", file, "--json")
			if !strings.Contains(shown.Stdout, "filter value.status") || strings.Count(shown.Stdout, "\n") != 1 || !strings.Contains(shown.Stdout, `"attempts":1`) {
				t.Errorf("parked: %s", shown.Stdout)
			}
			if name == "two-phase" {
				return
			}
			for _, id := range []string{"e1", "e2", "e4"} { // e2 was filtered out
				if got := programtest.Run(t, "", "keys", "show", id, "--store", filepath.Join(dir, "keys"), "--scope", "p"); !strings.Contains(got.Stdout, "done") {
					t.Errorf("the key %s: %s%s", id, got.Stdout, got.Stderr)
				}
			}
			// With another filter, the parked message is redriven. The message that was filtered
			// out is a duplicate.
			programtest.WriteFile(t, file, strings.Replace(config, `value.status == "paid"`, `value.?status.orValue("paid") != "none"`, 1))
			programtest.Run(t, "", "parked", "retry", "--all", "--config", file, "-q").Check(t, term.ExitDone)
			if got := programtest.ReadFile(t, out); !strings.HasSuffix(got, `{"customer":8,"cents":6}`+"\n") || strings.Contains(got, `"cents":5`) {
				t.Errorf("after the retry the output is %q", got)
			}
		})
	}
}

// kafkaOrders writes the orders to a new topic on a real broker.
func kafkaOrders(t *testing.T, topic string) (brokers string, client *kgo.Client) {
	t.Helper()
	brokers = programtest.Servers.Kafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(topic+"-out", topic+"-parked"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, topic, topic+"-out", topic+"-parked"); err != nil {
		t.Fatal(err)
	}
	for _, body := range programtest.PaidOrders {
		r := &kgo.Record{Topic: topic, Key: []byte("r"), Value: []byte(body), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	return brokers, client
}

func TestFilterAndMapInAKafkaTransaction(t *testing.T) {
	t.Parallel()
	topic := servicestest.Topic()
	brokers, client := kafkaOrders(t, topic)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), strings.NewReplacer("TOPIC", topic, "BROKERS", brokers, "DIR", t.TempDir()).Replace(`
pipelines:
  p:`+programtest.PaidOnly+`    source: { kafka: { brokers: [BROKERS], topics: [TOPIC], group: TOPIC } }
    sink: { kafka: { brokers: [BROKERS], topic: TOPIC-out } }
    parked: { topic: TOPIC-parked }
    transaction: { state: DIR }
`))
	stop := programtest.BackgroundUntil(t, "msg=parked", programtest.NoEnv, "run", file, "--admin", "off", "--log-format", "text")
	var got, parked []string
	for len(got) < len(outputs) || len(parked) < 1 {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Topic == topic+"-parked" {
				parked = append(parked, string(r.Value))
			} else if got = append(got, string(r.Value)); string(r.Key) != "r" || r.Headers[0].Key != "h" || string(r.Headers[1].Value) != "e1" && string(r.Headers[1].Value) != "e4" {
				t.Errorf("the output has the key %s and the headers %v", r.Key, r.Headers)
			}
		})
	}
	stop().Check(t, term.ExitDone, ended)
	if !slices.Equal(got, outputs) || !slices.Equal(parked, programtest.PaidOrders[3:4]) {
		t.Errorf("outputs %q, parked %q", got, parked)
	}
}

func TestFilterAndMapInATransactionOfPostgreSQL(t *testing.T) {
	t.Parallel()
	topic, database := servicestest.Topic(), programtest.Servers.Database(t)
	brokers, _ := kafkaOrders(t, topic)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE paid (id text, customer int8, cents int8)"); err != nil {
		t.Fatal(err)
	}
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), strings.NewReplacer("TOPIC", topic, "BROKERS", brokers, "DSN", database, "DIR", t.TempDir()).Replace(`
stores: { db: { postgres: { dsn: "DSN" } } }
pipelines:
  p:`+programtest.PaidOnly+`    store: db
    source: { kafka: { brokers: [BROKERS], topics: [TOPIC], group: TOPIC } }
    sink: { postgres: { store: db, table: paid, columns: { id: key, customer: .customer, cents: .cents } } }
    parked: { path: DIR }
`))
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db", "-q").Check(t, term.ExitDone)
	stop := programtest.BackgroundUntil(t, "msg=parked", programtest.NoEnv, "run", file, "--admin", "off", "--log-format", "text")
	rows := func() string {
		list, err := conn.Query(t.Context(), "SELECT id || ' ' || customer || ' ' || cents FROM paid ORDER BY id")
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(list, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(got, ", ")
	}
	const want = "e1 7 9007199254740993, e4 9 1"
	for rows() != want && t.Context().Err() == nil {
		if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(0.02)"); err != nil {
			t.Fatal(err)
		}
	}
	stop().Check(t, term.ExitDone, ended)
	var done int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM semel_keys").Scan(&done); err != nil || done != 3 {
		t.Errorf("%d keys are remembered, want those of two rows and of the filtered message: %v", done, err)
	}
}
