package logstore

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// BenchmarkBeyondMemory keeps keys of which a tenth fits into MaxIndexBytes. Set
// SEMEL_BENCH_KEYS to their number in millions, 10 by default. It reports the rates of new
// keys (the first and the last million), and of known keys in random and in the first order.
// It also reports the memory and disk of a key, and the time of an open.
func BenchmarkBeyondMemory(b *testing.B) {
	const million = 1_000_000
	millions := 10
	if text := os.Getenv("SEMEL_BENCH_KEYS"); text != "" {
		var err error
		if millions, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	n := millions * million
	opts := &Options{MaxIndexBytes: int64(n) * 12 / 10}
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		s := open(b, dir, opts)
		b.StartTimer()
		rate := func(name string, from, keys int, next func(i int) int, want semel.Decision) {
			start := time.Now()
			for at := 0; at < keys; at += million {
				claimMillion(b, s, func(i int) int { return next(from + at + i) }, want)
			}
			b.ReportMetric(float64(keys)/time.Since(start).Seconds(), name)
		}
		inOrder := func(i int) int { return i }
		random := rand.New(rand.NewPCG(1, 2))
		rate("new-first/s", 0, million, inOrder, semel.Fresh)
		if millions > 2 {
			rate("new-middle/s", million, n-2*million, inOrder, semel.Fresh)
		}
		rate("new-last/s", n-million, million, inOrder, semel.Fresh)
		rate("known-random/s", 0, million, func(int) int { return random.IntN(n) }, semel.Duplicate)
		rate("known-in-order/s", 0, million, inOrder, semel.Duplicate)
		b.StopTimer()
		c, err := s.Count(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(c.DiskBytes)/float64(n), "diskB/key")
		b.ReportMetric(float64(len(s.finder.runs.list)), "runs")
		b.ReportMetric(8*float64(s.finder.runs.memory)/float64(s.finder.runs.count), "bits/run-key")
		var memory runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&memory)
		b.ReportMetric(float64(memory.HeapAlloc)/float64(n), "heapB/key")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		s = open(b, dir, opts)
		b.ReportMetric(time.Since(start).Seconds(), "open-s")
		s.Close()
		os.RemoveAll(dir)
		b.StartTimer()
	}
	b.ReportMetric(0, "ns/op")
}

// claimMillion claims a million keys in transactions.
func claimMillion(b *testing.B, s *Store, next func(i int) int, want semel.Decision) {
	b.Helper()
	const million, batch, perTx = 1_000_000, 2000, 100
	d := s.Digester("s")
	keys, out := make([]semel.Digest, batch), make([]semel.Decision, batch)
	for i := 0; i < million; {
		tx, err := s.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for range perTx {
			for k := range keys {
				keys[k] = d.String(id(uint64(next(i + k))))
			}
			if err := tx.Claim(TxKeys{Digests: keys}, semel.Forever, out); err != nil {
				b.Fatal(err)
			}
			for _, got := range out {
				if got != want {
					b.Fatalf("%s, want %s", got, want)
				}
			}
			i += batch
		}
		if err := tx.Commit(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
