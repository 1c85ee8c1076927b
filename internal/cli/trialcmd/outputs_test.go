package trialcmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestCasesCheckOutputs(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), `
stores: { keys: { memory: {} } }
pipelines:
  p:`+programtest.PaidOnly+`    store: keys
    source: { file: { paths: [in.jsonl] } }
    sink: { stdout: {} }
`)
	cases := `{"body":` + programtest.PaidOrders[0] + `,"decision":"fresh","output":{"customer": 7, "cents": 9007199254740993}}
{"body":` + programtest.PaidOrders[1] + `,"decision":"filtered"}
{"body":` + programtest.PaidOrders[1] + `,"decision":"duplicate"}
{"body":` + programtest.PaidOrders[3] + `,"decision":"failed"}
{"body":` + programtest.PaidOrders[3] + `,"decision":"failed"}
`
	if got := programtest.Run(t, cases, "test", file, "-"); got.Status != term.ExitDone || !strings.HasSuffix(got.Stdout, "\n5 cases, 0 failed\n") {
		t.Errorf("%+v", got)
	}
	got := programtest.Run(t, `{"body":`+programtest.PaidOrders[0]+`,"output":{"customer":8}}
{"body":`+programtest.PaidOrders[1]+`,"output":{}}
{"body":`+programtest.PaidOrders[3]+`,"decision":"fresh"}
`, "test", file, "-")
	if got.Status != term.ExitFound || got.Stdout != `FAIL  p line 1: its output is {"customer":7,"cents":9007199254740993}, want {"customer":8}
FAIL  p line 2: its output is none, want {}
FAIL  p line 3: it is failed, want fresh; filter value.status == "paid": no such key: status
3 cases, 3 failed
` {
		t.Errorf("%+v", got)
	}
}
