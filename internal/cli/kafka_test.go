package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/internal/cli/term"
)

// kafkaExample is the configuration that the Kafka examples use.
const kafkaExample = `pipelines:
  orders:
    source: { kafka: { brokers: ["127.0.0.1:9092"], topics: [orders], group: orders-once } }
    key: { id: record-key }
    sink: { kafka: { brokers: ["127.0.0.1:9092"], topic: clean } }
`

// kafkaWithATransaction starts a broker with the open transaction that the
// examples mention. It returns the broker's address.
func kafkaWithATransaction(t *testing.T) string {
	t.Helper()
	_, addr := fakeKafka(t)
	return addr
}

func fakeKafka(t *testing.T) (*kfake.Cluster, string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "orders", "clean", "orders-parked"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	addr := cluster.ListenAddrs()[0]
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("orders-once/orders.web-1.1-0"), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionTimeout(15*time.Minute)) // the broker's maximum
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Partition: 1, Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return cluster, addr
}

func TestTransactionsAreShownAndAborted(t *testing.T) {
	t.Parallel()
	addr := kafkaWithATransaction(t)
	list := run(t, "", "kafka", "txn", "ls", "--brokers", addr, "--topic", "orders")
	list.check(t, term.ExitDone)
	if !strings.HasPrefix(list.stdout, "orders-once/orders.web-1.1-0  Ongoing, for ") || !strings.Contains(list.stdout, ": orders/1\n") {
		t.Errorf("ls printed %q", list.stdout)
	}
	shown := run(t, "", "kafka", "txn", "describe", "orders-once/orders.web-1.1-0", "--brokers", addr, "--json")
	shown.check(t, term.ExitDone)
	if !strings.Contains(shown.stdout, `"state":"Ongoing"`) || !strings.Contains(shown.stdout, `"partitions":["orders/1"]`) {
		t.Errorf("describe printed %q", shown.stdout)
	}
	run(t, "", "kafka", "txn", "abort", "--topic", "orders", "--partition", "1", "--offset", "0", "--brokers", addr).check(t, term.ExitFailed, "it is under way as orders-once/orders.web-1.1-0")
	run(t, "", "kafka", "txn", "abort", "orders-once/orders.web-1.1-0", "--brokers", addr).check(t, term.ExitDone, "its producer is fenced")
	list = run(t, "", "kafka", "txn", "ls", "--brokers", addr, "--topic", "orders")
	if list.check(t, term.ExitDone); list.stdout != "" {
		t.Errorf("after it was aborted ls printed %q", list.stdout)
	}
	run(t, "", "kafka", "txn", "abort", "orders-once/orders.web-1.1-0", "--brokers", addr).check(t, term.ExitFailed, "there is no such transaction")
	run(t, "", "kafka", "txn", "describe", "nobody", "--brokers", addr).check(t, term.ExitFailed, "there is no such transaction")
}

// TestATransactionThatHangsIsFoundAndEnded makes the coordinator forget a
// transaction.
func TestATransactionThatHangsIsFoundAndEnded(t *testing.T) {
	t.Parallel()
	cluster, addr := fakeKafka(t)
	cluster.ControlKey(int16(kmsg.ListTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return req.ResponseKind(), nil, true
	})
	file := writeFile(t, filepath.Join(t.TempDir(), "kafka.yaml"), strings.ReplaceAll(kafkaExample, "127.0.0.1:9092", addr))
	list := run(t, "", "kafka", "txn", "ls", "--config", file)
	list.check(t, term.ExitFound)
	if !strings.HasPrefix(list.stdout, "orders/1  hangs since offset 0, ") {
		t.Errorf("ls printed %q", list.stdout)
	}
	found := run(t, "", "doctor", file)
	if found.check(t, term.ExitFound, "0 stores and 1 pipeline: "); !strings.Contains(found.stdout, "semel kafka txn abort --topic orders --partition 1 --offset 0") {
		t.Errorf("doctor printed %s", found.stdout)
	}
	run(t, "", "kafka", "txn", "abort", "--config", file, "--topic", "orders", "--partition", "1", "--offset", "7").check(t, term.ExitFailed, "there is no such transaction")
	run(t, "", "kafka", "txn", "abort", "--config", file, "--topic", "orders", "--partition", "1", "--offset", "0").check(t, term.ExitDone, "aborted in orders/1")
	if p := cluster.PartitionInfo("orders", 1); p.LastStableOffset != p.HighWatermark {
		t.Errorf("readers stand at %d of %d", p.LastStableOffset, p.HighWatermark)
	}
}

func TestFlagsOfTransactions(t *testing.T) {
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
		run(t, "", append([]string{"kafka", "txn"}, strings.Fields(args)...)...).check(t, term.ExitUsage, want)
	}
}
