package kafka

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// BenchmarkSource reads records of 200 bytes from four partitions of a real
// broker through a runner whose sink does nothing.
func BenchmarkSource(b *testing.B) {
	server := servicestest.StartKafka(b, nil)
	client, err := kgo.NewClient(append(kafkatest.Quick(server.Addr()), kgo.UnknownTopicRetries(-1), kgo.MaxBufferedRecords(100_000))...)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(b.Context(), 4, 1, nil, "in"); err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 180)
	for i := range b.N {
		client.Produce(b.Context(), &kgo.Record{Topic: "in", Key: fmt.Appendf(nil, "%020d", i), Value: body}, nil)
	}
	if err := client.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	source, err := OpenSource(b.Context(), &SourceOptions{Client: kafkatest.Quick(server.Addr()), Group: "g", Topics: []string{"in"}})
	if err != nil {
		b.Fatal(err)
	}
	rule, err := key.ParseRule("record-key")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	runner, err := pipeline.NewRunner(source, &counting{left: b.N, done: cancel}, &pipeline.Options{Key: rule, DeadLetters: noParker{}, Workers: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	b.ReportAllocs()
	if err := runner.Run(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// counting is a session for one worker that ends the run after so many items.
type counting struct {
	left int
	done func()
}

func (c *counting) Process(_ context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Decision = semel.Fresh
	}
	if c.left -= len(items); c.left <= 0 {
		c.done()
	}
}

func (c *counting) Abandon(context.Context, []*pipeline.Item)               {}
func (*counting) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }
func (c *counting) Close(context.Context) error                             { return nil }
func (c *counting) Traits() pipeline.SinkTraits                             { return pipeline.SinkTraits{Ordered: true} }
