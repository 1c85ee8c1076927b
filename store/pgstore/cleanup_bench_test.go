package pgstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// BenchmarkCleanup claims new ids in batches, in every form of clean-up, and
// reports keys a second and the 99th percentile of a call: with and without a
// clean-up that goes on all the time. Windows are over soon, so that all of it
// is to be forgotten. Each round of b.N is one call of each of 4 workers.
func BenchmarkCleanup(b *testing.B) {
	for _, form := range []Cleanup{CleanupDelete, CleanupMessageTime} {
		for _, cleaning := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/cleaning=%t", form, cleaning), func(b *testing.B) { benchmarkCleanup(b, form, cleaning) })
		}
	}
}

func benchmarkCleanup(b *testing.B, form Cleanup, cleaning bool) {
	const workers, batch, window = 4, 100, 200 * time.Millisecond
	address := shared.Database(b)
	migrated(b, address, &MigrateOptions{Cleanup: form})
	now := time.Now().Truncate(time.Hour)
	opts := &Options{MessageTime: func(semel.Key) (time.Time, bool) { return now, true }}
	s, err := New(b.Context(), pool(b, address), opts)
	if err != nil {
		b.Fatal(err)
	}
	if form == CleanupDelete {
		// It leaves rows for a minute, longer than this takes.
		_, err := s.pool.Exec(b.Context(), `INSERT INTO semel_keys (key, until, seen)
			SELECT gen_random_uuid(), clock_timestamp() - interval '2 minutes', clock_timestamp() - interval '3 minutes' FROM generate_series(1, 200000)`)
		if err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	var group, cleaner sync.WaitGroup
	var gone atomic.Int64
	if cleaning {
		cleaner.Go(func() {
			for ctx.Err() == nil {
				worked := time.Now()
				n, err := s.purge(ctx, func(ctx context.Context, _ int64) error { // as Maintain does
					err := sleep(ctx, rest*time.Since(worked))
					worked = time.Now()
					return err
				})
				if gone.Add(n); err != nil && ctx.Err() == nil {
					b.Error(err)
				}
				_ = sleep(ctx, 10*time.Millisecond) // until ctx ends at the most
			}
		})
	}
	took := make([][]time.Duration, workers)
	b.ResetTimer()
	for w := range workers {
		group.Go(func() {
			reqs := make([]semel.ClaimRequest, batch)
			answers := make([]semel.ClaimAnswer, batch)
			for range b.N {
				for i := range reqs {
					reqs[i] = semel.ClaimRequest{Key: semel.Key{ID: rand.Text()}, Window: window, Done: true}
				}
				began := time.Now()
				if err := s.Claim(ctx, reqs, answers); err != nil {
					b.Error(err)
				}
				took[w] = append(took[w], time.Since(began))
			}
		})
	}
	group.Wait()
	b.StopTimer()
	cancel()
	cleaner.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(b.N*workers*batch)/b.Elapsed().Seconds(), "keys/s")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1e3, "ms-p99")
	b.ReportMetric(float64(gone.Load()), "forgotten")
}
