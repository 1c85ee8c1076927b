package trialcmd_test

import (
	"fmt"
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

// TestCasesOfMessagesInsideOthers have the same outcome with a store and in a Kafka transaction.
func TestCasesOfMessagesInsideOthers(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), `
stores: { keys: { memory: {} } }
x-orders: &orders { unwrap: debezium, key: { id: .id }, filter: value.id != 3, window: 1d }
pipelines:
  store:
    <<: *orders
    store: keys
    source: { file: { paths: [in.jsonl] } }
    sink: { stdout: {} }
  transaction:
    <<: *orders
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g } }
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`)
	var cases strings.Builder
	for _, pipeline := range []string{"store", "transaction"} {
		for _, c := range [][3]string{{"1", "1", `"fresh","output":{"id":1}`}, {"1", "2", `"duplicate"`}, {"3", "3", `"filtered"`}} {
			fmt.Fprintf(&cases, `{"pipeline":"%s","body":{"before":null,"after":{"id":%s},"source":{"table":"orders","lsn":%s},"op":"c"},"key":%s,"decision":%s}`+"\n", pipeline, c[0], c[1], c[0], c[2])
		}
		fmt.Fprintf(&cases, `{"pipeline":"%s","body":{"id":9},"decision":"missing"}`+"\n", pipeline)
	}
	if got := programtest.Run(t, cases.String(), "test", file, "-"); got.Status != term.ExitDone || !strings.HasSuffix(got.Stdout, "\n8 cases, 0 failed\n") {
		t.Errorf("%+v", got)
	}
}
