package kafka

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// addressed returns an item whose message names a topic.
func addressed(topic, key string, group uint64) *pipeline.Item {
	it := kafkatest.Item(key, "v")
	it.Message.Origin.Source, it.Group = topic, group
	return it
}

// TestEachMessageNamesItsTopic has messages for two topics, for a forbidden one, and for a
// missing one. The last two fail by themselves, and hold up their groups only.
func TestEachMessageNamesItsTopic(t *testing.T) {
	t.Parallel()
	brokers, run := servers.Kafka(t), servicestest.Topic()+"-"
	orders, secret, small, later := run+"orders", run+"secret", run+"small", run+"later"
	client, err := kgo.NewClient(kafkatest.Quick(brokers)...)
	kafkatest.Must(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	limit := "2000"
	_, err = admin.CreateTopics(t.Context(), 1, 1, nil, orders, secret)
	kafkatest.Must(t, err)
	_, err = admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &limit}, small)
	kafkatest.Must(t, err)
	exist := func(topics ...string) {
		t.Helper()
		if !kafkatest.Within(time.Minute, func() bool { return cluster.HaveTopics(t.Context(), client, topics...) == nil }) {
			t.Fatalf("%v do not appear", topics)
		}
	}
	exist(orders, secret, small)
	route, err := pipeline.NewRoute("source", orders, run+"sm*", later)
	kafkatest.Must(t, err)
	sink, err := OpenSink(t.Context(), &SinkOptions{Client: kafkatest.Quick(brokers), Route: route})
	kafkatest.Must(t, err)
	defer sink.Close(t.Context())
	kafkatest.Must(t, sink.Ready(t.Context()))
	items := []*pipeline.Item{
		addressed(orders, "a", 1), addressed(small, "b", 2), addressed(secret, "c", 3), addressed(orders, "behind c", 3),
		addressed("", "d", 4), addressed(later, "e", 5), addressed(orders, "behind e", 5), addressed(orders, "f", 6), addressed(small, "large", 7),
	}
	items[8].Message.Body = []byte(strings.Repeat("x", 3000))
	sink.Deliver(t.Context(), items)
	says := map[string]string{
		"c": `"` + secret + `", which is not allowed`, "behind c": "behind", "d": "is empty", "e": later + " does not exist", "behind e": "behind", "large": "takes 2000",
	}
	for _, it := range items {
		key := string(it.Message.RecordKey)
		switch {
		case says[key] == "" && it.Err != nil:
			t.Errorf("%s: %v", key, it.Err)
		case says[key] != "" && (it.Err == nil || !strings.Contains(it.Err.Error(), says[key])):
			t.Errorf("%s: %v, want %s", key, it.Err, says[key])
		}
		if _, away := errors.AsType[*pipeline.UnavailableError](it.Err); away {
			t.Errorf("%s: it pauses the pipeline: %v", key, it.Err)
		}
	}
	if _, missing := MissingTopic(items[5].Err); !missing {
		t.Errorf("%v names no missing topic", items[5].Err)
	}
	_, err = admin.CreateTopic(t.Context(), 1, 1, nil, later)
	kafkatest.Must(t, err)
	exist(later)
	retried := items[5:7]
	sink.Deliver(t.Context(), retried)
	for _, it := range retried {
		if it.Err != nil {
			t.Errorf("%s after its topic was made: %v", it.Message.RecordKey, it.Err)
		}
	}
	got := map[string]string{}
	kafkatest.Must(t, ReadAll(t.Context(), kafkatest.Quick(brokers), []string{orders, small, secret, later}, func(r *kgo.Record) bool {
		got[string(r.Key)] += strings.TrimPrefix(r.Topic, run) + " "
		return true
	}))
	want := map[string]string{"a": "orders ", "b": "small ", "e": "later ", "behind e": "orders ", "f": "orders "}
	if !maps.Equal(got, want) {
		t.Errorf("written: %v, want %v", got, want)
	}
}

func TestATopicOrARouteIsRequired(t *testing.T) {
	t.Parallel()
	route, err := pipeline.NewRoute("source", "a")
	kafkatest.Must(t, err)
	for _, o := range []SinkOptions{{}, {Topic: "a", Route: route}} {
		o.Client = []kgo.Opt{kgo.SeedBrokers("127.0.0.1:1")}
		if s, err := OpenSink(t.Context(), &o); s != nil || err == nil || !strings.Contains(err.Error(), "one of Topic and Route") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
