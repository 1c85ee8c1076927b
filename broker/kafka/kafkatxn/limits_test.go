package kafkatxn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestLargeRecordsPassWhereTheirTopicsTakeThem(t *testing.T) {
	t.Parallel()
	for _, between := range []bool{false, true} {
		t.Run(fmt.Sprint(between), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				client := kafkatest.LargeClient(t, b.Reach())
				kafkatest.Takes(t, client, 5*kafkatest.Megabyte, "large", "wide")
				opts := b.options()
				opts.Inputs, opts.Output.Topic = []string{"large"}, "wide"
				if between {
					opts.Repartition = &Repartition{}
				}
				kafkatest.Must(t, client.ProduceSync(t.Context(), kafkatest.Large("large")...).FirstErr())
				p := b.start(opts)
				p.Wait(14, kafkatest.Settled)
				p.Stop()
				if got, want := strings.Join(kafkatest.KeysOf(b.Read("wide")), " "), "10 1500000 20 30 40 4000000 900000"; got != want {
					t.Errorf("outputs %s, want %s", got, want)
				}
				client.Close()
			})
		})
	}
}

func TestRecordsThatAreTooLargeForTheOutputFollowThePolicy(t *testing.T) {
	t.Parallel()
	for then, want := range map[pipeline.Then]string{pipeline.Park: "1500000 1500000 4000000 4000000", pipeline.Drop: ""} {
		for _, transformed := range []bool{false, true} {
			t.Run(fmt.Sprint(then, transformed), func(t *testing.T) {
				t.Parallel()
				inBubble(t, 1, func(b *bubble) {
					t := b.T
					client := kafkatest.LargeClient(t, b.Reach())
					kafkatest.Takes(t, client, 5*kafkatest.Megabyte, "large", "put-aside")
					opts := b.options()
					opts.Inputs, opts.Parked, opts.Failure.Then, opts.Output.KeyHeaders = []string{"large"}, "put-aside", then, true
					if transformed {
						opts.Transform = func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
							return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
						}
					}
					kafkatest.Must(t, client.ProduceSync(t.Context(), kafkatest.Large("large")...).FirstErr())
					p := b.start(opts)
					p.Wait(14, kafkatest.Settled)
					p.Stop()
					if got, want := strings.Join(kafkatest.KeysOf(b.Read("out")), " "), "10 20 30 40 900000"; got != want {
						t.Errorf("outputs %s, want %s", got, want)
					}
					aside := b.Read("put-aside")
					if got := strings.Join(kafkatest.KeysOf(aside), " "); got != want {
						t.Errorf("parked %s, want %s", got, want)
					}
					for _, r := range aside {
						var m semel.Message
						record.Fill(&m, r)
						says := record.Header(&m, record.HeaderError)
						for _, part := range []string{"a record of", "for topic out, which takes 1048588 (max.message.bytes of it, before compression; raise it"} {
							if !strings.Contains(says, part) {
								t.Errorf("it says %q, without %q", says, part)
							}
						}
						if from, ok := record.ParkedOrigin(&m); !ok || from.Source != "large" || record.Header(&m, record.HeaderReason) != "permanent" || bytes.Contains(fmt.Append(nil, r.Headers), []byte(header.Scope)) {
							t.Errorf("headers %v of %v", r.Headers, from)
						}
					}
					client.Close()
				})
			})
		}
	}
}

// TestARecordThatCannotBeParkedStopsTheTransactor has no place for a record: it is not lost, and a
// topic that takes it lets the program continue.
func TestARecordThatCannotBeParkedStopsTheTransactor(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		client := kafkatest.LargeClient(t, b.Reach())
		kafkatest.Takes(t, client, 5*kafkatest.Megabyte, "large")
		opts := b.options()
		opts.Inputs = []string{"large"}
		kafkatest.Must(t, client.ProduceSync(t.Context(), kafkatest.Large("large")...).FirstErr())
		stops := func(want ...string) {
			t.Helper()
			p := b.start(opts)
			<-p.Done
			for _, part := range append(want, "stopped at a message of large/0 at 6", "max.message.bytes") {
				if p.Err == nil || !strings.Contains(p.Err.Error(), part) || !errors.Is(p.Err, pipeline.ErrStopped) {
					t.Errorf("it ended with %v, want %q", p.Err, part)
				}
			}
		}
		stops("it cannot be parked", "for topic aside, which takes 1048588")
		opts.Failure.Then = pipeline.Stop
		stops("for topic out, which takes 1048588", "for \"permanent\"", "fix the cause and start again")
		opts.Failure.Then, opts.Parked, opts.Key.OnMissing = pipeline.Park, "", pipeline.MissingDrop
		stops("it cannot be parked, because Parked names no topic", "for topic out")
		if n := len(b.Read("out")); n != 0 {
			t.Errorf("%d outputs of transactions that were not finished", n)
		}
		kafkatest.SetTakes(t, client, 5*kafkatest.Megabyte, "out")
		p := b.start(opts)
		p.Wait(14, kafkatest.Settled)
		p.Stop()
		if got := len(b.Read("out")); got != 7 {
			t.Errorf("%d outputs, want 7", got)
		}
		client.Close()
	})
}

// TestALimitThatFallsWhileItRunsIsNoticed makes the output and the topic between
// the stages take less.
func TestALimitThatFallsWhileItRunsIsNoticed(t *testing.T) {
	t.Parallel()
	for _, falls := range []string{"out", "g-repartition"} {
		t.Run(falls, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				client := kafkatest.LargeClient(t, b.Reach())
				opts := b.options()
				if falls != "out" {
					opts.Repartition = &Repartition{}
				}
				p := b.start(opts)
				b.Write(kafkatest.Record(0, "a", "v"))
				p.Wait(1, kafkatest.Settled)
				kafkatest.SetTakes(t, client, 10_000, falls)
				b.Write(kafkatest.Record(0, "b", "v"), kafkatest.Record(0, "c", strings.Repeat("c", 20_000)), kafkatest.Record(0, "d", "v"))
				if !kafkatest.Within(time.Minute, func() bool { return len(b.Read("aside")) == 1 }) {
					t.Error("nothing was parked")
				}
				b.Write(kafkatest.Record(0, "e", "v"))
				if !kafkatest.Within(time.Minute, func() bool { return len(b.Read("out")) == 4 }) {
					t.Error("it does not go on")
				}
				p.Stop()
				if got := strings.Join(kafkatest.KeysOf(b.Read("out")), " "); got != "a b d e" {
					t.Errorf("outputs %s", got)
				}
				client.Close()
			})
		})
	}
}

// TestManyKeysOfOneTransactionFitIntoASmallChangelog has a changelog that takes
// little.
func TestManyKeysOfOneTransactionFitIntoASmallChangelog(t *testing.T) {
	t.Parallel()
	for name, repartition := range map[string]*Repartition{"one stage": nil, "two stages": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				kafkatest.Must(t, b.Cluster.CreateTopic("g-keys", 1, map[string]string{"max.message.bytes": "2000"}))
				opts := b.options()
				opts.Repartition = repartition
				b.Write(kafkatest.Numbered(0, 1000, 1)...)
				p := b.start(opts)
				p.Wait(1000, kafkatest.Settled)
				p.Stop()
				p = b.start(opts)
				b.Write(kafkatest.Numbered(500, 1000, 1)...)
				p.Wait(1000, kafkatest.Settled)
				p.Stop()
				b.Exactly(1500)
			})
		})
	}
}

func TestLargeRecordsOnARealBroker(t *testing.T) {
	t.Parallel()
	run := servicestest.Topic() + "-"
	in, wide, aside, narrow, small, rises, later := run+"in", run+"wide", run+"aside", run+"narrow", run+"small", run+"rises", run+"later"
	opts := append(kafkatest.Quick(servers.Kafka(t)), kgo.UnknownTopicRetries(-1))
	client := kafkatest.LargeClient(t, opts)
	kafkatest.Takes(t, client, 5*kafkatest.Megabyte, in, wide, aside)
	kafkatest.Takes(t, client, kafkatest.Megabyte, narrow, small)
	kafkatest.Must(t, client.ProduceSync(t.Context(), kafkatest.Large(in)...).FirstErr())
	rule, err := key.ParseRule("record-key")
	kafkatest.Must(t, err)
	for output, want := range map[string][]int{wide: {7, 0}, narrow: {5, 4}} {
		t.Run("a transaction to "+strings.TrimPrefix(output, run), func(t *testing.T) {
			t.Parallel()
			events := &kafkatest.Events{}
			tr, err := NewTransactor(&TransactorOptions{
				Client: opts, Group: "to-" + output, Inputs: []string{in}, Output: Output{Topic: output}, Parked: aside, Key: KeyOptions{Rule: rule}, Window: time.Hour, hooks: hooks{skipSample: true}, Observer: events,
			})
			kafkatest.Must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- tr.Run(ctx) }()
			if !kafkatest.Within(3*time.Minute, func() bool { return kafkatest.Settled(events) >= 14 }) {
				t.Errorf("%d messages are settled, want 14", kafkatest.Settled(events))
			}
			stop()
			kafkatest.Must(t, <-ended)
			if got := []int{events.Count(pipeline.EventDelivered), events.Count(pipeline.EventParked)}; !slices.Equal(got, want) {
				t.Errorf("delivered and parked %v, want %v", got, want)
			}
		})
	}
	t.Run("a transaction that has no place for it", func(t *testing.T) {
		t.Parallel()
		tr, err := NewTransactor(&TransactorOptions{Client: opts, Group: run + "nowhere", Inputs: []string{in}, Output: Output{Topic: narrow}, Parked: small, Key: KeyOptions{Rule: rule}, Window: time.Hour, hooks: hooks{skipSample: true}})
		kafkatest.Must(t, err)
		if err := tr.Run(t.Context()); !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), "stopped at a message of "+in+"/0 at 6: it cannot be parked") {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Run("a topic that takes more later", func(t *testing.T) {
		t.Parallel()
		kafkatest.Takes(t, client, kafkatest.Megabyte, rises)
		kafkatest.Takes(t, client, 5*kafkatest.Megabyte, later)
		kafkatest.Must(t, client.ProduceSync(t.Context(), kafkatest.Large(later)...).FirstErr())
		events := &kafkatest.Events{}
		tr, err := NewTransactor(&TransactorOptions{
			Client: opts, Group: rises, Inputs: []string{later}, Output: Output{Topic: rises}, Parked: aside, Key: KeyOptions{Rule: rule}, Window: time.Hour, hooks: hooks{skipSample: true}, Observer: events,
		})
		kafkatest.Must(t, err)
		sink, err := kafka.OpenSink(t.Context(), &kafka.SinkOptions{Client: opts, Topic: rises})
		kafkatest.Must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- tr.Run(ctx) }()
		parked := func() int { return events.Count(pipeline.EventParked) }
		if !kafkatest.Within(3*time.Minute, func() bool { return kafkatest.Settled(events) >= 14 }) || parked() != 4 {
			t.Errorf("%d messages are settled, want 14, and %d parked, want 4", kafkatest.Settled(events), parked())
		}
		it := kafkatest.Item("k", strings.Repeat("x", 2*kafkatest.Megabyte))
		deliver := func(refused bool) {
			t.Helper()
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			if errors.Is(it.Err, kerr.MessageTooLarge) != refused || (it.Err != nil) != refused {
				t.Errorf("it was delivered with %v, refused: want %t", it.Err, refused)
			}
		}
		deliver(true)
		kafkatest.SetTakes(t, client, 5*kafkatest.Megabyte, rises)
		if !kafkatest.Within(3*time.Minute, func() bool { // a broker answers before it applies the setting
			return client.ProduceSync(t.Context(), &kgo.Record{Topic: rises, Value: it.Message.Body}).FirstErr() == nil
		}) {
			t.Error("the broker does not apply the new setting")
		}
		deliver(false)
		kafkatest.Must(t, sink.Close(t.Context()))
		kafkatest.Must(t, client.ProduceSync(t.Context(), kafkatest.Large(later)...).FirstErr())
		if !kafkatest.Within(3*time.Minute, func() bool { return kafkatest.Settled(events) >= 28 }) || parked() != 4 {
			t.Errorf("%d messages are settled, want 28, and %d parked, want 4", kafkatest.Settled(events), parked())
		}
		stop()
		kafkatest.Must(t, <-ended)
	})
	t.Run("two phases", func(t *testing.T) {
		t.Parallel()
		var items []*pipeline.Item
		for i, r := range kafkatest.Large(in) {
			it := kafkatest.Item(string(r.Key), "")
			it.Message.Body, it.Message.Origin = r.Value, semel.Origin{Source: in, Offset: int64(i)}
			it.Group = uint64(i) + 1
			items = append(items, it)
		}
		for topic, most := range map[string]int{wide: 5 * kafkatest.Megabyte, narrow: kafkatest.Megabyte} {
			sink, err := kafka.OpenSink(t.Context(), &kafka.SinkOptions{Client: opts, Topic: topic})
			kafkatest.Must(t, err)
			sink.Deliver(t.Context(), items)
			kafkatest.Must(t, sink.Close(t.Context()))
			for _, it := range items {
				_, permanent := errors.AsType[*semel.PermanentError](it.Err)
				if large := len(it.Message.Body) > most; large != permanent || large != (it.Err != nil) {
					t.Errorf("%d bytes to %s: %v", len(it.Message.Body), topic, it.Err)
				}
				if it.Err != nil && !strings.Contains(it.Err.Error(), "for topic "+narrow+", which takes 1048576 (max.message.bytes") {
					t.Errorf("it says %v", it.Err)
				}
			}
		}
		for topic, want := range map[string]bool{aside: false, small: true} {
			parker, err := kafka.OpenParker(t.Context(), opts, topic)
			kafkatest.Must(t, err)
			err = parker.Park(t.Context(), []pipeline.Parked{{Pipeline: "p", Message: items[0].Message}, {Pipeline: "p", Message: items[10].Message}})
			_, permanent := errors.AsType[*semel.PermanentError](err)
			if permanent != want || (err != nil) != want || want && (!errors.Is(err, kerr.MessageTooLarge) || !strings.Contains(err.Error(), in+"/0 at 10: ")) {
				t.Errorf("park in %s: %v", topic, err)
			}
			kafkatest.Must(t, parker.Close())
		}
	})
}

// TestARefusalThatNoSettingExplainsStopsIt hides the settings of the topics.
func TestARefusalThatNoSettingExplainsStopsIt(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		b.Cluster.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			answer := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
			for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
				answer.Resources = append(answer.Resources, kmsg.DescribeConfigsResponseResource{
					ErrorCode: kerr.TopicAuthorizationFailed.Code, ResourceType: r.ResourceType, ResourceName: r.ResourceName,
				})
			}
			return answer, nil, true
		})
		kafkatest.SetTakes(t, b.Client, 10_000, "out")
		opts := b.options()
		p := b.start(opts)
		b.Write(kafkatest.Record(0, "a", "v"))
		p.Wait(1, kafkatest.Settled)
		b.Write(kafkatest.Record(0, "b", strings.Repeat("b", 20_000)))
		<-p.Done
		for _, want := range []string{"write out/", "may not be seen: allow DescribeConfigs"} {
			if !errors.Is(p.Err, pipeline.ErrStopped) || !strings.Contains(p.Err.Error(), want) {
				t.Errorf("it ended with %v, want %q", p.Err, want)
			}
		}
	})
}

// TestAnOutputFromTheFutureFailsAlone has an output topic that takes no record whose time
// is more than an hour ahead, as Kafka 4 does. Brokers would refuse all of a transaction
// with such a record.
func TestAnOutputFromTheFutureFailsAlone(t *testing.T) {
	t.Parallel()
	for name, transform := range map[string]Transform{
		"passed on": nil,
		"transformed": func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
			return []*kgo.Record{{Value: m.Body, Timestamp: m.Time}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.Cluster.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
					b.Cluster.KeepControl()
					asked := req.(*kmsg.DescribeConfigsRequest).Resources
					if len(asked) != 1 || asked[0].ResourceName != "out" {
						return nil, nil, false
					}
					resource := kmsg.DescribeConfigsResponseResource{ResourceType: asked[0].ResourceType, ResourceName: "out"}
					for name, value := range map[string]string{"max.message.bytes": "1048588", "message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "3600000"} {
						resource.Configs = append(resource.Configs, kmsg.DescribeConfigsResponseResourceConfig{Name: name, Value: &value})
					}
					answer := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
					answer.Resources = append(answer.Resources, resource)
					return answer, nil, true
				})
				far := kafkatest.Record(0, "far", "far")
				far.Timestamp = time.Now().Add(2 * time.Hour)
				near := kafkatest.Record(0, "near", "near")
				near.Timestamp = time.Now().Add(time.Hour - time.Second)
				b.Write(far, near)
				opts := b.options()
				opts.Transform = transform
				p := b.start(opts)
				p.Wait(2, kafkatest.Settled)
				p.Stop()
				if n := p.Events.Count(pipeline.EventParked); n != 1 {
					b.Errorf("%d records are parked, want 1", n)
				}
				if log := strings.Join(p.Events.Log, "\n"); !strings.Contains(log, "raise its message.timestamp.after.max.ms") {
					b.Errorf("nothing says why:\n%s", log)
				}
			})
		})
	}
}

// TestALimitThatRisesWhileItRunsIsNoticed has topics take records that they refused at the
// start: what was parked passes when it comes again, and so does what is new.
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
				client := kafkatest.LargeClient(t, b.Reach())
				if rises != "out" {
					kafkatest.Must(t, b.Cluster.CreateTopic(rises, 1, map[string]string{"retention.ms": "-1"}))
				}
				kafkatest.SetTakes(t, client, 10_000, rises)
				opts := b.options()
				change(&opts)
				p := b.start(opts)
				body := strings.Repeat("b", 20_000)
				b.Write(kafkatest.Record(0, "a", "v"), kafkatest.Record(0, "b", body))
				if !kafkatest.Within(time.Minute, func() bool { return len(b.Read("aside")) == 1 }) {
					t.Error("nothing was parked")
				}
				again := kafkatest.Record(0, "b", body)
				again.Headers = []kgo.RecordHeader{{Key: pipeline.RedriveHeader, Value: []byte("1")}}
				b.Write(again) // too early
				if !kafkatest.Within(time.Minute, func() bool { return len(b.Read("aside")) == 2 }) {
					t.Error("it was not parked again")
				}
				kafkatest.SetTakes(t, client, kafkatest.Megabyte, rises)
				b.Write(again, kafkatest.Record(0, "c", body))
				if !kafkatest.Within(time.Minute, func() bool { return len(b.Read("out")) == 3 }) {
					t.Error("it does not pass")
				}
				if n := len(b.Read("aside")); n != 2 {
					t.Errorf("%d were parked, want 2", n)
				}
				p.becomesReady()
				p.Stop()
				if got := strings.Join(kafkatest.KeysOf(b.Read("out")), " "); got != "a b c" {
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
		b.Cluster.ControlKey(int16(kmsg.DescribeConfigs), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			asked.Add(1)
			return nil, nil, false
		})
		kafkatest.SetTakes(b.T, b.Client, 1000, "out")
		var list []*kgo.Record
		for i := range 200 {
			list = append(list, kafkatest.Record(0, fmt.Sprint(i), strings.Repeat("x", 2000)))
		}
		b.Write(list...)
		opts := b.options()
		opts.Limits.Interval = time.Second
		p := b.start(opts)
		p.Wait(1, func(e *kafkatest.Events) int { return e.Count(pipeline.EventSettled) })
		p.Stop()
		if n := p.Events.Count(pipeline.EventParked); n != 200 {
			b.Errorf("%d were parked, want 200", n)
		}
		if n := asked.Load(); n > 20 {
			b.Errorf("topics were asked %d times", n)
		}
	})
}
