package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func (b *bubble) sink(change func(o *SinkOptions)) (*Sink, *kafkatest.Line) {
	b.Helper()
	l := b.NewLine()
	opts := &SinkOptions{Name: "p", Topic: "out", Client: append(b.ClientOn(l), kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }))}
	if change != nil {
		change(opts)
	}
	sink, err := OpenSink(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	return sink, l
}

func TestARecordNamesItsKey(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		sink, _ := b.sink(func(o *SinkOptions) { o.SamePartition = true })
		plain, binary := kafkatest.Item("k", "v"), kafkatest.Item("\x00\xff", "w")
		plain.Message.Origin.Partition = 2
		plain.Call.Key.Scope = "p" // as the pipeline
		plain.Message.Origin.Source, plain.Message.Origin.Offset, plain.Seen = "in", 7, time.UnixMilli(1_700_000_000_123)
		binary.Seen = plain.Seen
		plain.Message.Headers = []semel.Header{
			{Name: "a", Value: []byte("1")}, {Name: header.Key, Value: []byte("another")}, {Name: record.ConnectTopic, Value: []byte("t")}, {Name: "a"},
		}
		binary.Redrive, binary.Attempt, binary.Message.Body = 2, 3, nil
		binary.Message.Origin.Partition = 4 // of three
		binary.Message.Headers = []semel.Header{
			{Name: pipeline.RedriveHeader, Value: []byte("1")}, {Name: record.ConnectTopic, Value: []byte("t")}, {Name: record.HeaderReason, Value: []byte("late")}, {Name: "b"},
			{Name: header.FirstSeen, Value: []byte("before")}, {Name: header.Origin, Value: []byte("queue q")},
		}
		sink.Deliver(b.Context(), []*pipeline.Item{plain, binary})
		if err := errors.Join(plain.Err, binary.Err, sink.Close(b.Context())); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, r := range b.Read("out") {
			var headers []string
			for _, h := range r.Headers {
				headers = append(headers, h.Key+"="+string(h.Value))
			}
			var m semel.Message
			record.Fill(&m, r)
			if scope := map[bool]string{true: "p", false: "s"}[string(r.Key) == "k"]; keyOf(&m) != (semel.Key{Scope: scope, ID: string(r.Key)}) {
				t.Errorf("the headers of %q name %v, want scope %s", r.Key, keyOf(&m), scope)
			}
			got[string(r.Key)] = fmt.Sprintf("%d %v %s", r.Partition, r.Value == nil, strings.Join(headers, " "))
		}
		want := map[string]string{
			"k":        "2 false a=1 __connect.errors.topic=t a= semel-key=k semel-pipeline=p semel-token=7 semel-first-seen=2023-11-14T22:13:20.123Z semel-origin=in 2/7",
			"\x00\xff": "1 true b= semel-first-seen=before semel-origin=queue q semel-key-base64=AP8= semel-scope=s semel-pipeline=p semel-attempt=3 semel-token=7 semel-redrive=2",
		}
		for key := range want {
			if got[key] != want[key] {
				t.Errorf("%q:\n got %s\nwant %s", key, got[key], want[key])
			}
		}
	})
}

func TestSinkOmitsKeyHeadersWhenConfigured(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		sink, _ := b.sink(func(o *SinkOptions) { o.NoKeyHeaders = true })
		plain, again := kafkatest.Item("k", "v"), kafkatest.Item("l", "w")
		plain.Message.Headers = []semel.Header{{Name: "a", Value: []byte("1")}, {Name: header.Token, Value: []byte("another's")}}
		again.Redrive, again.Attempt = 2, 3
		sink.Deliver(b.Context(), []*pipeline.Item{plain, again})
		if err := errors.Join(plain.Err, again.Err, sink.Close(b.Context())); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"k": "a=1 ", "l": "semel-redrive=2 "}
		for _, r := range b.Read("out") {
			headers := ""
			for _, h := range r.Headers {
				headers += h.Key + "=" + string(h.Value) + " "
			}
			if headers != want[string(r.Key)] {
				t.Errorf("%s has the headers %q, want %q", r.Key, headers, want[string(r.Key)])
			}
			delete(want, string(r.Key))
		}
		if len(want) > 0 {
			t.Errorf("without %v", want)
		}
	})
}

// tooLarge delivers many small records and one that no broker takes.
func tooLarge(t *testing.T, sink *Sink) {
	t.Helper()
	var items []*pipeline.Item
	for i := range 200 {
		items = append(items, kafkatest.Item("same partition", fmt.Sprintf("%d %s", i, strings.Repeat("x", 50))))
		items[i].Group = uint64(i + 1)
	}
	items[100].Message.Body = []byte(strings.Repeat("y", 3000))
	sink.Deliver(t.Context(), items)
	for i, it := range items {
		var permanent *semel.PermanentError
		if i == 100 != errors.As(it.Err, &permanent) || i != 100 && it.Err != nil {
			t.Errorf("item %d: %v", i, it.Err)
		}
	}
}

func TestTooLargeRecordFailsAlone(t *testing.T) {
	t.Parallel()
	limit := "2000"
	// Each client needs its own option, because it changes the slice.
	compress := func() kgo.Opt { return kgo.ProducerBatchCompression(kgo.NoCompression()) }
	t.Run("on a fake broker", func(t *testing.T) {
		t.Parallel()
		inRealTime(t, 1, func(b *bubble) {
			kafkatest.Must(t, b.Cluster.CreateTopic("small", 1, map[string]string{"max.message.bytes": limit}))
			sink, _ := b.sink(func(o *SinkOptions) { o.Topic, o.Client = "small", append(o.Client, compress()) })
			tooLarge(t, sink)
			kafkatest.Must(t, sink.Close(t.Context()))
		})
	})
	t.Run("on a real broker", func(t *testing.T) {
		t.Parallel()
		brokers, topic := servers.Kafka(t), servicestest.Topic()
		client, err := kgo.NewClient(kafkatest.Quick(brokers)...)
		kafkatest.Must(t, err)
		defer client.Close()
		_, err = kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &limit}, topic)
		kafkatest.Must(t, err)
		sink, err := OpenSink(t.Context(), &SinkOptions{Client: append(kafkatest.Quick(brokers), kgo.UnknownTopicRetries(-1), compress()), Topic: topic})
		kafkatest.Must(t, err)
		tooLarge(t, sink)
		kafkatest.Must(t, sink.Close(t.Context()))
	})
}

func TestProducerErrorsAreClassified(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var away *pipeline.UnavailableError
		var permanent *semel.PermanentError
		sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "none" })
		it := kafkatest.Item("k", "v")
		sink.Deliver(b.Context(), []*pipeline.Item{it})
		if !errors.As(it.Err, &away) {
			t.Errorf("a topic that is not there: %v", it.Err)
		}
		kafkatest.Must(t, sink.Close(b.Context()))
		sink, _ = b.sink(nil)
		for err, want := range map[*kerr.Error]any{kerr.TopicAuthorizationFailed: &away, kerr.InvalidRecord: &permanent} {
			handle := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err})
			sink.Deliver(b.Context(), []*pipeline.Item{it})
			if !errors.As(it.Err, want) {
				t.Errorf("%v: %v", err, it.Err)
			}
			handle.Remove()
		}
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: 3})
		sink.Deliver(b.Context(), []*pipeline.Item{it})
		if it.Err != nil {
			t.Errorf("after a while there were enough replicas: %v", it.Err)
		}
		kafkatest.Must(t, sink.Close(b.Context()))
	})
}

// TestADeliveryEndsWithItsContext cuts the line when a record is on its way.
func TestADeliveryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, written := range []bool{false, true} {
		t.Run(fmt.Sprintf("written %v", written), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				sink, l := b.sink(nil)
				cut := kafkatest.Once(kmsg.Produce, 1)
				if written {
					l.On(nil, cut)
				} else {
					l.On(cut, nil)
				}
				ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
				defer cancel()
				items := []*pipeline.Item{kafkatest.Item("0", "value 0"), kafkatest.Item("1", "value 1")}
				start := time.Now()
				sink.Deliver(ctx, items)
				if took := time.Since(start); took > 4*time.Second {
					t.Errorf("it took %v", took)
				}
				for _, it := range items {
					if !errors.Is(it.Err, semel.ErrOutcomeUnknown) && !errors.Is(it.Err, pipeline.ErrBehind) {
						t.Errorf("the error is %v", it.Err)
					}
				}
				closing := time.Now()
				_ = sink.Close(b.Context())
				if took := time.Since(closing); took > 4*time.Second {
					t.Errorf("to close took %v", took)
				}
				b.Values(b.Read("out")) // none is there twice
			})
		})
	}
}

func TestParkedRecordsHaveTheirOrigin(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		parker, err := OpenParker(b.Context(), b.Reach(), "aside")
		kafkatest.Must(t, err)
		parked := pipeline.Parked{
			Pipeline: "p", Key: semel.Key{Scope: "s", ID: "k"}, Reason: "attempts", Error: strings.Repeat("é", 1000), Attempts: 8,
			Message: semel.Message{RecordKey: []byte("r"), Headers: []semel.Header{{Name: "own", Value: []byte("1")}}, Origin: semel.Origin{Source: "in", Partition: 3, Offset: 99}},
		}
		kafkatest.Must(t, parker.Park(b.Context(), []pipeline.Parked{parked}))
		read := func(i int) *semel.Message {
			var m semel.Message
			record.Fill(&m, b.Read("aside")[i])
			return &m
		}
		first := read(0)
		want := semel.Origin{Source: "in", Partition: 3, Offset: 99}
		if from, ok := record.ParkedOrigin(first); !ok || from != want || first.Body != nil || string(first.RecordKey) != "r" {
			t.Errorf("it came from %v, %v", from, ok)
		}
		for name, value := range map[string]string{
			"own": "1", header.Key: "k", header.Scope: "s", record.HeaderReason: "attempts", header.Attempt: "8", pipeline.RedriveHeader: "1",
			record.ConnectTopic: "in", record.ConnectOffset: "99", record.SpringGroup: "p",
		} {
			if got := record.Header(first, name); got != value {
				t.Errorf("%s is %q, want %q", name, got, value)
			}
		}
		if text := record.Header(first, record.HeaderError); len(text) > record.MaxErrorHeader || !strings.HasPrefix(text, "éé") {
			t.Errorf("the error has %d bytes", len(text))
		}
		// Parked once more by the process that redrove it.
		parked.Message, parked.Reason = *first, "permanent"
		kafkatest.Must(t, parker.Park(b.Context(), []pipeline.Parked{parked}))
		second := read(1)
		if from, _ := record.ParkedOrigin(second); from != want {
			t.Errorf("the second time it came from %v", from)
		}
		if got := record.Header(second, record.HeaderReason) + record.Header(second, pipeline.RedriveHeader); got != "permanent2" {
			t.Errorf("reason and redrives are %s", got)
		}
		if len(second.Headers) != len(first.Headers) {
			t.Errorf("%d headers became %d: %v", len(first.Headers), len(second.Headers), second.Headers)
		}
		kafkatest.Must(t, parker.Close())
	})
}

func TestOriginHeadersOfOtherProgramsAreRead(t *testing.T) {
	t.Parallel()
	want := semel.Origin{Source: "in", Partition: 2, Offset: 258}
	for name, headers := range map[string][]semel.Header{
		"Connect": {{Name: record.ConnectTopic, Value: []byte("in")}, {Name: record.ConnectPartition, Value: []byte("2")}, {Name: record.ConnectOffset, Value: []byte("258")}},
		"Spring":  {{Name: record.SpringTopic, Value: []byte("in")}, {Name: record.SpringPartition, Value: []byte{0, 0, 0, 2}}, {Name: record.SpringOffset, Value: []byte{0, 0, 0, 0, 0, 0, 1, 2}}},
	} {
		m := &semel.Message{Headers: headers}
		if got, ok := record.ParkedOrigin(m); !ok || got != want {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
		for i := range headers {
			m.Headers = []semel.Header{headers[i], {Name: record.SpringOffset, Value: []byte("1")}}
			if got, ok := record.ParkedOrigin(m); ok {
				t.Errorf("%s alone is taken for the origin %v", headers[i].Name, got)
			}
		}
	}
}
