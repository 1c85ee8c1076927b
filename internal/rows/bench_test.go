package rows

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// BenchmarkApply reads a table of 250,000 rows of 130 bytes, in fetches of 25,000.
func BenchmarkApply(b *testing.B) {
	const all, fetch = 250_000, 25_000
	keys := make([][]byte, all)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%016d", i)
	}
	row := bytes.Repeat([]byte("x"), 130)
	for name, history := range map[string]time.Duration{"newest": 0, "as of": time.Hour} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s := New(history)
				changes := make([]Change, 0, fetch)
				for _, key := range keys {
					changes = append(changes, Change{Key: key, Row: bytes.Clone(row), At: 1})
					if len(changes) == fetch {
						s.Apply(0, changes)
						changes = changes[:0]
					}
				}
			}
		})
	}
}
