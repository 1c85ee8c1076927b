package dedup

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/table"
)

// keySet remembers keys. Only the committer uses it, from one goroutine at a time.
type keySet interface {
	// decide answers each digest, in order. It answers Fresh and remembers the
	// digest, or Duplicate, or Mismatch if the digest is known with another
	// print.
	decide(l lines, out []semel.Decision) error
}

// lines are lines with a key, in order.
type lines struct {
	digests []semel.Digest
	// prints is nil if content does not matter. A print of 0 matches all prints.
	prints []uint64
	// times are the times in the lines, or nil without --time.
	times []int64
}

// newMemory returns a keySet for one run. It has room for prints only if prints is
// set. It uses the forecast unless it forgets keys.
func newMemory(window time.Duration, prints bool, f forecast) (keySet, error) {
	switch {
	case window != semel.Forever && prints:
		same := func(p uint64) uint64 { return p }
		return newWindowed(window, answers[uint64]{value: same, print: same})
	case window != semel.Forever:
		return newWindowed(window, answers[struct{}]{})
	case prints:
		return &memory[[8]byte]{forecast: f, answers: answers[[8]byte]{value: toBytes, print: fromBytes}}, nil
	}
	return &memory[struct{}]{forecast: f}, nil
}

// memory is a keySet that remembers all keys.
type memory[V table.CompactValue] struct {
	table    table.Compact[V]
	forecast forecast
	answers  answers[V]
}

func (m *memory[V]) decide(l lines, out []semel.Decision) error {
	if keys, ok := m.forecast.due(); ok {
		m.table.Expect(keys)
	}
	m.answers.ask(len(l.digests), l.prints)
	m.table.AddBatch(l.digests, m.answers.values, m.answers.outcomes)
	m.forecast.keys += m.answers.tell(l.prints, out)
	return nil
}

// windowed is a keySet that forgets keys when their window has ended.
type windowed[V table.Value] struct {
	table   *table.Table[V]
	scale   table.Scale
	window  time.Duration
	clock   *clock.Clock
	answers answers[V]
}

func newWindowed[V table.Value](window time.Duration, a answers[V]) (*windowed[V], error) {
	w := &windowed[V]{table: table.New[V](0), window: window, clock: clock.New(nil, time.Time{}), answers: a}
	var err error
	if w.scale, err = table.NewScale(w.clock.Nanos(), window); err != nil {
		return nil, fmt.Errorf("dedup: keys in memory: %w", err)
	}
	return w, nil
}

func (w *windowed[V]) decide(l lines, out []semel.Decision) error {
	w.answers.ask(len(l.digests), l.prints)
	now := w.clock.Nanos()
	w.table.AddBatch(l.digests, w.answers.values, w.scale.Tick(now), w.scale.Expiry(now, w.window), w.answers.outcomes)
	w.answers.tell(l.prints, out)
	return nil
}

// answers converts the questions of a batch to a table, and the answers of the table. value
// and print convert between prints and values. They are nil for a table without values.
type answers[V any] struct {
	value    func(uint64) V
	print    func(V) uint64
	values   []V
	outcomes []table.Outcome
}

// ask makes the values of a batch.
func (a *answers[V]) ask(batch int, prints []uint64) {
	a.outcomes = resized(a.outcomes, batch)
	if a.value == nil {
		return
	}
	a.values = resized(a.values, batch)
	for i, p := range prints {
		a.values[i] = a.value(p)
	}
}

// tell makes decisions of outcomes, and returns how many are Fresh.
func (a *answers[V]) tell(prints []uint64, out []semel.Decision) (fresh int64) {
	for i, outcome := range a.outcomes {
		switch {
		case outcome == table.Added:
			out[i] = semel.Fresh
			fresh++
		case a.print != nil && differ(a.print(a.values[i]), prints[i]):
			out[i] = semel.Mismatch
		default:
			out[i] = semel.Duplicate
		}
	}
	return fresh
}

// forecast foresees the number of keys of a run: the bytes to come have as many as
// those that were read. A table that knows this grows faster, and copies its keys less
// often. If the new keys come first, it stops growing when they do. The zero forecast
// foresees nothing.
type forecast struct {
	keys int64 // that were added
	// done and total are the bytes that were read, and all of them. next is how many
	// of them are read at the next forecast, or 0.
	total, next int64
	done        *atomic.Int64
}

// forecasts is how many times a run foresees the number of its keys.
const forecasts = 64

// newForecast returns a forecast for a number of bytes, which is 0 if it is not known.
func newForecast(total int64, done *atomic.Int64) forecast {
	return forecast{total: total, next: total / forecasts, done: done}
}

// due returns how many keys there will be in the end, if it is time for a forecast.
func (f *forecast) due() (keys int64, ok bool) {
	if f.next == 0 {
		return 0, false
	}
	done := f.done.Load()
	if done < f.next {
		return 0, false
	}
	f.next = done + f.total/forecasts
	return int64(float64(f.keys) * max(1, float64(f.total)/float64(done))), true
}

func toBytes(n uint64) (b [8]byte) {
	binary.LittleEndian.PutUint64(b[:], n)
	return b
}

func fromBytes(b [8]byte) uint64 { return binary.LittleEndian.Uint64(b[:]) }

// differ compares prints. A print of 0 equals all prints.
func differ(a, b uint64) bool { return a != b && a != 0 && b != 0 }

// resized returns a slice of n elements with undefined content. It uses the
// memory of s if that is large enough.
func resized[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n, n+n/2)
	}
	return s[:n]
}
