package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
)

// casesConfig has two pipelines on servers that do not run.
func casesConfig(t *testing.T) string {
	t.Helper()
	return writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
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
	got := run(t, cases, "test", file, "-")
	got.check(t, term.ExitDone)
	if !strings.Contains(got.stdout, "ok    orders line 2, a retry: duplicate\n") || !strings.HasSuffix(got.stdout, "\n9 cases, 0 failed\n") {
		t.Error(got.stdout)
	}

	wrong := writeFile(t, filepath.Join(t.TempDir(), "cases.jsonl"), `{"pipeline":"orders","body":{"order_id":7},"key":"7","decision":"duplicate"}
{"pipeline":"orders","body":{"id":7}}
`)
	got = run(t, "", "test", file, wrong)
	if got.status != term.ExitFound || got.stdout != `FAIL  orders line 1: it is fresh, want duplicate; its key is 7, want "7"
FAIL  orders line 2: it has no key: .order_id is missing
2 cases, 2 failed
` {
		t.Errorf("%+v", got)
	}
	got = run(t, "", "test", file, wrong, "--json")
	if want := `{"line":1,"pipeline":"orders","ok":false,"decision":"fresh","key":7,"wrong":["it is fresh, want duplicate","its key is 7, want \"7\""]}` + "\n"; !strings.HasPrefix(got.stdout, want) {
		t.Errorf("%s", got.stdout)
	}
}

func TestLinesThatAreNoCasesAreNamed(t *testing.T) {
	t.Parallel()
	file := casesConfig(t)
	run(t, `{"pipeline":"orders","bdy":{}}
{"pipeline":"orders","decision":"dropped"}
{"body":{}}
{"pipeline":"orders","after":"soon"}
{"pipeline":"orders"} {}
[]
`, "test", file, "-").check(t, term.ExitUsage,
		`-:1: unknown field "bdy"`, `-:2: decision "dropped": write one of fresh, filtered, failed, duplicate, mismatch, late, missing`,
		`-:3: pipeline "": name one of orders, hooks`, `-:4: after "soon": write a duration, such as 25h`, "-:5: expected one JSON object", "-:6: ")
	run(t, "\n", "test", file, "-").check(t, term.ExitUsage, "-: there is no case")
	run(t, "", "test", file, "/none").check(t, term.ExitUsage, "/none: there is no such file")
	run(t, "", "test", file).check(t, term.ExitUsage, "FILE or CASES is missing")
}
