package trialcmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// paidOnly is the filter and the map of the tests.
const paidOnly = `
    key: { id: .event_id }
    filter: 'value.status == "paid"'
    map: '{"customer": value.customer_id, "cents": value.cents}'
`

// orders are messages for paidOnly: two are paid, one of them twice, one is open, also
// twice, and one has no status.
var orders = []string{
	`{"event_id":"e1","status":"paid","customer_id":7,"cents":9007199254740993}`,
	`{"event_id":"e2","status":"open","customer_id":7,"cents":5}`,
	`{"event_id":"e1","status":"paid","customer_id":7,"cents":9007199254740993}`,
	`{"event_id":"e3","customer_id":8,"cents":6}`,
	`{"event_id":"e2","status":"open","customer_id":7,"cents":5}`,
	`{"event_id":"e4","status":"paid","customer_id":9,"cents":1}`,
}

func TestCasesCheckOutputs(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), `
stores: { keys: { memory: {} } }
pipelines:
  p:`+paidOnly+`    store: keys
    source: { file: { paths: [in.jsonl] } }
    sink: { stdout: {} }
`)
	cases := `{"body":` + orders[0] + `,"decision":"fresh","output":{"customer": 7, "cents": 9007199254740993}}
{"body":` + orders[1] + `,"decision":"filtered"}
{"body":` + orders[1] + `,"decision":"duplicate"}
{"body":` + orders[3] + `,"decision":"failed"}
{"body":` + orders[3] + `,"decision":"failed"}
`
	if got := programtest.Run(t, cases, "test", file, "-"); got.Status != term.ExitDone || !strings.HasSuffix(got.Stdout, "\n5 cases, 0 failed\n") {
		t.Errorf("%+v", got)
	}
	got := programtest.Run(t, `{"body":`+orders[0]+`,"output":{"customer":8}}
{"body":`+orders[1]+`,"output":{}}
{"body":`+orders[3]+`,"decision":"fresh"}
`, "test", file, "-")
	if got.Status != term.ExitFound || got.Stdout != `FAIL  p line 1: its output is {"customer":7,"cents":9007199254740993}, want {"customer":8}
FAIL  p line 2: its output is none, want {}
FAIL  p line 3: it is failed, want fresh; filter value.status == "paid": no such key: status
3 cases, 3 failed
` {
		t.Errorf("%+v", got)
	}
}
