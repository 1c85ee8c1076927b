package kept

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/localcopy"
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
					s := New(rule)
					at := int64(0)
					for n := range times {
						for from := 0; from < keys; from += batch {
							for i := range batch {
								id := fmt.Sprintf("%016d", from+i)
								if name == "newest" {
									s.SetVersion(id, []byte{number, 0, 0, 0, 0, 0, 0, 0, byte(n)}, 1000)
								} else {
									s.Add(id, 1000, at, make([]byte, 200))
								}
							}
							records, err := s.Changes(changes.ID{1}, changes.ID{2}, 1<<20)
							if err != nil {
								b.Fatal(err)
							}
							s.Commit(at, nil)
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

// TestHeldRecordsMayBeLargerThanMemory holds records on disk that have ten times the bytes of
// the heap, and takes all of them back.
func TestHeldRecordsMayBeLargerThanMemory(t *testing.T) {
	const records, size, batch = 2_000, 20_000, 20
	l := localcopy.New(vfs.OS{}, t.TempDir(), ".state", localcopy.ID{})
	if err := l.Open(nil, nil); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := New(Rule{Size: 1 << 40, MaxAhead: math.MaxInt32})
	s.SetCopy(l)
	value := func(n int) []byte { return bytes.Repeat([]byte{byte(n), byte(n >> 8)}, size/2) }
	at := int64(0)
	commit := func() {
		values, err := s.Changes(changes.ID{1}, changes.ID{2}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var places []localcopy.Place
		for i, value := range values {
			places = append(places, l.Add(value, at+int64(i), at+int64(i)+1))
		}
		s.Commit(at, places)
		for _, value := range values {
			s.Stored(at, len(value))
			at++
		}
		cut, _ := s.Cut()
		if err := errors.Join(l.Write(), l.Tidy(cut-1, 0)); err != nil {
			t.Fatal(err)
		}
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
		if _, err := s.Emit(batch, func(id string, _ int64, v []byte) error {
			if want := fmt.Sprintf("%08d", got); id != want || !bytes.Equal(v, value(got)) {
				t.Fatalf("%s takes effect with another value, want %s", id, want)
			}
			got++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		commit()
		measure(got)
	}
	if got != records || most > records*size/10 {
		t.Errorf("%d records took effect, want %d; %d bytes of memory for %d bytes", got, records, most, records*size)
	}
	t.Logf("at most %d bytes of memory for %d bytes", most, records*size)
}
