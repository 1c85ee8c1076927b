package trialcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// casesConfig has two pipelines on servers that do not run.
func casesConfig(t *testing.T) string {
	t.Helper()
	return programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores: { db: { postgres: { dsn: "${env:NOT_SET}" } } }
pipelines:
  orders:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g } }
    key: { id: .order_id }
    store: db
    window: 1d
    on_late: park
    on_mismatch: park
    sink: { webhook: { url: "https://example.com/" } }
  hooks:
    source: { http: { listen: "127.0.0.1:0" } }
    key: { id: ["header:X-Id", record-key] }
    store: db
    sink: { webhook: { url: "https://example.com/" } }
`)
}

func TestCasesCheckKeysAndDecisionsWithoutServers(t *testing.T) {
	t.Parallel()
	file := casesConfig(t)
	cases := `{"pipeline":"orders","name":"a new order","body":{"order_id":7},"key":7,"decision":"fresh"}
{"pipeline":"orders","name":"a retry","body":{ "order_id": 7 },"decision":"duplicate"}
{"pipeline":"orders","name":"another order under the same id","body":{"order_id":7,"n":2},"decision":"mismatch"}
{"pipeline":"orders","body":"{\"order_id\":\"7\"}","key":"7","decision":"fresh"}
{"pipeline":"orders","body":{"id":7},"decision":"missing"}
{"pipeline":"orders","body":{"order_id":9},"time":"2020-01-01T00:00:00Z","decision":"late"}

{"pipeline":"orders","after":"25h","body":{"order_id":7},"decision":"fresh"}
{"pipeline":"hooks","headers":{"X-Id":"a"},"key":"a","decision":"fresh"}
{"pipeline":"hooks","record_key":"a","decision":"duplicate"}
`
	got := programtest.Run(t, cases, "test", file, "-")
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "ok    orders line 2, a retry: duplicate\n") || !strings.HasSuffix(got.Stdout, "\n9 cases, 0 failed\n") {
		t.Error(got.Stdout)
	}

	wrong := programtest.WriteFile(t, filepath.Join(t.TempDir(), "cases.jsonl"), `{"pipeline":"orders","body":{"order_id":7},"key":"7","decision":"duplicate"}
{"pipeline":"orders","body":{"id":7}}
`)
	got = programtest.Run(t, "", "test", file, wrong)
	if got.Status != term.ExitFound || got.Stdout != `FAIL  orders line 1: it is fresh, want duplicate; its key is 7, want "7"
FAIL  orders line 2: it has no key: .order_id is missing
2 cases, 2 failed
` {
		t.Errorf("%+v", got)
	}
	got = programtest.Run(t, "", "test", file, wrong, "--json")
	if want := `{"line":1,"pipeline":"orders","ok":false,"decision":"fresh","key":7,"wrong":["it is fresh, want duplicate","its key is 7, want \"7\""]}` + "\n"; !strings.HasPrefix(got.Stdout, want) {
		t.Errorf("%s", got.Stdout)
	}
}

func TestInvalidCasesAreReportedWithTheirLines(t *testing.T) {
	t.Parallel()
	file := casesConfig(t)
	programtest.Run(t, `{"pipeline":"orders","bdy":{}}
{"pipeline":"orders","decision":"dropped"}
{"body":{}}
{"pipeline":"orders","after":"soon"}
{"pipeline":"orders"} {}
[]
hello
{"pipeline":"orders","time":"yesterday"}
{"pipeline":"orders","time":5}
{"pipeline":"orders","results":{}}
{"pipeline":"orders","headers":["a"]}
{"pipeline":"orders","partition":5000000000}
{"pipeline":"orders","partition":-1}
{"pipeline":7}
{"pipeline":"orders"
`, "test", file, "-").Check(t, term.ExitUsage,
		`-:1: unknown field "bdy"`, `-:2: decision "dropped": write one of fresh, filtered, failed, duplicate, mismatch, late, missing, held, superseded`,
		`-:3: pipeline "": name one of orders, hooks`, `-:4: after "soon": write a duration, such as 25h`, "-:5: expected one JSON object", "-:6: expected one JSON object in the line: semel test --help lists the fields",
		"-:7: it is not JSON: invalid character 'h'", `-:8: time: "yesterday" is no time: write a text as in RFC 3339 (2026-01-31T12:00:00Z), or seconds`, `-:9: time: "5" may be seconds, milliseconds, microseconds or nanoseconds since 1970: write a text as in RFC 3339:`, "-:10: results: expected a list, got JSON object",
		"-:11: headers: expected an object of texts, got JSON array", "-:12: partition: expected a whole number of at most 32 bits, got JSON number 5000000000", "-:13: partition -1: write a number from 0 to 99999",
		"-:14: pipeline: expected a text, got JSON number", "-:15: it is not JSON: unexpected EOF")
	programtest.Run(t, "\n", "test", file, "-").Check(t, term.ExitUsage, "-: there is no case")
	programtest.Run(t, "", "test", file, "/none").Check(t, term.ExitUsage, "/none: there is no such file")
	programtest.Run(t, "", "test", file).Check(t, term.ExitUsage, "FILE or CASES is missing")
}

// TestCasesCheckResultsOfWindows has messages of each fate, and time that passes.
func TestCasesCheckResultsOfWindows(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
pipelines:
  counts:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g } }
    key: { id: .id }
    window: 1d
    filter: "value.n > 0"
    aggregate: { by: .g, over: { hopping: 2m, every: 1m }, grace: 10s, values: { n: count, sum: sum .n } }
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`)
	result := func(start, end, n, sum int) string {
		return fmt.Sprintf(`{"key":"a","start":"2026-11-24T13:%02d:00Z","end":"2026-11-24T13:%02d:00Z","values":{"n":%d,"sum":%d}}`, start, end, n, sum)
	}
	cases := `{"time":"2026-11-24T13:01:05Z","body":{"id":1,"g":"a","n":1},"decision":"fresh","results":[]}
{"time":"2026-11-24T13:01:06Z","body":{"id":1,"g":"a","n":1},"decision":"duplicate"}
{"time":"2026-11-24T13:01:06Z","body":{"id":2,"g":"a","n":0},"decision":"filtered"}
{"time":"2026-11-24T13:01:06Z","body":{"id":3,"n":1},"decision":"failed"}
{"time":"2026-11-24T14:01:06Z","after":"0s","body":{"id":3,"g":"a","n":1},"decision":"failed"}
{"time":"2026-11-24T13:02:09Z","body":{"id":4,"g":"a","n":4},"decision":"fresh","results":[]}
{"time":"2026-11-24T13:02:10Z","body":{"id":5,"g":"a","n":16},"decision":"fresh","results":[` + result(0, 2, 1, 1) + `]}
{"time":"2026-11-24T13:01:59Z","body":{"id":6,"g":"a","n":64},"decision":"fresh","results":[]}
{"time":"2026-11-24T13:02:59Z","partition":1,"body":{"id":6,"g":"b","n":64},"decision":"fresh","results":[]}
{"after":"59s","results":[]}
{"after":"4m","results":[` + result(1, 3, 4, 85) + `,` + strings.ReplaceAll(result(1, 3, 1, 64), `"a"`, `"b"`) + `,` + result(2, 4, 2, 20) + `,` + strings.ReplaceAll(result(2, 4, 1, 64), `"a"`, `"b"`) + `]}
{"time":"2026-11-24T13:01:59Z","body":{"id":7,"g":"a","n":1},"decision":"late"}
`
	got := programtest.Run(t, cases, "test", file, "-")
	got.Check(t, term.ExitDone)
	if !strings.HasSuffix(got.Stdout, "\n12 cases, 0 failed\n") {
		t.Error(got.Stdout)
	}
	got = programtest.Run(t, `{"time":"2026-11-24T13:01:05Z","body":{"id":1,"g":"a","n":1},"results":[{"n":1}]}`, "test", file, "-")
	if got.Status != term.ExitFound || !strings.Contains(got.Stdout, `FAIL  counts line 1: its results are none, want [{"n":1}]`) {
		t.Errorf("%+v", got)
	}
}

// TestCasesCheckWhichMessageIsKept has each rule, with messages of each fate.
func TestCasesCheckWhichMessageIsKept(t *testing.T) {
	t.Parallel()
	pipeline := func(name, keep, more string) string {
		return fmt.Sprintf(`
  %s:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: %s%s } }
    key: { id: .id%s }
    window: 1d
    filter: "value.n < 100"
    map: '{"id": value.id, "n": value.n}'
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out, tls: { ca: /none }, sasl: { mechanism: PLAIN, username: u, password: "${env:NOT_SET}" } } }
`, name, name, more, keep)
	}
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), "pipelines:"+
		pipeline("once", "", "")+pipeline("together", "", ", repartition: true")+
		pipeline("first", ", keep: { first: .at, grace: 10s }", "")+pipeline("last", ", keep: { last: { tumbling: 1m }, idle: 30s }", "")+pipeline("newest", ", keep: { newest: .n }", ""))
	cases := `{"pipeline":"once","body":{"id":1,"n":1},"decision":"fresh","output":{"id":1,"n":1},"results":[]}
{"pipeline":"once","partition":1,"body":{"id":1,"n":1},"decision":"fresh"}
{"pipeline":"once","body":{"id":1,"n":2},"decision":"duplicate"}
{"pipeline":"once","body":{"id":2,"n":100},"decision":"filtered"}
{"pipeline":"once","body":{"id":3,"n":"x"},"decision":"failed"}
{"pipeline":"once","body":{"n":1},"decision":"missing"}
{"pipeline":"once","after":"25h","body":{"id":1,"n":1},"decision":"fresh"}
{"pipeline":"together","body":{"id":1,"n":1},"decision":"fresh"}
{"pipeline":"together","partition":1,"body":{"id":1,"n":1},"decision":"duplicate"}
{"pipeline":"first","time":"2026-11-24T13:00:20Z","body":{"id":1,"n":2,"at":"2026-11-24T13:00:07Z"},"key":1,"decision":"held","results":[]}
{"pipeline":"first","body":{"id":1,"n":1,"at":"2026-11-24T13:00:05Z"},"decision":"held"}
{"pipeline":"first","body":{"id":1,"n":3,"at":"2026-11-24T13:00:06Z"},"decision":"superseded"}
{"pipeline":"first","body":{"id":2,"n":1,"at":"2026-11-24T13:00:16Z"},"decision":"held","results":[{"id":1,"n":1}]}
{"pipeline":"first","body":{"id":1,"n":4,"at":"2026-11-24T13:00:06Z"},"decision":"duplicate"}
{"pipeline":"first","body":{"id":3,"n":1,"at":"2026-11-24T13:00:05Z"},"decision":"late"}
{"pipeline":"first","body":{"id":3,"n":1,"at":"2026-11-24T14:00:00Z"},"decision":"failed"}
{"pipeline":"first","body":{"id":3,"n":1,"at":"never"},"decision":"failed"}
{"pipeline":"first","after":"1m","results":[]}
{"pipeline":"first","after":"1m","results":[{"id":2,"n":1}]}
{"pipeline":"last","time":"2026-11-24T13:00:20Z","record_key":"k","body":{"id":1,"n":1},"decision":"held","results":[]}
{"pipeline":"last","time":"2026-11-24T13:00:20Z","body":{"id":1,"n":2},"decision":"held"}
{"pipeline":"last","time":"2026-11-24T13:00:19Z","body":{"id":1,"n":3},"decision":"superseded"}
{"pipeline":"last","time":"2026-11-24T13:00:21Z","body":{"id":2,"n":100},"decision":"held"}
{"pipeline":"last","time":"2026-11-24T13:01:00Z","body":{"id":1,"n":4},"decision":"held","results":[{"id":1,"n":2}]}
{"pipeline":"last","time":"2026-11-24T13:00:59Z","body":{"id":1,"n":5},"decision":"late"}
{"pipeline":"last","after":"2m15s","results":[{"id":1,"n":4}]}
{"pipeline":"newest","body":{"id":1,"n":5},"decision":"fresh","output":{"id":1,"n":5}}
{"pipeline":"newest","body":{"id":1,"n":5},"decision":"superseded"}
{"pipeline":"newest","body":{"id":1,"n":4},"decision":"superseded"}
{"pipeline":"newest","body":{"id":1,"n":6},"decision":"fresh"}
`
	got := programtest.Run(t, cases, "test", file, "-")
	got.Check(t, term.ExitDone)
	if !strings.HasSuffix(got.Stdout, "\n30 cases, 0 failed\n") || !strings.Contains(got.Stdout, "ok    first line 13: held, 1 results\n") {
		t.Error(got.Stdout)
	}
	got = programtest.Run(t, `{"pipeline":"last","body":{"id":1,"n":1},"decision":"fresh","results":[{"id":1}]}
{"pipeline":"last","decision":"held"}
`, "test", file, "-", "--json")
	if want := `{"line":1,"pipeline":"last","ok":false,"decision":"held","key":1,"wrong":["it is held, want fresh","its results are none, want [{\"id\":1}]"]}
{"line":2,"pipeline":"last","ok":false,"decision":"","wrong":["it is no message, want held"]}
`; got.Status != term.ExitFound || got.Stdout != want {
		t.Errorf("%+v", got)
	}
}
