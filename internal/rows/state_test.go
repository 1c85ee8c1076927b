package rows

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// model finds rows by looking at all changes.
type model struct {
	history int64
	changes []Change
	seen    int64
}

func (m *model) find(key string, at, now int64) ([]byte, Found) {
	var row []byte
	newest, from := int64(-1), int64(-1)
	for _, c := range m.changes {
		if string(c.Key) != key {
			continue
		}
		newest = max(newest, c.At)
		switch {
		case m.history == 0:
			row = c.Row
		case c.At <= at && c.At >= from: // of equal times the last one counts
			row, from = c.Row, c.At
		}
	}
	deleted := m.history > 0 && newest >= 0 && newest <= at && row == nil
	if m.history > 0 && at < max(now, m.seen)-m.history && (newest < 0 || newest > at || deleted) {
		return nil, Unknown
	}
	if row == nil {
		return nil, Missing
	}
	return row, Row
}

// A deleted row may be forgotten before the history, and is then unknown instead of
// missing.
func agree(got, want Found, gotRow, wantRow []byte) bool {
	if want == Unknown && got == Missing {
		return true // the deletion itself is still known
	}
	return got == want && bytes.Equal(gotRow, wantRow)
}

func TestTableRowsMatchTheModel(t *testing.T) {
	t.Parallel()
	for _, history := range []int64{0, 20} {
		for seed := range uint64(50) {
			random := rand.New(rand.NewPCG(seed, uint64(history)))
			s, m := New(time.Duration(history)*time.Millisecond), &model{history: history}
			if seed%2 > 0 { // several keys have one hash
				s.hash = func(key []byte) uint64 { return uint64(key[1] % 2) }
			}
			for step := range 300 {
				c := Change{Key: fmt.Append(nil, "k", random.IntN(6)), At: int64(step) + int64(random.IntN(9)) - 4}
				if c.At = max(c.At, 0); random.IntN(4) > 0 {
					c.Row = fmt.Append(nil, "row ", step)
				}
				s.Apply(0, []Change{c})
				m.changes, m.seen = append(m.changes, c), max(m.seen, c.At)
				now := int64(step) + int64(random.IntN(5))
				for n := range 7 {
					key := fmt.Sprint("k", n)
					at := int64(step) - int64(random.IntN(40)) + 5
					row, found := s.Find(0, []byte(key), at, now)
					wantRow, want := m.find(key, at, now)
					if !agree(found, want, row, wantRow) {
						t.Fatalf("seed %d, history %d, step %d: %s at %d (now %d) is %q (%d), want %q (%d)", seed, history, step, key, at, now, row, found, wantRow, want)
					}
				}
			}
			live, size := 0, int64(0)
			for n := range 6 {
				if row, found := m.find(fmt.Sprint("k", n), 1<<40, 0); found == Row {
					live++
					size += int64(len(row) + 2)
				}
			}
			rows, bytes := s.Len()
			if rows != live || history == 0 && bytes != size || bytes < size {
				t.Errorf("seed %d, history %d: %d rows and %d bytes, want %d and at least %d", seed, history, rows, bytes, live, size)
			}
		}
	}
}

func TestTableDropsOldRowVersions(t *testing.T) {
	t.Parallel()
	s := New(100 * time.Millisecond)
	for at := range int64(10_000) {
		s.Apply(0, []Change{{Key: []byte("hot"), Row: fmt.Append(nil, at), At: at}, {Key: fmt.Append(nil, "gone", at), Row: []byte("x"), At: at}, {Key: fmt.Append(nil, "gone", at), At: at}})
	}
	p := s.parts[0]
	if n := len(p.first); n > 110 || p.size > 110 {
		t.Errorf("%d keys in %d places are kept, of which one has a row", n, p.size)
	}
	if n := len(p.entry(p.first[s.hash([]byte("hot"))]).former); n < 100 || n > 110 {
		t.Errorf("%d former rows are kept of 100 in the history", n)
	}
	if rows, _ := s.Len(); rows != 1 {
		t.Errorf("%d rows, want 1", rows)
	}
}

func TestRowsOfPartitionsAreSeparate(t *testing.T) {
	t.Parallel()
	s := New(0)
	s.Apply(1, []Change{{Key: []byte("a"), Row: []byte("1")}})
	if _, found := s.Find(0, []byte("a"), 0, 0); found != Missing {
		t.Error("partition 0 has the row of partition 1")
	}
	if where, ok := s.Where([]byte("a"), 0); !ok || where != 1 {
		t.Errorf("it is in %d (%v), want 1", where, ok)
	}
	if _, ok := s.Where([]byte("a"), 1); ok {
		t.Error("there is another partition with the row")
	}
}

// BenchmarkMemory measures the memory of a row beyond its key and its bytes.
func BenchmarkMemory(b *testing.B) {
	const n = 1_000_000
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := New(0)
		for i := range n {
			s.Apply(0, []Change{{Key: fmt.Appendf(nil, "key-%012d", i), Row: make([]byte, 112)}})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		_, size := s.Len()
		b.ReportMetric(float64(int64(after.HeapAlloc-before.HeapAlloc)-size)/n, "B/row")
		runtime.KeepAlive(s)
	}
}
