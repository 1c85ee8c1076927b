package kafkatxn

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// compactedEnd has the topic customers end behind its last record, as if compaction had
// deleted the last ones.
func (b *bubble) compactedEnd() {
	end := func(partition int32) int64 { return b.Cluster.PartitionInfo("customers", partition).HighWatermark + 3 }
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
				found := kmsg.NewListOffsetsResponseTopicPartition()
				found.Partition, found.LeaderEpoch, found.Offset = p.Partition, 0, end(p.Partition)
				topic.Partitions = append(topic.Partitions, found)
			}
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	})
	b.fetches(func(req *kmsg.FetchRequest, found *kmsg.FetchResponseTopicPartition) bool {
		found.HighWatermark, found.LastStableOffset = end(found.Partition), end(found.Partition)
		return !polls(req) && req.Topics[0].Partitions[0].FetchOffset == found.HighWatermark-3
	})
}

// polls reports whether a request is one of a client that reads all records, and not the
// question whether there are more.
func polls(req *kmsg.FetchRequest) bool { return req.MaxWaitMillis > 0 }

// fetches answers requests for records of the topic customers without records if answer
// returns true, which may change the answer.
func (b *bubble) fetches(answer func(*kmsg.FetchRequest, *kmsg.FetchResponseTopicPartition) bool) {
	id := b.Cluster.TopicInfo("customers").TopicID
	b.Cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster.KeepControl()
		req := r.(*kmsg.FetchRequest)
		if len(req.Topics) != 1 || req.Topics[0].TopicID != id {
			return nil, nil, false
		}
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic, topic.TopicID = req.Topics[0].Topic, id
		for _, p := range req.Topics[0].Partitions {
			found := kmsg.NewFetchResponseTopicPartition()
			found.Partition = p.Partition
			if !answer(req, &found) {
				return nil, nil, false
			}
			topic.Partitions = append(topic.Partitions, found)
		}
		b.Sleep(time.Duration(req.MaxWaitMillis) * time.Millisecond)
		all := req.ResponseKind().(*kmsg.FetchResponse)
		all.Topics = append(all.Topics, topic)
		return all, nil, true
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

// A record would lack its row if a table counted as read while its fetches fail, or return
// nothing. Some errors are retried by the client, which does not report them by itself.
func TestATableWhoseFetchesReturnNothingIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]*kerr.Error{"error": kerr.UnknownServerError, "retriable error": kerr.KafkaStorageError, "nothing": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.tableTopic(1)
				b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"))
				b.compactedEnd() // which the table does not reach either
				fails := true
				b.fetches(func(req *kmsg.FetchRequest, found *kmsg.FetchResponseTopicPartition) bool {
					if refused != nil {
						found.ErrorCode = refused.Code
					}
					return fails && (refused != nil || polls(req))
				})
				p := b.start(b.joining(&stream.Table{}))
				time.Sleep(5 * cluster.EndQuiet) // in a bubble
				if n := p.Events.Count(pipeline.EventSettled); n > 0 {
					t.Errorf("%d records were decided before the table was read", n)
				}
				b.Cluster.Control(func(kmsg.Request) (kmsg.Response, error, bool) { fails = false; return nil, nil, false })
				p.Wait(1, kafkatest.Settled)
				p.Stop()
				if told := strings.Join(p.Events.Log, "\n"); refused != nil && !strings.Contains(told, "a table is not read") {
					t.Errorf("no event reports the error: %s", told)
				}
				if got, want := b.bodies("out"), "1=Ann"; got != want {
					t.Errorf("outputs %q, want %q", got, want)
				}
			})
		})
	}
}

// A table of which records were deleted before they were read may have rows that are not
// valid any more.
func TestATableThatCannotBeReadEndsTheProgram(t *testing.T) {
	t.Parallel()
	for refused, want := range map[*kerr.Error]struct {
		class error
		text  string
	}{
		kerr.OffsetOutOfRange:         {semel.ErrCorrupt, "table topic customers/0: records were deleted before they were read"},
		kerr.TopicAuthorizationFailed: {semel.ErrInvalidRequest, "table topic customers: allow Read on it"},
	} {
		inBubble(t, 1, func(b *bubble) {
			b.tableTopic(1)
			b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"))
			b.fetches(func(_ *kmsg.FetchRequest, found *kmsg.FetchResponseTopicPartition) bool {
				found.ErrorCode = refused.Code
				return true
			})
			b.refusedAs(want.class, b.joining(&stream.Table{}), want.text)
		})
	}
}
