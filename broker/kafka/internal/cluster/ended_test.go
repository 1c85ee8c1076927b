package cluster

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// A partition has ended where its leader has no more records that are visible, whether the
// records there were aborted or compacted away, and not before an open transaction.
func TestPartitionEndIsReachedWithoutVisibleRecords(t *testing.T) {
	t.Parallel()
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		kafkatest.Real(t, 1, func(b *kafkatest.Rig) {
			ends(b.T, b.Reach())
			adm := kadm.NewClient(b.Client)
			_, err := adm.CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "compacted")
			kafkatest.Must(t, err)
			for _, key := range []string{"a", "b", "b", "b", "c"} {
				b.Write(&kgo.Record{Topic: "compacted", Key: []byte(key)})
			}
			b.Cluster.Compact()
			ended(b.T, b.Client, "compacted", 1, 3, true)
			ended(b.T, b.Client, "compacted", 1, 4, false)
		})
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		ends(t, append(kafkatest.Quick(servers.Kafka(t)), kgo.UnknownTopicRetries(-1)))
	})
}

func ends(t *testing.T, reach []kgo.Opt) {
	t.Helper()
	topic := servicestest.Topic()
	producer := func(more ...kgo.Opt) *kgo.Client {
		client, err := kgo.NewClient(append(append(more, kgo.DefaultProduceTopic(topic), kgo.TransactionTimeout(5*time.Minute)), reach...)...)
		kafkatest.Must(t, err)
		t.Cleanup(client.Close)
		return client
	}
	send := func(client *kgo.Client, n int) {
		t.Helper()
		var records []*kgo.Record
		for range n {
			records = append(records, kgo.StringRecord("a"))
		}
		kafkatest.Must(t, client.ProduceSync(t.Context(), records...).FirstErr())
	}
	plain, open, aborted := producer(), producer(kgo.TransactionalID(topic+"-open")), producer(kgo.TransactionalID(topic+"-aborted"))
	answers, err := kadm.NewClient(plain).CreateTopics(t.Context(), 1, 1, nil, topic)
	kafkatest.Must(t, err)
	kafkatest.Must(t, answers.Error())
	send(plain, 1) // at 0
	kafkatest.Must(t, open.BeginTransaction())
	send(open, 1) // at 1
	kafkatest.Must(t, aborted.BeginTransaction())
	send(aborted, 1)                                                     // at 2
	kafkatest.Must(t, aborted.EndTransaction(t.Context(), kgo.TryAbort)) // at 3
	ended(t, plain, topic, 0, 1, false)
	ended(t, plain, topic, 1, 2, false)
	ended(t, plain, topic, 2, 4, false)
	kafkatest.Must(t, open.EndTransaction(t.Context(), kgo.TryAbort)) // at 4
	// The broker answers before readers see the end of the transaction.
	if !kafkatest.Within(3*time.Minute, func() bool {
		offsets, err := kadm.NewClient(plain).ListCommittedOffsets(t.Context(), topic)
		end, _ := offsets.Lookup(topic, 0)
		return err == nil && end.Offset == 5
	}) {
		t.Fatal("the transaction stays open")
	}
	ended(t, plain, topic, 1, 3, true)
	ended(t, plain, topic, 1, 4, false)
	send(plain, 3) // at 5 to 7, in one batch
	ended(t, plain, topic, 5, 8, false)
	ended(t, plain, topic, 6, 7, false)
	ended(t, plain, topic, 7, 8, false)
	ended(t, plain, topic, 8, 8, true)
	ended(t, plain, topic, 8, 9, false)
}

func ended(t *testing.T, client *kgo.Client, topic string, at, end int64, want bool) {
	t.Helper()
	got, err := Ended(t.Context(), client, Partition{Topic: topic}, at, end)
	if err != nil || got != want {
		t.Errorf("%s ended from %d to %d: %t, want %t: %v", topic, at, end, got, want, err)
	}
}
