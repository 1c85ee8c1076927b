package kafkaio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// large makes records of 0.9, 1.5 and 4 MB that nothing makes smaller, and small
// ones around them, each with a copy.
func large(topic string) []*kgo.Record {
	random := rand.NewChaCha8([32]byte{1})
	var list []*kgo.Record
	for _, size := range []int{10, 900_000, 20, 1_500_000, 30, 4_000_000, 40} {
		value := make([]byte, size)
		_, _ = random.Read(value)
		for range 2 {
			list = append(list, &kgo.Record{Topic: topic, Key: fmt.Append(nil, size), Value: value})
		}
	}
	return list
}

// takes makes topics that take batches of some bytes.
func takes(t *testing.T, client *kgo.Client, most int, topics ...string) {
	t.Helper()
	answer, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, map[string]*string{"max.message.bytes": kadm.StringPtr(fmt.Sprint(most))}, topics...)
	must(t, errors.Join(err, answer.Error()))
}

// setTakes changes what a topic takes.
func setTakes(t *testing.T, client *kgo.Client, most int, topic string) {
	t.Helper()
	answer, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr(fmt.Sprint(most))}}, topic)
	must(t, err)
	for _, a := range answer {
		must(t, a.Err)
	}
}

// largeClient writes records of any size.
func largeClient(t *testing.T, opts []kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(slices.Clone(opts), kgo.ProducerBatchMaxBytes(5*megabyte), kgo.UnknownTopicRetries(-1), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
	must(t, err)
	t.Cleanup(client.Close)
	return client
}

const megabyte = 1 << 20

func TestLargeRecordsPassWhereTheirTopicsTakeThem(t *testing.T) {
	t.Parallel()
	for _, between := range []bool{false, true} {
		t.Run(fmt.Sprint(between), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				client := largeClient(t, b.reach())
				takes(t, client, 5*megabyte, "large", "wide")
				opts := b.options()
				opts.Inputs, opts.Output = []string{"large"}, "wide"
				if between {
					opts.Repartition = &Repartition{}
				}
				must(t, client.ProduceSync(t.Context(), large("large")...).FirstErr())
				p := b.start(opts)
				p.wait(14, settled)
				p.stop()
				if got, want := strings.Join(keysOf(b.read("wide")), " "), "10 1500000 20 30 40 4000000 900000"; got != want {
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
					client := largeClient(t, b.reach())
					takes(t, client, 5*megabyte, "large", "put-aside")
					opts := b.options()
					opts.Inputs, opts.Parked, opts.Failure.Then, opts.KeyHeaders = []string{"large"}, "put-aside", then, true
					if transformed {
						opts.Transform = func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
							return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
						}
					}
					must(t, client.ProduceSync(t.Context(), large("large")...).FirstErr())
					p := b.start(opts)
					p.wait(14, settled)
					p.stop()
					if got, want := strings.Join(keysOf(b.read("out")), " "), "10 20 30 40 900000"; got != want {
						t.Errorf("outputs %s, want %s", got, want)
					}
					aside := b.read("put-aside")
					if got := strings.Join(keysOf(aside), " "); got != want {
						t.Errorf("put aside %s, want %s", got, want)
					}
					for _, r := range aside {
						var m semel.Message
						fill(&m, r)
						says := header(&m, headerError)
						for _, part := range []string{"a record of", "for topic out, which takes 1048588 (max.message.bytes of it, before compression; raise it"} {
							if !strings.Contains(says, part) {
								t.Errorf("it says %q, without %q", says, part)
							}
						}
						if from, ok := ParkedOrigin(&m); !ok || from.Source != "large" || header(&m, headerReason) != "permanent" || bytes.Contains(fmt.Append(nil, r.Headers), []byte(headerScope)) {
							t.Errorf("headers %v of %v", r.Headers, from)
						}
					}
					client.Close()
				})
			})
		}
	}
}

// TestWhatCannotBePutAsideStopsIt has no place for a record: it is not lost, and a
// topic that takes it lets the program go on.
func TestWhatCannotBePutAsideStopsIt(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		client := largeClient(t, b.reach())
		takes(t, client, 5*megabyte, "large")
		opts := b.options()
		opts.Inputs = []string{"large"}
		must(t, client.ProduceSync(t.Context(), large("large")...).FirstErr())
		stops := func(want ...string) {
			t.Helper()
			p := b.start(opts)
			<-p.done
			for _, part := range append(want, "stopped at a message of large/0 at 6", "max.message.bytes") {
				if p.err == nil || !strings.Contains(p.err.Error(), part) || !errors.Is(p.err, pipeline.ErrStopped) {
					t.Errorf("it ended with %v, want %q", p.err, part)
				}
			}
		}
		stops("it cannot be put aside", "for topic aside, which takes 1048588")
		opts.Failure.Then = pipeline.Stop
		stops("for topic out, which takes 1048588", "for \"permanent\"", "fix the cause and start again")
		opts.Failure.Then, opts.Parked, opts.OnMissing = pipeline.Park, "", pipeline.MissingDrop
		stops("there is no topic for what is put aside", "for topic out")
		if n := len(b.read("out")); n != 0 {
			t.Errorf("%d outputs of transactions that were not finished", n)
		}
		setTakes(t, client, 5*megabyte, "out")
		p := b.start(opts)
		p.wait(14, settled)
		p.stop()
		if got := len(b.read("out")); got != 7 {
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
				client := largeClient(t, b.reach())
				opts := b.options()
				if falls != "out" {
					opts.Repartition = &Repartition{}
				}
				p := b.start(opts)
				b.write(record(0, "a", "v"))
				p.wait(1, settled)
				setTakes(t, client, 10_000, falls)
				b.write(record(0, "b", "v"), record(0, "c", strings.Repeat("c", 20_000)), record(0, "d", "v"))
				if !within(time.Minute, func() bool { return len(b.read("aside")) == 1 }) {
					t.Error("nothing was put aside")
				}
				b.write(record(0, "e", "v"))
				if !within(time.Minute, func() bool { return len(b.read("out")) == 4 }) {
					t.Error("it does not go on")
				}
				p.stop()
				if got := strings.Join(keysOf(b.read("out")), " "); got != "a b d e" {
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
				must(t, b.cluster.CreateTopic("g-keys", 1, map[string]string{"max.message.bytes": "2000"}))
				opts := b.options()
				opts.Repartition = repartition
				b.write(numbered(0, 1000, 1)...)
				p := b.start(opts)
				p.wait(1000, settled)
				p.stop()
				p = b.start(opts)
				b.write(numbered(500, 1000, 1)...)
				p.wait(1000, settled)
				p.stop()
				b.exactly(1500)
			})
		})
	}
}

func TestTheClientTakesWhatTheLimitsTake(t *testing.T) {
	t.Parallel()
	for _, most := range []int{600, 16_000, 16_384, 1_048_588, 2<<20 + 100} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				t := b.T
				takes(t, b.client, most, "t")
				for _, headers := range []int{0, 3} {
					fits := 0
					for left := 100; left >= -20; left-- {
						l := limits{"t": most}
						client, err := kgo.NewClient(append(b.reach(), kgo.DefaultProduceTopic("t"), kgo.ProducerBatchMaxBytesFn(l.client), kgo.ProducerBatchCompression(kgo.NoCompression()))...)
						must(t, err)
						r := &kgo.Record{Value: make([]byte, most-left-61)}
						for range headers {
							r.Headers = append(r.Headers, kgo.RecordHeader{Key: "k", Value: []byte("v")})
						}
						said := l.check("t", r)
						done := client.ProduceSync(t.Context(), r).FirstErr()
						client.Close()
						if said == nil && done != nil {
							t.Fatalf("%d bytes: %v", len(r.Value), done)
						}
						if said == nil {
							fits = max(fits, batchSize(r))
						}
					}
					if fits < most-2 {
						t.Errorf("at most %d bytes fit, of %d", fits, most)
					}
				}
			})
		})
	}
}

func TestLargeRecordsOnARealBroker(t *testing.T) {
	t.Parallel()
	server := servicestest.StartKafka(t, nil)
	opts := append(quick(server.Addr()), kgo.UnknownTopicRetries(-1))
	client := largeClient(t, opts)
	takes(t, client, 5*megabyte, "in", "wide", "aside")
	takes(t, client, megabyte, "narrow", "small")
	must(t, client.ProduceSync(t.Context(), large("in")...).FirstErr())
	rule, err := key.ParseRule("record-key")
	must(t, err)
	for output, want := range map[string][]int{"wide": {7, 0}, "narrow": {5, 4}} {
		t.Run("a transaction to "+output, func(t *testing.T) {
			t.Parallel()
			events := &events{}
			tr, err := NewTransactor(&TransactorOptions{
				Client: opts, Group: "to-" + output, Inputs: []string{"in"}, Output: output, Parked: "aside", Key: rule, Window: time.Hour, SkipSample: true, Observer: events,
			})
			must(t, err)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			go func() { ended <- tr.Run(ctx) }()
			if !within(3*time.Minute, func() bool { return settled(events) >= 14 }) {
				t.Errorf("%d messages are settled, want 14", settled(events))
			}
			stop()
			must(t, <-ended)
			if got := []int{events.count(pipeline.EventDelivered), events.count(pipeline.EventParked)}; !slices.Equal(got, want) {
				t.Errorf("delivered and put aside %v, want %v", got, want)
			}
		})
	}
	t.Run("a transaction that has no place for it", func(t *testing.T) {
		t.Parallel()
		tr, err := NewTransactor(&TransactorOptions{Client: opts, Group: "nowhere", Inputs: []string{"in"}, Output: "narrow", Parked: "small", Key: rule, Window: time.Hour, SkipSample: true})
		must(t, err)
		if err := tr.Run(t.Context()); !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), "stopped at a message of in/0 at 6: it cannot be put aside") {
			t.Errorf("it ended with %v", err)
		}
	})
	t.Run("a topic that takes more later", func(t *testing.T) {
		t.Parallel()
		takes(t, client, megabyte, "rises")
		takes(t, client, 5*megabyte, "later")
		must(t, client.ProduceSync(t.Context(), large("later")...).FirstErr())
		events := &events{}
		tr, err := NewTransactor(&TransactorOptions{
			Client: opts, Group: "rises", Inputs: []string{"later"}, Output: "rises", Parked: "aside", Key: rule, Window: time.Hour, SkipSample: true, Observer: events,
		})
		must(t, err)
		sink, err := OpenSink(t.Context(), &SinkOptions{Client: opts, Topic: "rises"})
		must(t, err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- tr.Run(ctx) }()
		parked := func() int { return events.count(pipeline.EventParked) }
		if !within(3*time.Minute, func() bool { return settled(events) >= 14 }) || parked() != 4 {
			t.Errorf("%d messages are settled, want 14, and %d put aside, want 4", settled(events), parked())
		}
		it := item("k", strings.Repeat("x", 2*megabyte))
		deliver := func(refused bool) {
			t.Helper()
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			if errors.Is(it.Err, kerr.MessageTooLarge) != refused || (it.Err != nil) != refused {
				t.Errorf("it was delivered with %v, refused: want %t", it.Err, refused)
			}
		}
		deliver(true)
		setTakes(t, client, 5*megabyte, "rises")
		deliver(false)
		must(t, sink.Close(t.Context()))
		must(t, client.ProduceSync(t.Context(), large("later")...).FirstErr())
		if !within(3*time.Minute, func() bool { return settled(events) >= 28 }) || parked() != 4 {
			t.Errorf("%d messages are settled, want 28, and %d put aside, want 4", settled(events), parked())
		}
		stop()
		must(t, <-ended)
	})
	t.Run("two phases", func(t *testing.T) {
		t.Parallel()
		var items []*pipeline.Item
		for i, r := range large("in") {
			it := item(string(r.Key), "")
			it.Message.Body, it.Message.Origin = r.Value, semel.Origin{Source: "in", Offset: int64(i)}
			items = append(items, it)
		}
		for topic, most := range map[string]int{"wide": 5 * megabyte, "narrow": megabyte} {
			sink, err := OpenSink(t.Context(), &SinkOptions{Client: opts, Topic: topic})
			must(t, err)
			sink.Deliver(t.Context(), items)
			must(t, sink.Close(t.Context()))
			for _, it := range items {
				_, permanent := errors.AsType[*semel.PermanentError](it.Err)
				if large := len(it.Message.Body) > most; large != permanent || large != (it.Err != nil) {
					t.Errorf("%d bytes to %s: %v", len(it.Message.Body), topic, it.Err)
				}
				if it.Err != nil && !strings.Contains(it.Err.Error(), "for topic narrow, which takes 1048576 (max.message.bytes") {
					t.Errorf("it says %v", it.Err)
				}
			}
		}
		for topic, want := range map[string]bool{"aside": false, "small": true} {
			parker, err := OpenParker(t.Context(), opts, topic)
			must(t, err)
			err = parker.Park(t.Context(), []pipeline.Parked{{Pipeline: "p", Message: items[0].Message}, {Pipeline: "p", Message: items[10].Message}})
			_, permanent := errors.AsType[*semel.PermanentError](err)
			if permanent != want || (err != nil) != want || want && (!errors.Is(err, kerr.MessageTooLarge) || !strings.Contains(err.Error(), "in/0 at 10: ")) {
				t.Errorf("park in %s: %v", topic, err)
			}
			must(t, parker.Close())
		}
	})
}

// TestARefusalThatNoSettingExplainsStopsIt hides the settings of the topics.
func TestARefusalThatNoSettingExplainsStopsIt(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		t := b.T
		b.cluster.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.cluster.KeepControl()
			answer := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
			for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
				answer.Resources = append(answer.Resources, kmsg.DescribeConfigsResponseResource{
					ErrorCode: kerr.TopicAuthorizationFailed.Code, ResourceType: r.ResourceType, ResourceName: r.ResourceName,
				})
			}
			return answer, nil, true
		})
		setTakes(t, b.client, 10_000, "out")
		opts := b.options()
		p := b.start(opts)
		b.write(record(0, "a", "v"))
		p.wait(1, settled)
		b.write(record(0, "b", strings.Repeat("b", 20_000)))
		<-p.done
		for _, want := range []string{"write out/", "may not be seen: allow DescribeConfigs"} {
			if !errors.Is(p.err, pipeline.ErrStopped) || !strings.Contains(p.err.Error(), want) {
				t.Errorf("it ended with %v, want %q", p.err, want)
			}
		}
	})
}
