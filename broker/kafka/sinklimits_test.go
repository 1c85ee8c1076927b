package kafka

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestTransientTopicSettingsErrorSetsNoSizeLimit(t *testing.T) {
	t.Parallel()
	for _, passing := range []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.NotController} {
		t.Run(passing.Message, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				kafkatest.Takes(t, b.Client, 10*kafkatest.Megabyte, "wide")
				b.Hide("wide", passing, 3)
				sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "wide" })
				it := kafkatest.Item("k", strings.Repeat("x", 2*kafkatest.Megabyte))
				sink.Deliver(t.Context(), []*pipeline.Item{it})
				if it.Err != nil {
					t.Errorf("the topic takes it, but: %v", it.Err)
				}
				kafkatest.Must(t, sink.Close(t.Context()))
			})
		})
	}
}

// TestUnreadableTopicSettingsSetNoSizeLimit has settings that no broker tells.
func TestUnreadableTopicSettingsSetNoSizeLimit(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		b.Hide("out", kerr.NotController, -1)
		began := time.Now()
		sink, err := OpenSink(t.Context(), &SinkOptions{Topic: "out", Client: b.Reach()})
		if err == nil {
			_ = sink.Close(t.Context())
		}
		if !errors.Is(err, semel.ErrStoreUnavailable) || !errors.Is(err, kerr.NotController) || !strings.Contains(err.Error(), "topic out") {
			t.Errorf("it ended with %v", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// TestSinkNoticesARaisedSizeLimitOfItsTopic raises the limit of a topic while its sink is
// open.
func TestSinkNoticesARaisedSizeLimitOfItsTopic(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		kafkatest.Takes(t, b.Client, kafkatest.Megabyte, "rises")
		sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "rises" })
		it := kafkatest.Item("k", strings.Repeat("x", 2*kafkatest.Megabyte))
		for _, takes := range []int{0, 0, 5 * kafkatest.Megabyte, 5 * kafkatest.Megabyte} {
			if takes > 0 {
				kafkatest.SetTakes(t, b.Client, takes, "rises")
			}
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			_, permanent := errors.AsType[*semel.PermanentError](it.Err)
			if refused := takes == 0; permanent != refused || (it.Err != nil) != refused {
				t.Errorf("of a topic that takes %d bytes: %v", takes, it.Err)
			}
		}
		kafkatest.Must(t, sink.Close(t.Context()))
	})
}

// TestSinkReadsTheSizeLimitOfATopicCreatedLater makes the topic of a sink when the
// sink is open.
func TestSinkReadsTheSizeLimitOfATopicCreatedLater(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "later" })
		kafkatest.Takes(t, b.Client, 5*kafkatest.Megabyte, "later")
		for _, size := range []int{10, 2 * kafkatest.Megabyte, 6 * kafkatest.Megabyte, 3 * kafkatest.Megabyte} {
			it := kafkatest.Item("k", strings.Repeat("x", size))
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			_, permanent := errors.AsType[*semel.PermanentError](it.Err)
			if large := size > 5*kafkatest.Megabyte; permanent != large || (it.Err != nil) != large {
				t.Errorf("%d bytes: %v", size, it.Err)
			}
		}
		kafkatest.Must(t, errors.Join(sink.Ready(t.Context()), sink.Close(t.Context())))
	})
}

// TestRecordIsNotRefusedForTheSizeOfAnotherInItsBatch has the brokers refuse a batch
// once, as for the size of a record of another delivery.
func TestRecordIsNotRefusedForTheSizeOfAnotherInItsBatch(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(nil)
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: 1})
		it := kafkatest.Item("k", "v")
		sink.Deliver(t.Context(), []*pipeline.Item{it})
		kafkatest.Must(t, errors.Join(sink.Close(t.Context()), it.Err))
		if got := len(b.Read("out")); got != 1 {
			t.Errorf("%d records, want 1", got)
		}
	})
}

// TestRecordsWaitBehindARefusedOneOfTheirGroup has a record refused while others of
// the same group are still to be written. The client holds one at a time; the
// second may already be on its way into it.
func TestRecordsWaitBehindARefusedOneOfTheirGroup(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(func(o *SinkOptions) { o.Client = append(o.Client, kgo.MaxBufferedBytes(300)) })
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: 1})
		var items []*pipeline.Item
		for _, name := range []string{"1", "2", "3", "4"} {
			items = append(items, kafkatest.Item("k", strings.Repeat(name, 200)))
		}
		sink.Deliver(t.Context(), items)
		waits := 2
		if errors.Is(items[1].Err, pipeline.ErrBehind) {
			waits = 1
		}
		for i, it := range items {
			if behind := i >= waits; errors.Is(it.Err, pipeline.ErrBehind) != behind || (it.Err != nil) != behind {
				t.Errorf("%.1s: %v", it.Message.Body, it.Err)
			}
		}
		sink.Deliver(t.Context(), items[waits:])
		kafkatest.Must(t, errors.Join(sink.Close(t.Context()), items[1].Err, items[2].Err, items[3].Err))
		var order strings.Builder
		for _, r := range b.Read("out") {
			order.WriteByte(r.Value[0])
		}
		if !strings.HasSuffix(order.String(), "1234"[waits:]) || order.Len() != 4 {
			t.Errorf("the order is %s", order.String())
		}
	})
}
