package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
)

const joins = `
pipelines:
  p:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g, retention: 1d } }
    key: { id: .id }
    window: 2d
    tables:
      people: { topic: people, by: .who, missing: drop }
      prices: { topic: prices, by: .item, read: local, as_of: record, history: 2h }
      unused: { topic: unused, by: .who }
    filter: 'value.paid && tables.people.active'
    map: '{"cents": tables.prices.cents}'
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`

func TestLintAndExplainDescribeTables(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), joins)
	run(t, "", "dry-run", file).check(t, term.ExitUsage, "pipeline p has tables, whose rows this verb does not read", "semel test --help")
	for verb, wants := range map[string][]string{
		"lint": {"tables.people.missing", "a record without a row is lost", "tables.unused", "no expression uses it"},
		"explain": {
			"before table people (people) is read up to its present end", "it is dropped, counted, and lost", "it is parked, with the reason row-missing",
			"it is parked as late: that is so 2h before the present", "a row of table prices in another partition than its record is missing", "joined with the newest row of table people",
			"table people is read again from the start of its topic before the first record is decided; its rows are in memory, and each takes its key, its value and about 120 bytes the topic of table people",
			"table prices is read again from the start of its topic before the first record is decided; its rows are in memory, and each takes its key, its value and about 120 bytes, and the same for each former row of the last 2h",
		},
	} {
		got := run(t, "", verb, file)
		for _, want := range wants {
			if !strings.Contains(strings.Join(strings.Fields(got.stdout), " "), want) {
				t.Errorf("%s lacks %q: %s", verb, want, got.stdout)
			}
		}
	}
}

func TestCasesHaveRows(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), joins)
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
	got := run(t, cases, "test", file, "-")
	got.check(t, term.ExitDone)
	if !strings.Contains(got.stdout, "12 cases, 0 failed") {
		t.Error(got.stdout)
	}
	for line, want := range map[string]string{
		`{"table": "nobody", "record_key": "x"}`:                      "name one of people, prices, unused",
		`{"table": "people"}`:                                         "record_key is missing",
		`{"table": "people", "record_key": "x", "decision": "fresh"}`: "a row has no key, decision or output",
	} {
		run(t, line, "test", file, "-").check(t, term.ExitUsage, want)
	}
}
