package trialcmd_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/cli/trialcmd"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestCasesDefineRowsOfTables(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.JoinsConfig)
	cases := `{"table": "people", "record_key": "ann", "body": {"active": true}}
{"table": "people", "record_key": "bob", "body": {"active": false}}
{"table": "prices", "record_key": "7", "body": {"cents": 10}, "partition": 1, "time": "2026-11-24T13:00:00Z"}
{"body": {"id": 1, "paid": true, "who": "ann", "item": 7}, "partition": 1, "time": "2026-11-24T13:00:00Z", "decision": "fresh", "output": {"cents": 10}}
{"body": {"id": 2, "paid": true, "who": "bob", "item": 7}, "partition": 1, "decision": "filtered"}
{"body": {"id": 3, "paid": false, "who": "eve"}, "decision": "filtered"}
{"body": {"id": 4, "paid": true, "who": "eve"}, "decision": "row-missing"}
{"body": {"id": 4, "paid": true, "who": "eve"}, "decision": "row-missing"}
{"body": {"id": 5, "paid": true, "who": "ann", "item": 7}, "partition": 0, "decision": "row-missing"}
{"body": {"id": 6, "paid": true, "who": "ann", "item": 7}, "partition": 1, "time": "2026-11-24T10:00:00Z", "decision": "late"}
{"table": "people", "record_key": "ann"}
{"body": {"id": 7, "paid": true, "who": "ann", "item": 7}, "partition": 1, "decision": "row-missing"}
`
	got := programtest.Run(t, cases, "test", file, "-")
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "12 cases, 0 failed") {
		t.Error(got.Stdout)
	}
	for line, want := range map[string]string{
		`{"table": "nobody", "record_key": "x"}`:                      "name one of people, prices, unused",
		`{"table": "people"}`:                                         "record_key is missing",
		`{"table": "people", "record_key": "x", "decision": "fresh"}`: "a row has no key, decision or output",
	} {
		programtest.Run(t, line, "test", file, "-").Check(t, term.ExitUsage, want)
	}
}

// TestDryRunReadsTables has messages with and without rows, in each way of the policy.
func TestDryRunReadsTables(t *testing.T) {
	t.Parallel()
	topic, brokers := servicestest.Topic(), programtest.Servers.Kafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	settings := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopics(t.Context(), 2, 1, nil, topic)
	_, err2 := adm.CreateTopics(t.Context(), 2, 1, settings, topic+"-people", topic+"-prices", topic+"-notes")
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	write := func(to string, partition int32, key, body string) {
		t.Helper()
		r := &kgo.Record{Topic: topic + to, Partition: partition, Key: []byte(key), Timestamp: now}
		if body != "" {
			r.Value = []byte(body)
		}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	write("-people", 0, "ann", `{"active": false}`)
	write("-people", 0, "ann", `{"active": true}`)
	write("-people", 1, "bob", `{"active": false}`)
	write("-people", 1, "eve", `{"active": true}`)
	write("-people", 1, "eve", "")
	write("-prices", 0, "7", `{"cents": 10}`)
	write("-prices", 1, "8", `{"cents": 20}`)
	write("", 0, "k", `{"id": 1, "who": "ann", "item": 7}`)  // the newest row
	write("", 0, "k", `{"id": 1, "who": "ann", "item": 7}`)  // a duplicate
	write("", 0, "k", `{"id": 2, "who": "bob", "item": 7}`)  // filtered by its row
	write("", 0, "k", `{"id": 3, "who": "eve", "item": 7}`)  // its row was deleted
	write("", 0, "k", `{"id": 4, "who": "ann", "item": 99}`) // no row
	write("", 0, "k", `{"id": 5, "who": "ann", "item": 8}`)  // the row is in another partition
	write("", 1, "k", `{"id": 6, "who": "ann", "item": 8}`)
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.NewReplacer("TOPIC", topic, "BROKERS", brokers).Replace(`
pipelines:
  p:
    source: { kafka: { brokers: [BROKERS], topics: [TOPIC], group: TOPIC } }
    key: { id: .id }
    window: 2d
    tables:
      people: { topic: TOPIC-people, by: .who, missing: drop }
      prices: { topic: TOPIC-prices, by: .item, read: local, missing: wait }
      notes: { topic: TOPIC-notes, by: .item, missing: pass }
    filter: 'tables.people.active'
    map: '{"cents": tables.prices.cents, "note": has(tables.notes)}'
    sink: { kafka: { brokers: [BROKERS], topic: TOPIC-out } }
`))
	got := programtest.Run(t, "", "dry-run", file, "--for", "1m")
	got.Check(t, term.ExitFound)
	text := strings.Join(strings.Fields(got.Stdout), " ")
	for _, want := range []string{
		"p: read 7, until the end of the source", "table people: 2 rows; looked up without a row: 1 (missing: drop)", "table prices: 2 rows; looked up without a row: 1 (missing: wait)",
		"table notes: 0 rows; looked up without a row: ", "(missing: pass)",
		"fresh 2 processed", `1: {"cents":10,"note":false}`, `6: {"cents":20,"note":false}`, "duplicate 1 dropped", "filtered 1 not delivered, and remembered",
		`5: table prices: the row "8" is in partition 1 of ` + topic + "-prices, and the message in partition 0: write read: global, or write both topics with the key of the row as record key: the pipeline would end",
		"row missing 3 dropped, or parked after the table is read again, or the pipeline would end",
		`3: table people has no row with the key "eve": dropped`, `4: table prices has no row with the key "99": parked after the table is read again`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("dry-run lacks %q: %s", want, got.Stdout)
		}
	}
	var line trialcmd.DryLine
	got = programtest.Run(t, "", "dry-run", file, "--for", "1m", "--json")
	if err := json.Unmarshal([]byte(got.Stdout), &line); err != nil || len(line.Tables) != 3 || line.Tables[0].Name != "people" || line.Tables[0].Rows != 2 || line.Tables[0].Ended != "all there is" || line.Tables[0].Without != 1 || line.Count["row_missing"] != 3 {
		t.Errorf("%v, %+v: %s", err, line, got.Stdout)
	}
	const missing = "3 row missing (dropped, or parked after the table is read again, or the pipeline would end)"
	for late := time.Now().Add(time.Minute); ; { // each reads for a few seconds, in which a busy broker may deliver too little
		got = programtest.Run(t, "", "run", file, "--check")
		if strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), missing) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("run --check: %s%s", got.Stdout, got.Stderr)
		}
	}
	if got = programtest.Run(t, "", "dry-run", file, "--for", "1ns"); !strings.Contains(got.Stdout, "table people: 0 rows, not read to its end (--for): newer rows are left out") {
		t.Errorf("a table that was not read: %s%s", got.Stdout, got.Stderr)
	}
}
