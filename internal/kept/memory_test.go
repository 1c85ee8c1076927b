package kept

import (
	"fmt"
	"math"
	"runtime"
	"testing"
)

// BenchmarkMemoryOfAKey reports the memory of what is held of a key with 16 bytes, after it
// has changed a number of times: a version of 9 bytes, or a record of 200 bytes.
func BenchmarkMemoryOfAKey(b *testing.B) {
	const keys, batch = 500_000, 5_000
	for name, rule := range map[string]Rule{"newest": {Window: math.MaxInt64}, "last": {Size: 1 << 40, MaxAhead: math.MaxInt32}} {
		for _, changes := range []int{1, 5} {
			b.Run(fmt.Sprint(name, ", changes ", changes), func(b *testing.B) {
				for b.Loop() {
					before := inUse()
					s := New(rule)
					at := int64(0)
					for n := range changes {
						for from := 0; from < keys; from += batch {
							for i := range batch {
								id := fmt.Sprintf("%016d", from+i)
								if name == "newest" {
									s.SetVersion(id, []byte{number, 0, 0, 0, 0, 0, 0, 0, byte(n)}, 1000)
								} else {
									s.Add(id, 1000, at, make([]byte, 200))
								}
							}
							records := s.Changes(ID{1}, ID{2}, 1<<20)
							s.Commit(at)
							for _, value := range records {
								s.Stored(at, len(value))
								at++
							}
							s.Cut()
						}
					}
					b.ReportMetric(float64(inUse()-before)/keys, "B/key")
					b.ReportMetric(float64(s.Bytes())/keys, "state-B/key")
					b.ReportMetric(float64(s.log.Size())/keys, "topic-B/key")
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
