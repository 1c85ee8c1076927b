package kafkacmd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestTransactionsAreListedAndAborted(t *testing.T) {
	t.Parallel()
	addr := programtest.KafkaWithATransaction(t)
	list := programtest.Run(t, "", "kafka", "txn", "ls", "--brokers", addr, "--topic", "orders")
	list.Check(t, term.ExitDone)
	if !strings.HasPrefix(list.Stdout, "orders-once/orders.web-1.1-0  Ongoing, for ") || !strings.Contains(list.Stdout, ": orders/1\n") {
		t.Errorf("ls printed %q", list.Stdout)
	}
	shown := programtest.Run(t, "", "kafka", "txn", "describe", "orders-once/orders.web-1.1-0", "--brokers", addr, "--json")
	shown.Check(t, term.ExitDone)
	if !strings.Contains(shown.Stdout, `"state":"Ongoing"`) || !strings.Contains(shown.Stdout, `"partitions":["orders/1"]`) {
		t.Errorf("describe printed %q", shown.Stdout)
	}
	programtest.Run(t, "", "kafka", "txn", "abort", "--topic", "orders", "--partition", "1", "--offset", "0", "--brokers", addr).Check(t, term.ExitFailed, "it is under way as orders-once/orders.web-1.1-0")
	programtest.Run(t, "", "kafka", "txn", "abort", "orders-once/orders.web-1.1-0", "--brokers", addr).Check(t, term.ExitDone, "its producer is fenced")
	list = programtest.Run(t, "", "kafka", "txn", "ls", "--brokers", addr, "--topic", "orders")
	if list.Check(t, term.ExitDone); list.Stdout != "" {
		t.Errorf("after it was aborted ls printed %q", list.Stdout)
	}
	programtest.Run(t, "", "kafka", "txn", "abort", "orders-once/orders.web-1.1-0", "--brokers", addr).Check(t, term.ExitFailed, "there is no such transaction")
	programtest.Run(t, "", "kafka", "txn", "describe", "nobody", "--brokers", addr).Check(t, term.ExitFailed, "there is no such transaction")
}

// TestATransactionThatHangsIsFoundAndEnded makes the coordinator forget a
// transaction.
func TestATransactionThatHangsIsFoundAndEnded(t *testing.T) {
	t.Parallel()
	cluster, addr := programtest.FakeKafka(t)
	cluster.ControlKey(int16(kmsg.ListTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return req.ResponseKind(), nil, true
	})
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "kafka.yaml"), strings.ReplaceAll(programtest.KafkaExample, "127.0.0.1:9092", addr))
	list := programtest.Run(t, "", "kafka", "txn", "ls", "--config", file)
	list.Check(t, term.ExitFound)
	if !strings.HasPrefix(list.Stdout, "orders/1  hangs since offset 0, ") {
		t.Errorf("ls printed %q", list.Stdout)
	}
	found := programtest.Run(t, "", "doctor", file)
	if found.Check(t, term.ExitFound, "0 stores and 1 pipeline: "); !strings.Contains(found.Stdout, "semel kafka txn abort --topic orders --partition 1 --offset 0") {
		t.Errorf("doctor printed %s", found.Stdout)
	}
	programtest.Run(t, "", "kafka", "txn", "abort", "--config", file, "--topic", "orders", "--partition", "1", "--offset", "7").Check(t, term.ExitFailed, "there is no such transaction")
	programtest.Run(t, "", "kafka", "txn", "abort", "--config", file, "--topic", "orders", "--partition", "1", "--offset", "0").Check(t, term.ExitDone, "aborted in orders/1")
	if p := cluster.PartitionInfo("orders", 1); p.LastStableOffset != p.HighWatermark {
		t.Errorf("readers stand at %d of %d", p.LastStableOffset, p.HighWatermark)
	}
}

func TestKafkaVerbsRefuseWrongFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"ls":                               "no cluster is named",
		"ls --brokers nowhere":             "write HOST:PORT",
		"ls --brokers a:1 --config f.yaml": "exclude each other",
		"ls --brokers a:1 --pipeline p":    "--pipeline is for --config",
		"describe --brokers a:1":           "ID is missing",
		"abort --brokers a:1":              "no transaction is named",
		"abort x --brokers a:1 --topic t --partition 1 --offset 2": "no transaction is named",
	} {
		programtest.Run(t, "", append([]string{"kafka", "txn"}, strings.Fields(args)...)...).Check(t, term.ExitUsage, want)
	}
}
