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
	// keys are those that were added. done and total are the bytes that were read,
	// and all of them. next is how many of them are read at the next forecast, or 0.
	keys, total, next int64
	done              *atomic.Int64
	// value and print convert between prints and values. print is nil in a
	// table without values.
	value func(uint64) V
	print func(V) uint64
}

// newMemory returns a keySet in memory. It has room for prints only if prints
// is set. total are the bytes of the inputs, or 0 if they are not known, and done
// counts those that were read.
func newMemory(window time.Duration, prints bool, total int64, done *atomic.Int64) (keySet, error) {
	if prints {
		m, err := makeMemory[uint64](window, total, done)
		if err != nil {
			return nil, err
		}
		m.value = func(p uint64) uint64 { return p }
		m.print = m.value
		return m, nil
	}
	return makeMemory[struct{}](window, total, done)
}

func makeMemory[V table.Value](window time.Duration, total int64, done *atomic.Int64) (*memory[V], error) {
	m := &memory[V]{table: table.New[V](0), window: window, clock: clock.New(nil, time.Time{}), total: total, done: done}
	if window == semel.Forever {
		m.next = total / forecasts
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
	m.forecast()
	now := m.clock.Nanos()
	m.table.AddBatch(digests, values, m.scale.Tick(now), m.scale.Expiry(now, m.window), m.outcomes)
	for i, outcome := range m.outcomes {
		switch {
		case outcome == table.Added:
			out[i] = semel.Fresh
			m.keys++
		case m.print != nil && differ(m.print(values[i]), prints[i]):
			out[i] = semel.Mismatch
		default:
			out[i] = semel.Duplicate
		}
	}
	return nil
}

// forecasts is how many times a run foresees the number of its keys.
const forecasts = 64

// forecast foresees the number of keys: the bytes to come have as many as those that
// were read. A table grows faster then, and copies its keys less often. If the new keys
// come first, it stops growing when they do.
func (m *memory[V]) forecast() {
	done := m.done.Load()
	if m.next == 0 || done < m.next {
		return
	}
	m.next = done + m.total/forecasts
	// Some shards get more keys than others.
	m.table.Expect(int64(1.02 * float64(m.keys) * max(1, float64(m.total)/float64(done))))
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
