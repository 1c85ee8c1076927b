package logstore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// id returns the n-th id in a sequence of random 16-byte ids.
func id(n uint64) string {
	var b [16]byte
	x := n*0x9e3779b97f4a7c15 + 1
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	binary.LittleEndian.PutUint64(b[:], x)
	binary.LittleEndian.PutUint64(b[8:], n)
	return string(b[:])
}

// BenchmarkRawSync measures the limit that the disk sets: one write and one
// sync of an allocated file.
func BenchmarkRawSync(b *testing.B) {
	f, err := vfs.OS{}.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := f.Allocate(defaultSegmentSize); err != nil {
		b.Fatal(err)
	}
	record := make([]byte, 52)
	for i := range record {
		record[i] = byte(i + 1)
	}
	off := int64(0)
	for b.Loop() {
		if _, err := f.WriteAt(record, off%defaultSegmentSize); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		off += 52
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
}

func BenchmarkClaimDoneCallers(b *testing.B) {
	for _, callers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := open(b, b.TempDir(), nil)
			var next atomic.Int64
			var all sync.WaitGroup
			b.ResetTimer()
			for range callers {
				all.Go(func() {
					var answer [1]semel.ClaimAnswer
					for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
						req := [1]semel.ClaimRequest{{Key: semel.Key{Scope: "s", ID: id(uint64(n))}, Done: true, Window: time.Hour}}
						if err := s.Claim(b.Context(), req[:], answer[:]); err != nil || answer[0].Decision != semel.Fresh {
							b.Error(answer[0].Decision, err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
		})
	}
}

func BenchmarkClaimDoneBatches(b *testing.B) {
	for _, size := range []int{64, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := open(b, b.TempDir(), nil)
			reqs := make([]semel.ClaimRequest, size)
			answers := make([]semel.ClaimAnswer, size)
			n := uint64(0)
			for b.Loop() {
				for i := range reqs {
					reqs[i] = semel.ClaimRequest{Key: semel.Key{Scope: "s", ID: id(n)}, Done: true, Window: time.Hour}
					n++
				}
				if err := s.Claim(b.Context(), reqs, answers); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "claims/s")
			c, _ := s.Count(b.Context())
			b.ReportMetric(float64(s.finder.index.bytes)/float64(c.Done), "indexB/id")
		})
	}
}

// BenchmarkTx claims 5M keys, 20 % of them duplicates. Half of the duplicates
// repeat one of the last 1,000 keys, the other half any earlier key.
func BenchmarkTx(b *testing.B) {
	const n = 5_000_000
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		s := open(b, dir, nil)
		d := s.Digester("s")
		rng := rand.New(rand.NewPCG(1, 2))
		keys := make([]semel.Digest, 0, n)
		prints := make([]uint64, 0, n)
		fresh := uint64(0)
		for range n {
			at := fresh
			switch r := rng.IntN(10); {
			case r == 0 && fresh > 1000:
				at = fresh - 1 - rng.Uint64N(1000)
			case r == 1 && fresh > 0:
				at = rng.Uint64N(fresh)
			default:
				fresh++
			}
			keys = append(keys, d.String(id(at)))
			prints = append(prints, at+1)
		}
		out := make([]semel.Decision, n)
		runtime.GC()
		b.StartTimer()
		const batch, perTx = 2048, 150
		i := 0
		var pending *Pending
		for i < n {
			tx, err := s.Begin(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			for range perTx {
				j := min(i+batch, n)
				if err := tx.Claim(TxKeys{Digests: keys[i:j], Prints: prints[i:j]}, semel.Forever, out[i:j]); err != nil {
					b.Fatal(err)
				}
				i = j
			}
			if pending != nil {
				if err := pending.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			pending = tx.Seal(nil)
		}
		if err := pending.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		got := uint64(0)
		for _, d := range out {
			if d == semel.Fresh {
				got++
			}
		}
		if got != fresh {
			b.Fatalf("%d fresh, want %d", got, fresh)
		}
		c, _ := s.Count(b.Context())
		b.ReportMetric(float64(s.finder.index.bytes)/float64(c.Done), "indexB/id")
		b.ReportMetric(float64(c.DiskBytes)/float64(c.Done), "diskB/id")
		s.Close()
		os.RemoveAll(dir)
		b.StartTimer()
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "claims/s")
}

func BenchmarkReopen(b *testing.B) {
	const n = 10_000_000
	dir := b.TempDir()
	s := open(b, dir, nil)
	d := s.Digester("s")
	const batch = 1 << 16
	keys := make([]semel.Digest, batch)
	out := make([]semel.Decision, batch)
	for i := 0; i < n; i += batch {
		tx, err := s.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for k := range keys {
			keys[k] = d.String(id(uint64(i + k)))
		}
		if err := tx.Claim(TxKeys{Digests: keys}, semel.Forever, out); err != nil {
			b.Fatal(err)
		}
		if err := tx.Commit(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(dir, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		c, _ := s.Count(b.Context())
		b.ReportMetric(float64(s.finder.index.bytes)/float64(c.Done), "indexB/id")
		b.ReportMetric(float64(c.DiskBytes)/float64(c.Done), "diskB/id")
		s.Close()
		b.StartTimer()
	}
}
