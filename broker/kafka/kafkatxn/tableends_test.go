package kafkatxn

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// compactedEnd has the topic customers end behind its last record, as if compaction had
// deleted the last ones.
func (b *bubble) compactedEnd() {
	b.Cluster.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		req := r.(*kmsg.ListOffsetsRequest)
		answer := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, asked := range req.Topics {
			if asked.Topic != "customers" || asked.Partitions[0].Timestamp != -1 {
				return nil, nil, false
			}
			topic := kmsg.NewListOffsetsResponseTopic()
			topic.Topic = asked.Topic
			for _, p := range asked.Partitions {
				end := kmsg.NewListOffsetsResponseTopicPartition()
				end.Partition, end.LeaderEpoch, end.Offset = p.Partition, 0, b.Cluster.PartitionInfo("customers", p.Partition).HighWatermark+3
				topic.Partitions = append(topic.Partitions, end)
			}
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	})
}

func TestATableWhoseLastRecordsAreCompactedAwayIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"))
		b.compactedEnd()
		began := time.Now()
		p := b.start(b.joining(&stream.Table{}))
		p.Wait(1, kafkatest.Settled)
		if took := time.Since(began); took < cluster.EndQuiet || took > 3*cluster.EndQuiet {
			t.Errorf("the first record was decided after %v; nothing tells the end before %v", took, cluster.EndQuiet)
		}
		p.Stop()
		if got, want := b.bodies("out"), "1=Ann"; got != want {
			t.Errorf("outputs %q, want %q", got, want)
		}
	})
}

func TestATableThatEndsWithControlRecordsIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(order(0, "1", "ann"))
		writer, err := kgo.NewClient(append(b.Reach(), kgo.TransactionalID("rows"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		kafkatest.Must(t, err)
		defer writer.Close()
		for range 3 { // no record of the topic is ever visible
			kafkatest.Must(t, writer.BeginTransaction())
			kafkatest.Must(t, writer.ProduceSync(b.Context(), customer(0, "ann", "Ann", time.Now())).FirstErr())
			kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryAbort))
		}
		began := time.Now()
		p := b.start(b.joining(&stream.Table{}))
		p.Wait(1, kafkatest.Settled)
		if took := time.Since(began); took > cluster.EndQuiet {
			t.Errorf("the first record was decided after %v", took)
		}
		p.Stop()
		if got, want := b.bodies("aside"), `{"c":"ann"}`; got != want {
			t.Errorf("parked %q, want %q", got, want)
		}
	})
}

// A record would lack its row if a table counted as read while its fetches fail. Some
// errors are retried by the client, which does not report them by itself.
func TestATableWhoseFetchesFailIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	for _, refused := range []*kerr.Error{kerr.UnknownServerError, kerr.KafkaStorageError} {
		t.Run(refused.Message, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.tableTopic(1)
				b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"))
				id := b.Cluster.TopicInfo("customers").TopicID
				fails := true
				b.Cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
					b.Cluster.KeepControl()
					req := r.(*kmsg.FetchRequest)
					if !fails || len(req.Topics) != 1 || req.Topics[0].TopicID != id {
						return nil, nil, false
					}
					answer := req.ResponseKind().(*kmsg.FetchResponse)
					topic := kmsg.NewFetchResponseTopic()
					topic.Topic, topic.TopicID = req.Topics[0].Topic, id
					for _, p := range req.Topics[0].Partitions {
						failed := kmsg.NewFetchResponseTopicPartition()
						failed.Partition, failed.ErrorCode = p.Partition, refused.Code
						topic.Partitions = append(topic.Partitions, failed)
					}
					answer.Topics = append(answer.Topics, topic)
					return answer, nil, true
				})
				p := b.start(b.joining(&stream.Table{}))
				time.Sleep(5 * cluster.EndQuiet) // in a bubble
				if n := p.Events.Count(pipeline.EventSettled); n > 0 {
					t.Errorf("%d records were decided before the table was read", n)
				}
				b.Cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) { fails = false; return nil, nil, false })
				p.Wait(1, kafkatest.Settled)
				p.Stop()
				if told := strings.Join(p.Events.Log, "\n"); !strings.Contains(told, "a table is not read") {
					t.Errorf("nobody heard of the error: %s", told)
				}
				if got, want := b.bodies("out"), "1=Ann"; got != want {
					t.Errorf("outputs %q, want %q", got, want)
				}
			})
		})
	}
}
