package kafka

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestStateIsRestoredFromATruncatedChangelog lets a window pass by event time, restores from the
// rest of the changelog, and writes the messages inside the window again.
func TestStateIsRestoredFromATruncatedChangelog(t *testing.T) {
	addr, name := servers.Kafka(t), servicestest.Topic()
	group, in, out := name+"-"+group, name+"-in", name+"-out"
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(in), kgo.UnknownTopicRetries(-1))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopics(t.Context(), 1, 1, nil, in, out)
	must(t, err)
	reader := readTopic(t, addr, out)
	defer reader.close()
	rule, err := key.ParseRule("record-key")
	must(t, err)
	begin := func() (stop func()) {
		tr, err := kafkatxn.NewTransactor(&kafkatxn.TransactorOptions{
			Client: []kgo.Opt{kgo.SeedBrokers(addr)}, Group: group, Inputs: []string{in}, Output: kafkatxn.Output{Topic: out}, Key: kafkatxn.KeyOptions{Rule: rule, OnMissing: pipeline.MissingStop},
			EventTime: &kafkatxn.EventTime{OnLate: pipeline.Stop}, Window: time.Minute, Member: kafkatxn.Member{Sessions: 1}, Limits: kafkatxn.Limits{Interval: 20 * time.Millisecond},
		})
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- tr.Run(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	}
	origin := time.Now().Add(-time.Hour)
	write := func(n, at int) {
		text := []byte(strconv.Itoa(n))
		must(t, client.ProduceSync(t.Context(), &kgo.Record{Key: text, Value: text, Timestamp: origin.Add(time.Duration(at) * time.Second)}).FirstErr())
	}
	stop := begin()
	for n := range 200 {
		write(n, n)
		if n%4 == 3 && !within(settleFor, func() bool { return reader.read() > n }) {
			t.Fatal("it was not moved")
		}
	}
	start := int64(0)
	if !within(settleFor, func() bool {
		list, err := adm.ListStartOffsets(t.Context(), group+"-keys")
		o, _ := list.Lookup(group+"-keys", 0)
		start = o.Offset
		return err == nil && start > 0
	}) {
		t.Error("the changelog was not cut off")
	}
	stop()
	defer begin()()
	for n := 141; n < 210; n++ { // in the window, as of the newest
		write(n, 199)
	}
	if !within(settleFor, func() bool { return isSettled(t.Context(), adm, group, in) }) {
		t.Error("not all was read")
	}
	within(settleFor, func() bool { return reader.read() >= 210 })
	within(time.Second, func() bool { return reader.read() > 210 }) // what should not be there may still come
	compare(t, "a reader", reader, 210)
	t.Logf("the changelog begins at %d", start)
}
