package window

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/stream"
)

// BenchmarkMemoryOfAWindow reports the memory of an open window whose group key has 16
// bytes, after it has changed a number of times.
func BenchmarkMemoryOfAWindow(b *testing.B) {
	const groups, batch = 500_000, 5_000
	for _, over := range []stream.Window{stream.Tumbling(time.Hour), stream.Session(time.Hour, 24*time.Hour)} {
		for _, times := range []int{1, 5} {
			b.Run(fmt.Sprint(over, ", changes ", times), func(b *testing.B) {
				for b.Loop() {
					values, err := stream.Values(stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "s", Of: "sum .v"})
					if err != nil {
						b.Fatal(err)
					}
					agg := testAggregate(b, over, 0)
					agg.Func = values
					before := inUse()
					log := statetest.New(b, statetest.Options[*State]{New: func(*state.Disk) *State { return New(agg) }})
					s := log.State
					for range times {
						for from := 0; from < groups; from += batch {
							for i := range batch {
								if _, err := s.Add(&semel.Message{Body: []byte(`{"v":7}`)}, fmt.Appendf(nil, "%016d", from+i), 1000, 1000); err != nil {
									b.Fatal(err)
								}
							}
							log.Write(1 << 20)
							log.Commit()
						}
					}
					b.ReportMetric(float64(s.Bytes())/groups, "state-B/window")
					b.ReportMetric(float64(log.Bytes())/groups, "topic-B/window")
					log.Records = nil
					b.ReportMetric(float64(inUse()-before)/groups, "B/window")
					runtime.KeepAlive(log)
				}
			})
		}
	}
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
