package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// hide answers questions for the settings of a topic with an error, as often as
// times says; -1 is always.
func (b *bubble) hide(topic string, err *kerr.Error, times int) {
	b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeConfigs}, Resource: topic, Err: err, Count: times})
}

func TestAPassingErrorIsNoLimit(t *testing.T) {
	t.Parallel()
	for _, passing := range []*kerr.Error{kerr.UnknownTopicOrPartition, kerr.NotController} {
		t.Run(passing.Message, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				takes(t, b.client, 10*megabyte, "wide")
				b.hide("wide", passing, 3)
				sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "wide" })
				it := item("k", strings.Repeat("x", 2*megabyte))
				sink.Deliver(t.Context(), []*pipeline.Item{it})
				if it.Err != nil {
					t.Errorf("the topic takes it, but: %v", it.Err)
				}
				must(t, sink.Close(t.Context()))
			})
		})
	}
}

// TestAnErrorThatLastsIsNoLimit has settings that no broker tells.
func TestAnErrorThatLastsIsNoLimit(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		b.hide("out", kerr.NotController, -1)
		began := time.Now()
		sink, err := OpenSink(t.Context(), &SinkOptions{Topic: "out", Client: b.reach()})
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

// TestALimitThatRisesWhileItRunsIsNoticed has topics take what they did not take at the
// start: what was put aside passes when it comes again, and so does what is new.
func TestALimitThatRisesWhileItRunsIsNoticed(t *testing.T) {
	t.Parallel()
	pass := func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
		return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
	}
	for name, change := range map[string]func(*TransactorOptions){
		"out": func(*TransactorOptions) {}, "out behind a transform": func(o *TransactorOptions) { o.Transform = pass },
		"g-repartition": func(o *TransactorOptions) { o.Repartition = &Repartition{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				rises, _, _ := strings.Cut(name, " ")
				client := largeClient(t, b.reach())
				if rises != "out" {
					must(t, b.cluster.CreateTopic(rises, 1, map[string]string{"retention.ms": "-1"}))
				}
				setTakes(t, client, 10_000, rises)
				opts := b.options()
				change(&opts)
				p := b.start(opts)
				body := strings.Repeat("b", 20_000)
				b.write(record(0, "a", "v"), record(0, "b", body))
				if !within(time.Minute, func() bool { return len(b.read("aside")) == 1 }) {
					t.Error("nothing was put aside")
				}
				again := record(0, "b", body)
				again.Headers = []kgo.RecordHeader{{Key: pipeline.RedriveHeader, Value: []byte("1")}}
				b.write(again) // too early
				if !within(time.Minute, func() bool { return len(b.read("aside")) == 2 }) {
					t.Error("it was not put aside again")
				}
				setTakes(t, client, megabyte, rises)
				b.write(again, record(0, "c", body))
				if !within(time.Minute, func() bool { return len(b.read("out")) == 3 }) {
					t.Error("it does not pass")
				}
				if n := len(b.read("aside")); n != 2 {
					t.Errorf("%d were put aside, want 2", n)
				}
				p.becomesReady()
				p.stop()
				if got := strings.Join(keysOf(b.read("out")), " "); got != "a b c" {
					t.Errorf("outputs %s", got)
				}
				client.Close()
			})
		})
	}
}

// TestTheLimitsOfTopicsAreAskedOnceATransaction has many records that are too large.
func TestTheLimitsOfTopicsAreAskedOnceATransaction(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var asked atomic.Int64
		b.cluster.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			asked.Add(1)
			return nil, nil, false
		})
		setTakes(b.T, b.client, 1000, "out")
		var list []*kgo.Record
		for i := range 200 {
			list = append(list, record(0, fmt.Sprint(i), strings.Repeat("x", 2000)))
		}
		b.write(list...)
		opts := b.options()
		opts.Interval = time.Second
		p := b.start(opts)
		p.wait(1, func(e *events) int { return e.count(pipeline.EventSettled) })
		p.stop()
		if n := p.events.count(pipeline.EventParked); n != 200 {
			b.Errorf("%d were put aside, want 200", n)
		}
		if n := asked.Load(); n > 20 {
			b.Errorf("topics were asked %d times", n)
		}
	})
}

// TestASinkNoticesThatItsTopicTakesMore raises the limit of a topic while its sink is
// open.
func TestASinkNoticesThatItsTopicTakesMore(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		takes(t, b.client, megabyte, "rises")
		sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "rises" })
		it := item("k", strings.Repeat("x", 2*megabyte))
		for _, takes := range []int{0, 0, 5 * megabyte, 5 * megabyte} {
			if takes > 0 {
				setTakes(t, b.client, takes, "rises")
			}
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			_, permanent := errors.AsType[*semel.PermanentError](it.Err)
			if refused := takes == 0; permanent != refused || (it.Err != nil) != refused {
				t.Errorf("of a topic that takes %d bytes: %v", takes, it.Err)
			}
		}
		must(t, sink.Close(t.Context()))
	})
}

// TestTheLimitOfATopicThatComesLaterIsRead makes the topic of a sink when the
// sink is open.
func TestTheLimitOfATopicThatComesLaterIsRead(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "later" })
		takes(t, b.client, 5*megabyte, "later")
		for _, size := range []int{10, 2 * megabyte, 6 * megabyte, 3 * megabyte} {
			it := item("k", strings.Repeat("x", size))
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			_, permanent := errors.AsType[*semel.PermanentError](it.Err)
			if large := size > 5*megabyte; permanent != large || (it.Err != nil) != large {
				t.Errorf("%d bytes: %v", size, it.Err)
			}
		}
		must(t, errors.Join(sink.Ready(t.Context()), sink.Close(t.Context())))
	})
}

func TestATopicThatMayNotBeSeenHidesNoOther(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		takes(t, b.client, 10*megabyte, "first", "secret", "last")
		b.hide("secret", kerr.TopicAuthorizationFailed, -1)
		l, err := readLimits(t.Context(), kadm.NewClient(b.client), "first", "secret", "last")
		must(t, err)
		if l.of("first") != 10*megabyte || l.of("secret") != unknownLimit || l.of("last") != 10*megabyte {
			t.Errorf("the limits are %v", l)
		}
	})
}

// TestARefusalOfAnothersRecordIsNotTakenForItsOwn has the brokers refuse a batch
// once, as for the size of a record of another delivery.
func TestARefusalOfAnothersRecordIsNotTakenForItsOwn(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(nil)
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: 1})
		it := item("k", "v")
		sink.Deliver(t.Context(), []*pipeline.Item{it})
		must(t, errors.Join(sink.Close(t.Context()), it.Err))
		if got := len(b.read("out")); got != 1 {
			t.Errorf("%d records, want 1", got)
		}
	})
}

// TestWhatFollowsARefusedRecordOfItsGroupWaits has a record refused while others of
// the same group are still to be written. The client holds one at a time; the
// second is already on its way into it.
func TestWhatFollowsARefusedRecordOfItsGroupWaits(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		sink, _ := b.sink(func(o *SinkOptions) { o.Client = append(o.Client, kgo.MaxBufferedBytes(300)) })
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge, Count: 1})
		var items []*pipeline.Item
		for _, name := range []string{"1", "2", "3", "4"} {
			items = append(items, item("k", strings.Repeat(name, 200)))
		}
		sink.Deliver(t.Context(), items)
		for i, it := range items {
			if behind := i >= 2; errors.Is(it.Err, pipeline.ErrBehind) != behind || (it.Err != nil) != behind {
				t.Errorf("%.1s: %v", it.Message.Body, it.Err)
			}
		}
		sink.Deliver(t.Context(), items[2:])
		must(t, errors.Join(sink.Close(t.Context()), items[2].Err, items[3].Err))
		var order strings.Builder
		for _, r := range b.read("out") {
			order.WriteByte(r.Value[0])
		}
		if !strings.HasSuffix(order.String(), "34") || order.Len() != 4 {
			t.Errorf("the order is %s", order.String())
		}
	})
}
