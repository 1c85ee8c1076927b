package memstore_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"runtime"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

// ids makes the ids of a benchmark. The measured loop allocates nothing but the
// id itself.
type ids struct{ buf []byte }

// next36 returns the i-th id of a sequence in the form of a UUID.
func (ids *ids) next36(i uint64) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], (i+1)*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(raw[8:], (i+1)*0xd6e8feb86659fd93)
	ids.buf = append(ids.buf[:0], "00000000-0000-0000-0000-000000000000"...)
	hex.Encode(ids.buf[:8], raw[:4])
	hex.Encode(ids.buf[9:13], raw[4:6])
	hex.Encode(ids.buf[14:18], raw[6:8])
	hex.Encode(ids.buf[19:23], raw[8:10])
	hex.Encode(ids.buf[24:36], raw[10:])
	return string(ids.buf)
}

// next16 returns the i-th id of a sequence of 16 bytes each.
func (ids *ids) next16(i uint64) string {
	ids.buf = ids.buf[:0]
	ids.buf = binary.BigEndian.AppendUint64(ids.buf, (i+1)*0x9e3779b97f4a7c15)
	ids.buf = binary.BigEndian.AppendUint64(ids.buf, (i+1)*0xd6e8feb86659fd93)
	return string(ids.buf)
}

func newBenchStore(b *testing.B, opts *memstore.Options) *memstore.Store {
	b.Helper()
	s, err := memstore.New(opts)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkClaim claims new ids with Done, and claims them again, in batches.
// It reports both rates and the heap bytes for each id. One round of b.N is one
// store.
func BenchmarkClaim(b *testing.B) {
	for _, c := range []struct {
		name  string
		n     uint64
		batch int
		opts  *memstore.Options
		id    func(*ids, uint64) string
	}{
		{"1M/36B/single", 1e6, 1, nil, (*ids).next36},
		{"1M/36B/single/expected", 1e6, 1, &memstore.Options{Expect: 1e6}, (*ids).next36},
		{"1M/36B/batch64", 1e6, 64, nil, (*ids).next36},
		{"10M/16B/batch64", 1e7, 64, nil, (*ids).next16},
		{"10M/16B/batch64/expected", 1e7, 64, &memstore.Options{Expect: 1e7}, (*ids).next16},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				before := heap()
				var s semel.Store = newBenchStore(b, c.opts)
				fresh := claimAll(b, s, c.n, c.batch, c.id)
				bytes := heap() - before
				again := claimAll(b, s, c.n, c.batch, c.id)
				b.ReportMetric(float64(c.n)/fresh.Seconds()/1e6, "Mfresh/s")
				b.ReportMetric(float64(c.n)/again.Seconds()/1e6, "Mduplicate/s")
				b.ReportMetric(float64(bytes)/float64(c.n), "B/id")
				runtime.KeepAlive(s)
			}
		})
	}
}

func claimAll(b *testing.B, s semel.Store, n uint64, batch int, id func(*ids, uint64) string) time.Duration {
	b.Helper()
	ctx := context.Background()
	reqs := make([]semel.ClaimRequest, batch)
	for i := range reqs {
		reqs[i] = semel.ClaimRequest{Key: semel.Key{Scope: "orders"}, Window: time.Hour, Done: true}
	}
	answers := make([]semel.ClaimAnswer, batch)
	var source ids
	start := time.Now()
	for i := uint64(0); i < n; i += uint64(batch) {
		for j := range reqs {
			reqs[j].Key.ID = id(&source, i+uint64(j))
		}
		if err := s.Claim(ctx, reqs, answers); err != nil || answers[0].Err != nil {
			b.Fatal(err, answers[0].Err)
		}
	}
	return time.Since(start)
}

// BenchmarkClaimComplete claims and completes keys, one after the other.
func BenchmarkClaimComplete(b *testing.B) {
	for name, result := range map[string]semel.Result{
		"no result":   {},
		"100B result": {Kind: semel.Value, Data: make([]byte, 100)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := context.Background()
			var s semel.Store = newBenchStore(b, nil)
			claim := []semel.ClaimRequest{{
				Key: semel.Key{Scope: "orders"}, Owner: semel.Owner{Name: "bench"}, Lease: time.Minute, Window: time.Hour,
			}}
			complete := []semel.CompleteRequest{{Key: claim[0].Key, Result: result, Window: time.Hour}}
			answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
			var source ids
			for i := range uint64(b.N) {
				claim[0].Key.ID = source.next36(i)
				claim[0].Owner.Nonce = i
				if err := s.Claim(ctx, claim, answers); err != nil || answers[0].Decision != semel.Fresh {
					b.Fatal(err, answers[0])
				}
				complete[0].Key.ID, complete[0].Token = claim[0].Key.ID, answers[0].Claim.Token
				if err := s.Complete(ctx, complete, errs); err != nil || errs[0] != nil {
					b.Fatal(err, errs[0])
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mpairs/s")
		})
	}
}

// BenchmarkWorstClaim reports the longest single claim while four million keys
// are added, most of which expire during the run.
func BenchmarkWorstClaim(b *testing.B) {
	for range b.N {
		now := time.Now()
		s := newBenchStore(b, &memstore.Options{MaxWindow: time.Hour, Clock: func() time.Time { return now }})
		req := []semel.ClaimRequest{{Key: semel.Key{Scope: "orders"}, Window: time.Hour, Done: true}}
		answers := make([]semel.ClaimAnswer, 1)
		var source ids
		var worst time.Duration
		for i := range uint64(8e6) {
			// The last half of the keys is added while the first half expires.
			if i > 4e6 {
				now = now.Add(900 * time.Microsecond)
			}
			req[0].Key.ID = source.next16(i)
			start := time.Now()
			if err := s.Claim(context.Background(), req, answers); err != nil {
				b.Fatal(err)
			}
			worst = max(worst, time.Since(start))
		}
		b.ReportMetric(worst.Seconds()*1e3, "ms-worst")
	}
}
