package keep

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state/statetest"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/vfs"
)

// BenchmarkMemoryOfAKey reports the memory that a key takes with 16 bytes, after it
// has changed a number of times: a version of 9 bytes, or a record of 200 bytes.
func BenchmarkMemoryOfAKey(b *testing.B) {
	const keys, batch = 500_000, 5_000
	for name, rule := range map[string]Rule{"newest": {Window: math.MaxInt64}, "last": {Size: 1 << 40, MaxAhead: math.MaxInt32}} {
		for _, times := range []int{1, 5} {
			b.Run(fmt.Sprint(name, ", changes ", times), func(b *testing.B) {
				for b.Loop() {
					before := inUse()
					log := statetest.New(b, statetest.Options[*State]{New: func(*state.Disk) *State { return New(rule) }})
					s := log.State
					for n := range times {
						for from := 0; from < keys; from += batch {
							for i := range batch {
								id := fmt.Sprintf("%016d", from+i)
								if name == "newest" {
									s.SetVersion(id, []byte{number, 0, 0, 0, 0, 0, 0, 0, byte(n)}, 1000)
								} else {
									s.Add(id, 1000, int64(from+i), make([]byte, 200))
								}
							}
							log.Write(1 << 20)
							log.Commit()
						}
					}
					b.ReportMetric(float64(s.Bytes())/keys, "state-B/key")
					b.ReportMetric(float64(log.Bytes())/keys, "topic-B/key")
					log.Records = nil
					b.ReportMetric(float64(inUse()-before)/keys, "B/key")
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

// TestHeldRecordsMayBeLargerThanMemory holds records on disk that have ten times the bytes of
// the heap, and takes all of them back.
func TestHeldRecordsMayBeLargerThanMemory(t *testing.T) {
	const records, size, batch = 2_000, 20_000, 20
	log := statetest.New(t, statetest.Options[*State]{Files: vfs.OS{}, Discard: true, New: func(d *state.Disk) *State {
		s := New(Rule{Size: 1 << 40, MaxAhead: math.MaxInt32})
		s.SetCopy(d)
		return s
	}})
	s := log.State
	value := func(n int) []byte { return bytes.Repeat([]byte{byte(n), byte(n >> 8)}, size/2) }
	commit := func() {
		log.Write(1 << 20)
		log.Commit()
	}
	before, most := int64(inUse()), int64(0)
	measure := func(n int) {
		if n%(10*batch) == 0 {
			most = max(most, int64(inUse())-before)
		}
	}
	for from := 0; from < records; from += batch {
		for n := from; n < from+batch; n++ {
			s.Add(fmt.Sprintf("%08d", n), 1000, int64(n), value(n))
		}
		commit()
		measure(from)
	}
	s.See(1<<40, 1<<40)
	got := 0
	for s.Due() {
		_, err := s.Emit(batch, func(id string, _ int64, v []byte) error {
			if want := fmt.Sprintf("%08d", got); id != want || !bytes.Equal(v, value(got)) {
				t.Fatalf("%s takes effect with another value, want %s", id, want)
			}
			got++
			return nil
		})
		kafkatest.Must(t, err)
		commit()
		measure(got)
	}
	if got != records || most > records*size/10 {
		t.Errorf("%d records took effect, want %d; %d bytes of memory for %d bytes", got, records, most, records*size)
	}
	t.Logf("at most %d bytes of memory for %d bytes", most, records*size)
}
