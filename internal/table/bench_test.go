package table_test

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

// benchDigest returns the i-th of a sequence of digests that look uniform.
func benchDigest(i uint64) semel.Digest {
	var d semel.Digest
	hi, lo := bits.Mul64(i+1, 0x9e3779b97f4a7c15)
	x := (lo ^ lo>>32) * 0xd6e8feb86659fd93
	x ^= x >> 32
	y := (x + hi) * 0xd6e8feb86659fd93
	binary.BigEndian.PutUint64(d[:8], x)
	binary.BigEndian.PutUint64(d[8:], y^y>>29)
	return d
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkAdd fills a table. It reports new and present digests a second, and
// the heap bytes for each digest. Each of its b.N rounds is one table.
func BenchmarkAdd(b *testing.B) {
	for _, c := range []struct {
		name   string
		n      uint64
		batch  int
		expect int64
	}{
		{"1M", 1e6, 1, 0},
		{"1M/expected", 1e6, 1, 1e6},
		{"1M/batch64", 1e6, 64, 0},
		{"10M/batch64", 1e7, 64, 0},
		{"10M/batch64/expected", 1e7, 64, 1e7},
		{"10M/batch1024", 1e7, 1024, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				before := heap()
				t := table.New[struct{}](c.expect)
				start := time.Now()
				addAll(b, t, c.n, c.batch)
				fresh := time.Since(start)
				bytes := heap() - before
				start = time.Now()
				addAll(b, t, c.n, c.batch)
				b.ReportMetric(float64(c.n)/fresh.Seconds()/1e6, "Mfresh/s")
				b.ReportMetric(float64(c.n)/time.Since(start).Seconds()/1e6, "Mpresent/s")
				b.ReportMetric(float64(bytes)/float64(c.n), "B/digest")
				runtime.KeepAlive(t)
			}
		})
	}
}

func addAll(b *testing.B, t *table.Table[struct{}], n uint64, batch int) {
	if batch == 1 {
		for i := range n {
			d := benchDigest(i)
			t.Add(&d, struct{}{}, 0, table.Forever)
		}
		return
	}
	digests := make([]semel.Digest, batch)
	outcomes := make([]table.Outcome, batch)
	for i := uint64(0); i < n; i += uint64(batch) {
		for j := range digests {
			digests[j] = benchDigest(i + uint64(j))
		}
		t.AddBatch(digests, nil, 0, table.Forever, outcomes)
	}
}

// BenchmarkMapAdd is the comparison for BenchmarkAdd.
func BenchmarkMapAdd(b *testing.B) {
	for range b.N {
		const n = 1e7
		m := map[semel.Digest]uint32{}
		var mu sync.Mutex
		start := time.Now()
		for i := range uint64(n) {
			d := benchDigest(i)
			mu.Lock()
			if _, ok := m[d]; !ok {
				m[d] = uint32(i)
			}
			mu.Unlock()
		}
		b.ReportMetric(n/time.Since(start).Seconds()/1e6, "Mfresh/s")
	}
}

// BenchmarkWorstAdd reports the longest single insertion while four million
// digests are added.
func BenchmarkWorstAdd(b *testing.B) {
	for range b.N {
		t := table.New[struct{}](0)
		var worst time.Duration
		for i := range uint64(4e6) {
			d := benchDigest(i)
			start := time.Now()
			t.Add(&d, struct{}{}, 0, table.Forever)
			worst = max(worst, time.Since(start))
		}
		b.ReportMetric(worst.Seconds()*1e3, "ms-worst")
	}
}
