package kafkatxn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// BenchmarkTransaction decides records of four partitions, in transactions of a session without
// brokers. One operation is one record. What the client does with records is not part of it.
func BenchmarkTransaction(b *testing.B) {
	rule := func(text string) *key.Rule {
		r, err := key.ParseRule(text)
		if err != nil {
			b.Fatal(err)
		}
		return r
	}
	aggregate := func(w stream.Window, value string) func(*TransactorOptions) {
		values, err := stream.Values(stream.Value{Name: "n", Of: value})
		if err != nil {
			b.Fatal(err)
		}
		return func(o *TransactorOptions) {
			o.Aggregate = &stream.Aggregate{By: rule("record-key"), Over: w, Func: values, Grace: 30 * time.Second, Idle: time.Hour}
		}
	}
	for name, change := range map[string]func(*TransactorOptions){
		"dedup": func(*TransactorOptions) {},
		"filter": func(o *TransactorOptions) {
			o.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) { return d.Body, true, nil }
		},
		"tumbling": aggregate(stream.Tumbling(time.Minute), "count"),
		"hopping":  aggregate(stream.Hopping(time.Hour, time.Minute), "sum .cents"),
		"session":  aggregate(stream.Session(30*time.Second, 24*time.Hour), "count"),
		"last": func(o *TransactorOptions) {
			o.Keep = &stream.Keep{Last: stream.Tumbling(time.Minute), Grace: 30 * time.Second, Idle: time.Hour}
		},
	} {
		b.Run(name, func(b *testing.B) {
			o := &TransactorOptions{
				Group: "g", Inputs: []string{"in"}, Output: Output{Topic: "out"}, Parked: "parked", Window: time.Hour,
				Key: KeyOptions{Rule: rule(".event_id"), Scope: "s", OnMissing: pipeline.MissingStop},
			}
			change(o)
			benchmarkTransactions(b, o)
		})
	}
}

// benchmarkTransactions gives a session records of 200 bytes of 100,000 groups. Each has an id of
// its own. A minute has 400,000 of them, and they are up to 10 s late.
func benchmarkTransactions(b *testing.B, o *TransactorOptions) {
	const partitions, perRead, perTransaction, groups = 4, 2048, 16384, 100_000
	start := time.UnixMilli(1_800_000_000_000)
	trial, err := NewTrial(o, start, partitions)
	if err != nil {
		b.Fatal(err)
	}
	s, offset := trial.s, int64(0)
	s.t.limits.Records = perTransaction
	s.work.env.Produce = func(r *kgo.Record) { r.Offset, offset = offset, offset+1 }
	var records [partitions][perRead]kgo.Record
	var read [partitions][]*kgo.Record
	for p := range partitions {
		trial.assign(cluster.Partition{Topic: "in", Number: int32(p)})
		for i := range perRead {
			read[p] = append(read[p], &records[p][i])
		}
	}
	random, ctx, sent := rand.New(rand.NewPCG(1, 2)), b.Context(), 0
	bytes := make([]byte, 0, partitions*perRead*256)
	// fill makes the records of a read.
	fill := func() kgo.Fetches {
		bytes = bytes[:0]
		text := func(of func([]byte) []byte) []byte {
			from := len(bytes)
			bytes = of(bytes)
			return bytes[from:len(bytes):len(bytes)]
		}
		var topic kgo.FetchTopic
		topic.Topic = "in"
		for p := range partitions {
			for i := range perRead {
				of := start.Add(time.Duration(sent)*150*time.Microsecond - time.Duration(random.IntN(10_000))*time.Millisecond)
				records[p][i] = kgo.Record{
					Topic: "in", Partition: int32(p), Offset: int64(sent / partitions), Timestamp: time.UnixMilli(of.UnixMilli()),
					Key: text(func(dst []byte) []byte { return fmt.Appendf(dst, "customer-%07d", random.IntN(groups/partitions)) }),
					Value: text(func(dst []byte) []byte {
						dst = strconv.AppendInt(append(dst, `{"event_id":"01979e5c-5d3c-7000-8000-`...), 100_000_000_000+int64(sent), 10)
						return append(dst, `","cents":4711,"type":"order.created","note":"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklm"}`...)
					}),
				}
				sent++
			}
			id := cluster.Partition{Topic: "in", Number: int32(p)}
			trial.read[id] = records[p][perRead-1].Offset + 1
			topic.Partitions = append(topic.Partitions, kgo.FetchPartition{Partition: int32(p), Records: read[p]})
		}
		trial.now = start.Add(time.Duration(sent) * 150 * time.Microsecond)
		return kgo.Fetches{{Topics: []kgo.FetchTopic{topic}}}
	}
	b.ReportAllocs()
	for n := 0; n < b.N; {
		// A transaction of several reads, as transact has it.
		b.StopTimer()
		w := &s.work
		w.reset()
		b.StartTimer()
		for !w.full() {
			b.StopTimer()
			fetches := fill()
			b.StartTimer()
			if err := w.process(ctx, ctx, fetches); err != nil {
				b.Fatal(err)
			}
			n += partitions * perRead
		}
		if err := s.finish(ctx, ctx); err != nil {
			b.Fatal(err)
		}
	}
}
