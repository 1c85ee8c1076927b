package dedup

import (
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
	// print. prints is nil if content does not matter, and a print of 0 matches
	// all prints.
	decide(digests []semel.Digest, prints []uint64, out []semel.Decision) error
}

// memory is a keySet for one run.
type memory[V table.Value] struct {
	table    *table.Table[V]
	scale    table.Scale
	window   time.Duration
	clock    *clock.Clock
	values   []V
	outcomes []table.Outcome
	forecast forecast
	// value and print convert between prints and values. print is nil in a
	// table without values.
	value func(uint64) V
	print func(V) uint64
}

// newMemory returns a keySet in memory. It has room for prints only if prints
// is set. It uses the forecast unless it forgets keys.
func newMemory(window time.Duration, prints bool, f forecast) (keySet, error) {
	if prints {
		m, err := makeMemory[uint64](window, f)
		if err != nil {
			return nil, err
		}
		m.value = func(p uint64) uint64 { return p }
		m.print = m.value
		return m, nil
	}
	return makeMemory[struct{}](window, f)
}

func makeMemory[V table.Value](window time.Duration, f forecast) (*memory[V], error) {
	m := &memory[V]{table: table.New[V](0), window: window, clock: clock.New(nil, time.Time{})}
	if window == semel.Forever {
		m.forecast = f
	}
	var err error
	if m.scale, err = table.NewScale(m.clock.Nanos(), window); err != nil {
		return nil, fmt.Errorf("dedup: keys in memory: %w", err)
	}
	return m, nil
}

func (m *memory[V]) decide(digests []semel.Digest, prints []uint64, out []semel.Decision) error {
	m.outcomes = resized(m.outcomes, len(digests))
	var values []V
	if m.print != nil {
		m.values = resized(m.values, len(digests))
		values = m.values
		for i, p := range prints {
			values[i] = m.value(p)
		}
	}
	if keys, ok := m.forecast.due(); ok {
		m.table.Expect(keys)
	}
	now := m.clock.Nanos()
	m.table.AddBatch(digests, values, m.scale.Tick(now), m.scale.Expiry(now, m.window), m.outcomes)
	for i, outcome := range m.outcomes {
		switch {
		case outcome == table.Added:
			out[i] = semel.Fresh
			m.forecast.keys++
		case m.print != nil && differ(m.print(values[i]), prints[i]):
			out[i] = semel.Mismatch
		default:
			out[i] = semel.Duplicate
		}
	}
	return nil
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
	// Some parts of a table get more keys than others.
	return int64(1.02 * float64(f.keys) * max(1, float64(f.total)/float64(done))), true
}

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
