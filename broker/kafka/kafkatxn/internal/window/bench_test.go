package window

import (
	"fmt"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/stream"
)

// BenchmarkStream counts the records of each minute and of 25,000 groups, in transactions of
// 4,000 records, 250,000 of which span five minutes. It reports the costs of one record, with
// its part of the results.
func BenchmarkStream(b *testing.B) {
	const groups, batch, perMinute = 25_000, 4000, 50_000
	values, err := stream.Values(stream.Value{Name: "n", Of: "count"})
	if err != nil {
		b.Fatal(err)
	}
	agg := testAggregate(b, stream.Tumbling(time.Minute), 30*time.Second)
	agg.Func = values
	log := statetest.New(b, statetest.Options[*State]{Discard: true, New: func(*state.Disk) *State { return New(agg) }})
	s, m, results := log.State, &semel.Message{}, 0
	names := make([][]byte, groups)
	for i := range names {
		names[i] = fmt.Appendf(nil, "%016x", i)
	}
	random := uint32(1)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n++ {
		when := int64(n) * 60_000 / perMinute
		random = random*1664525 + 1013904223
		s.See(when, when)
		if _, err := s.Add(m, names[random>>8%groups], when, when); err != nil {
			b.Fatal(err)
		}
		if n%batch > 0 {
			continue
		}
		if _, err := s.Emit(1<<20, func(*stream.Closed) error { results++; return nil }); err != nil {
			b.Fatal(err)
		}
		log.Write(1 << 20)
		log.Commit()
	}
	b.ReportMetric(float64(results)/float64(b.N), "results/op")
}
