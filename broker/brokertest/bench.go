package brokertest

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// RunSourceBenchmarks measures how many messages a second a source reads and acknowledges.
// They are produced before. The runner does the same, with the effects in between.
func RunSourceBenchmarks(b *testing.B, h SourceHarness) {
	b.Helper()
	b.Run("read and acknowledge", func(b *testing.B) {
		place := h.New(b)
		partitions := max(place.Partitions, 1)
		for produced := 0; produced < b.N; {
			var list []Numbered
			for ; produced < b.N && len(list) < 500; produced++ {
				list = append(list, newNumbered(fmt.Sprint("k-", produced), produced%partitions, produced/partitions, 200))
			}
			if err := place.Produce(b.Context(), list); err != nil {
				b.Fatal(err)
			}
		}
		source, err := place.Open(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ResetTimer()
		for n := 0; n < b.N; {
			ctx, cancel := context.WithTimeout(b.Context(), cmp.Or(h.Patience, Patience))
			items, err := source.Read(ctx)
			if err == nil {
				err = source.Ack(ctx, items)
			}
			cancel()
			if err != nil {
				b.Fatalf("after %d of %d messages: %v", n, b.N, err)
			}
			n += len(items)
		}
		reportMessages(b)
		if err := source.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	})
}

// reportMessages stops the time, and reports its messages a second.
func reportMessages(b *testing.B) {
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// RunSinkBenchmarks measures how many messages a second a sink or a session delivers, with
// as many concurrent calls as its traits say: one message in each, and batches.
func RunSinkBenchmarks(b *testing.B, h SinkHarness) {
	b.Helper()
	for _, batch := range []int{1, 0} {
		name := "one message in a call"
		if batch == 0 {
			name = "batches"
		}
		b.Run(name, func(b *testing.B) {
			process, closing, traits := openTarget(b, h.New(b))
			size := batch
			if size == 0 {
				size = cmp.Or(traits.Batch, traits.MaxBatch, 500)
			}
			if traits.MaxBatch > 0 {
				size = min(size, traits.MaxBatch)
			}
			partition := pipeline.NewPartition("bench")
			calls := make(chan []*pipeline.Item)
			var delivering sync.WaitGroup
			for range cmp.Or(traits.Parallel, 1) {
				delivering.Go(func() {
					for items := range calls {
						process(b.Context(), items)
						for _, it := range items {
							if it.Err != nil {
								b.Errorf("deliver %s: %v", it.Call.Key.ID, it.Err)
							}
						}
					}
				})
			}
			b.ResetTimer()
			for n := 0; n < b.N; {
				var items []*pipeline.Item
				for ; n < b.N && len(items) < size; n++ {
					items = append(items, benchItem(partition, n))
				}
				calls <- items
			}
			close(calls)
			delivering.Wait()
			reportMessages(b)
			if err := closing(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func benchItem(partition *pipeline.Partition, n int) *pipeline.Item {
	m := newNumbered(fmt.Sprint("k-", n), 0, n, 200)
	it := &pipeline.Item{Partition: partition, Group: uint64(n + 1), Decision: semel.Fresh, Attempt: 1}
	it.Message = semel.Message{Body: m.Body, Origin: semel.Origin{Source: "bench", Identity: "bench", Offset: int64(n)}}
	it.Call = semel.Call{Key: semel.Key{Scope: "bench", ID: m.ID}, Window: time.Hour}
	return it
}

// openTarget opens a sink or a session.
func openTarget(b *testing.B, target SinkTarget) (process func(context.Context, []*pipeline.Item), closing func(context.Context) error, traits pipeline.SinkTraits) {
	b.Helper()
	if target.Session != nil {
		session, err := target.Session(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		return session.Process, session.Close, session.Traits()
	}
	sink, err := target.Sink(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return sink.Deliver, sink.Close, sink.Traits()
}
