package kafka

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// ledgerPartitions is how many partitions the topics of the suite have.
const ledgerPartitions = 3

// topicFor makes a topic for one test, and a client that produces to it.
func topicFor(tb testing.TB, addrs ...string) (string, *kgo.Client) {
	tb.Helper()
	client, err := kgo.NewClient(append(kafkatest.Quick(addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.UnknownTopicRetries(-1))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	topic := servicestest.Topic()
	if _, err := kadm.NewClient(client).CreateTopics(tb.Context(), ledgerPartitions, 1, nil, topic, topic+"-other"); err != nil {
		tb.Fatal(err)
	}
	// Its connections are there from the beginning.
	if err := client.ProduceSync(tb.Context(), &kgo.Record{Topic: topic + "-other"}).FirstErr(); err != nil {
		tb.Fatal(err)
	}
	return topic, client
}

func fakeBroker(tb testing.TB) string {
	tb.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second), kfake.BrokerConfigs(map[string]string{
		// A member that the broker gives work gets both, and must be missed before the suite is.
		"group.consumer.heartbeat.interval.ms": "500", "group.consumer.session.timeout.ms": "5000",
	}))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cluster.Close)
	return cluster.ListenAddrs()[0]
}

type restartFunc = func(ctx context.Context) error

// sourcePlace is a topic that a group reads.
func sourcePlace(tb testing.TB, addr string, restart restartFunc, change func(o *SourceOptions)) brokertest.SourcePlace {
	topic, client := topicFor(tb, addr)
	open := func(ctx context.Context, session time.Duration, more ...kgo.Opt) (pipeline.Source, error) {
		seen := &kafkatest.Events{}
		tb.Cleanup(func() {
			if tb.Failed() {
				tb.Log("events:\n" + strings.Join(seen.Log, "\n"))
			}
		})
		opts := &SourceOptions{
			Client: append(kafkatest.Quick(addr), more...), Group: topic, Topics: []string{topic}, CommitEvery: 20 * time.Millisecond,
			SessionTimeout: session, Observer: seen,
		}
		change(opts)
		return OpenSource(ctx, opts)
	}
	return brokertest.SourcePlace{
		Partitions: ledgerPartitions,
		Produce: func(ctx context.Context, list []brokertest.Numbered) error {
			records := make([]*kgo.Record, len(list))
			for i, m := range list {
				records[i] = &kgo.Record{Topic: topic, Partition: int32(m.Partition), Value: m.Body}
				for _, h := range m.Headers {
					records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
				}
			}
			return client.ProduceSync(ctx, records...).FirstErr()
		},
		Open:   func(ctx context.Context) (pipeline.Source, error) { return open(ctx, 30*time.Second) },
		Server: addr,
		OpenAt: func(ctx context.Context, address string) (pipeline.Source, error) {
			// The suite waits until the group misses a member, which must not be because the
			// machine stands still.
			return open(ctx, 6*time.Second, through(address))
		},
		Again:   func(ctx context.Context) error { return againTopic(ctx, client, topic) },
		Restart: restart,
	}
}

// through has a client connect to one address, whatever brokers the cluster names.
func through(address string) kgo.Opt {
	return kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
}

// againTopic deletes a topic and creates it again.
func againTopic(ctx context.Context, client *kgo.Client, topic string) error {
	adm := kadm.NewClient(client)
	if _, err := adm.DeleteTopics(ctx, topic); err != nil {
		return err
	}
	client.PurgeTopicsFromClient(topic) // it would write to the deleted topic
	for {
		answer, err := adm.CreateTopics(ctx, ledgerPartitions, 1, nil, topic)
		if err == nil {
			err = answer.Error()
		}
		if !errors.Is(err, kerr.TopicAlreadyExists) { // the deletion has ended
			return err
		}
		_ = retry.Sleep(ctx, 10*time.Millisecond)
	}
}

// sinkTarget is a topic that a sink writes.
func sinkTarget(tb testing.TB, addr string, restart restartFunc) brokertest.SinkTarget {
	topic, client := topicFor(tb, addr)
	open := func(ctx context.Context, more ...kgo.Opt) (pipeline.Sink, error) {
		return OpenSink(ctx, &SinkOptions{Name: "ledger", Client: append(kafkatest.Quick(addr), more...), Topic: topic, SamePartition: true})
	}
	return brokertest.SinkTarget{
		Sink:    func(ctx context.Context) (pipeline.Sink, error) { return open(ctx) },
		Server:  addr,
		SinkAt:  func(ctx context.Context, address string) (pipeline.Sink, error) { return open(ctx, through(address)) },
		Refused: make([]byte, 2<<20), // a topic takes 1 MiB
		Effects: func(ctx context.Context) ([]brokertest.Effect, error) { return effectsIn(ctx, client, addr, topic) },
		Restart: restart,
	}
}

// effectsIn reads all that is in a topic at the moment.
func effectsIn(ctx context.Context, client *kgo.Client, addr, topic string) (list []brokertest.Effect, err error) {
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	left := 0
	ends.Each(func(o kadm.ListedOffset) { left += int(o.Offset) })
	reader, err := kgo.NewClient(append(kafkatest.Quick(addr), kgo.ConsumeTopics(topic), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	for left > len(list) {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), fetches.Err())
		}
		for r := range fetches.RecordsAll() {
			effect := brokertest.Effect{Body: r.Value}
			for _, h := range r.Headers {
				effect.Headers = append(effect.Headers, semel.Header{Name: h.Key, Value: h.Value})
			}
			list = append(list, effect)
		}
	}
	return list, nil
}

// The suite counts goroutines, so that these tests are not parallel.

func TestSourcePassesTheSuite(t *testing.T) {
	for name, change := range map[string]func(o *SourceOptions){
		"a member that comes and goes":   func(*SourceOptions) {},
		"a static member":                func(o *SourceOptions) { o.Instance = "one" },
		"a member the broker gives work": func(o *SourceOptions) { o.ServerSide = true },
	} {
		t.Run(name, func(t *testing.T) {
			addr := fakeBroker(t)
			brokertest.RunSource(t, brokertest.SourceHarness{Messages: 300, Alone: name == "a static member", New: func(tb testing.TB) brokertest.SourcePlace {
				return sourcePlace(tb, addr, nil, change)
			}})
		})
	}
}

func TestSinkPassesTheSuite(t *testing.T) {
	addr := fakeBroker(t)
	brokertest.RunSink(t, brokertest.SinkHarness{AtLeastOnce: true, Messages: 300, New: func(tb testing.TB) brokertest.SinkTarget {
		return sinkTarget(tb, addr, nil)
	}})
}

func TestSourceAndSinkPassTheSuiteOnARealBrokerThatIsKilled(t *testing.T) {
	server := servicestest.StartKafka(t, nil)
	kill := func(ctx context.Context) error { return errors.Join(server.Kill(), server.Restart(ctx)) }
	members := 0
	t.Run("source", func(t *testing.T) {
		brokertest.RunSource(t, brokertest.SourceHarness{Messages: 300, Alone: true, New: func(tb testing.TB) brokertest.SourcePlace {
			members++
			instance := "member-" + strconv.Itoa(members)
			return sourcePlace(tb, server.Addr(), kill, func(o *SourceOptions) {
				// A member that is away for longer loses its uncommitted records. Each of them
				// comes again.
				o.Instance, o.SessionTimeout = instance, 30*time.Second
			})
		}})
	})
	t.Run("sink", func(t *testing.T) {
		brokertest.RunSink(t, brokertest.SinkHarness{AtLeastOnce: true, Messages: 300, New: func(tb testing.TB) brokertest.SinkTarget {
			return sinkTarget(tb, server.Addr(), kill)
		}})
	})
}
