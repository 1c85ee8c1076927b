package programtest

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ProduceTo writes a record to its topic and partition.
func ProduceTo(t *testing.T, brokers string, record *kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(-1))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(t.Context(), record).FirstErr()
}

// KafkaExample is the configuration that the Kafka examples use.
const KafkaExample = `pipelines:
  orders:
    source: { kafka: { brokers: ["127.0.0.1:9092"], topics: [orders], group: orders-once } }
    key: { id: record-key }
    sink: { kafka: { brokers: ["127.0.0.1:9092"], topic: clean } }
`

// KafkaWithATransaction starts a broker with the open transaction that the
// examples mention. It returns the broker's address.
func KafkaWithATransaction(t *testing.T) string {
	t.Helper()
	_, addr := FakeKafka(t)
	return addr
}

// FakeKafka is KafkaWithATransaction, and returns the broker too.
func FakeKafka(t *testing.T) (*kfake.Cluster, string) {
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
