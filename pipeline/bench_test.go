package pipeline_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// givingSource returns prepared messages, a batch at a time.
type givingSource struct {
	partitions []*pipeline.Partition
	left       int
	next       int64
	ids        [][]byte
}

func (s *givingSource) Read(context.Context) ([]*pipeline.Item, error) {
	if s.left == 0 {
		return nil, io.EOF
	}
	n := min(s.left, 500)
	block := make([]pipeline.Item, n)
	items := make([]*pipeline.Item, n)
	for i := range block {
		it := &block[i]
		it.Partition = s.partitions[s.next%int64(len(s.partitions))]
		it.Message.Body, it.Message.Origin.Offset = s.ids[s.next], s.next
		it.Message.RecordKey = s.ids[s.next]
		s.next++
		items[i] = it
	}
	s.left -= n
	return items, nil
}
func (s *givingSource) Ack(context.Context, []*pipeline.Item) error { return nil }
func (s *givingSource) Return(context.Context, []*pipeline.Item, time.Duration) error {
	return nil
}
func (s *givingSource) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{} }
func (s *givingSource) Close(context.Context) error   { return nil }

type noSink struct{}

func (noSink) Deliver(context.Context, []*pipeline.Item) {}
func (noSink) Traits() pipeline.SinkTraits               { return pipeline.SinkTraits{Parallel: 2, Ordered: true} }
func (noSink) Close(context.Context) error               { return nil }

// BenchmarkTwoPhase measures a two-phase pipeline whose sink does nothing. Messages
// have 40 bytes, and a fifth of them are duplicates.
func BenchmarkTwoPhase(b *testing.B) {
	store, err := memstore.New(nil)
	if err != nil {
		b.Fatal(err)
	}
	source := &givingSource{left: b.N, ids: make([][]byte, b.N)}
	for i := range source.ids {
		n := i
		if i%5 == 4 {
			n = i / 2
		}
		source.ids[i] = fmt.Appendf(nil, `{"id":"message-%024d"}`, n)
	}
	for i := range 4 {
		source.partitions = append(source.partitions, pipeline.NewPartition(fmt.Sprint(i)))
	}
	session, err := pipeline.NewTwoPhase(store, noSink{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	r, err := pipeline.NewRunner(source, session, &pipeline.Options{Key: rule(b), OnMissing: pipeline.MissingDrop, OnLate: pipeline.Drop, OnMismatch: pipeline.Drop, Failure: pipeline.Failure{Then: pipeline.Drop}})
	if err != nil {
		b.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	if err := r.Run(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "allocs/msg")
}
