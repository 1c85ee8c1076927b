package pgstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// benchServer is configured like a server for this load.
func benchServer(b *testing.B) string {
	b.Helper()
	return servicestest.StartPostgres(b, &services.PostgresOptions{Settings: map[string]string{
		"shared_buffers": "1GB", "max_wal_size": "8GB",
	}}).URL()
}

func benchStore(b *testing.B, conns int32, opts *Options) (*Store, *pgxpool.Pool) {
	b.Helper()
	config, err := pgxpool.ParseConfig(benchServer(b))
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = conns
	p, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Close)
	if _, err := Migrate(b.Context(), p, nil); err != nil {
		b.Fatal(err)
	}
	s, err := New(b.Context(), p, opts)
	if err != nil {
		b.Fatal(err)
	}
	return s, p
}

// uuidText returns 36 characters, like most ids.
func uuidText() string {
	var u [16]byte
	rand.Read(u[:])
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func requests(n int, done bool) []semel.ClaimRequest {
	reqs := make([]semel.ClaimRequest, n)
	for i := range reqs {
		reqs[i] = semel.ClaimRequest{
			Key: semel.Key{Scope: "bench", ID: uuidText()}, Owner: semel.Owner{Name: "bench", Nonce: uint64(i + 1)},
			Lease: time.Minute, Window: time.Hour, Done: done,
		}
	}
	return reqs
}

// perSecond reports items per second, with each items in one operation.
func perSecond(b *testing.B, each int) {
	b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "keys/s")
}

func claimAll(b *testing.B, s semel.Store, reqs []semel.ClaimRequest, want semel.Decision) []semel.ClaimAnswer {
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := s.Claim(context.Background(), reqs, answers); err != nil {
		b.Error(err)
	}
	for _, a := range answers {
		if a.Decision != want {
			b.Errorf("a claim is answered %s, want %s", a.Decision, want)
			break
		}
	}
	return answers
}

func BenchmarkBatch(b *testing.B) {
	const size = 1000
	b.Run("done", func(b *testing.B) {
		s, _ := benchStore(b, 2, nil)
		b.SetParallelism(1)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				claimAll(b, s, requests(size, true), semel.Fresh)
			}
		})
		perSecond(b, size)
	})
	b.Run("duplicates", func(b *testing.B) {
		s, _ := benchStore(b, 2, nil)
		var all [][]semel.ClaimRequest
		for range 100 {
			all = append(all, requests(size, true))
			claimAll(b, s, all[len(all)-1], semel.Fresh)
		}
		var next atomic.Int64
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				claimAll(b, s, all[next.Add(1)%100], semel.Duplicate)
			}
		})
		perSecond(b, size)
	})
	b.Run("claim and complete", func(b *testing.B) {
		s, p := benchStore(b, 2, nil)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				reqs := requests(size, false)
				answers := claimAll(b, s, reqs, semel.Fresh)
				completes, errs := make([]semel.CompleteRequest, size), make([]error, size)
				for i, a := range answers {
					completes[i] = semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Window: time.Hour}
				}
				if err := s.Complete(context.Background(), completes, errs); err != nil || errs[0] != nil {
					b.Error(err, errs[0])
				}
			}
		})
		perSecond(b, size)
		b.ReportMetric(bytesPerKey(b, p, "semel_keys"), "bytes/key")
		b.ReportMetric(hotShare(b, p), "hot")
	})
}

func bytesPerKey(b *testing.B, p *pgxpool.Pool, table string) float64 {
	var bytes float64
	if err := p.QueryRow(context.Background(), fmt.Sprintf("SELECT pg_total_relation_size('%s')::float / count(*) FROM %s", table, table)).Scan(&bytes); err != nil {
		b.Fatal(err)
	}
	return bytes
}

func hotShare(b *testing.B, p *pgxpool.Pool) float64 {
	var share float64
	if err := p.QueryRow(context.Background(), `SELECT pg_stat_force_next_flush()`).Scan(nil); err != nil {
		b.Log(err)
	}
	err := p.QueryRow(context.Background(), `SELECT coalesce(sum(n_tup_hot_upd)::float / nullif(sum(n_tup_upd), 0), 0) FROM pg_stat_user_tables WHERE relname LIKE 'semel_keys%'`).Scan(&share)
	if err != nil {
		b.Fatal(err)
	}
	return share
}

// BenchmarkPeers measures the baseline for the benchmarks above.
func BenchmarkPeers(b *testing.B) {
	b.Run("copy into the same table", func(b *testing.B) {
		_, p := benchStore(b, 2, nil)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				rows := make([][]any, 1000)
				now := time.Now()
				for i := range rows {
					var u [16]byte
					rand.Read(u[:])
					rows[i] = []any{u, now.Add(time.Hour), now}
				}
				if _, err := p.CopyFrom(context.Background(), pgx.Identifier{"semel_keys"}, []string{"key", "until", "seen"}, pgx.CopyFromRows(rows)); err != nil {
					b.Error(err)
				}
			}
		})
		perSecond(b, 1000)
		b.ReportMetric(bytesPerKey(b, p, "semel_keys"), "bytes/key")
	})
	b.Run("one row at a time, 64 connections", func(b *testing.B) {
		_, p := benchStore(b, 64, nil)
		if _, err := p.Exec(context.Background(), "CREATE TABLE peer (id text PRIMARY KEY, processed_at timestamptz NOT NULL DEFAULT now())"); err != nil {
			b.Fatal(err)
		}
		b.SetParallelism(32)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := p.Exec(context.Background(), "INSERT INTO peer (id) VALUES ($1) ON CONFLICT (id) DO NOTHING", uuidText()); err != nil {
					b.Error(err)
				}
			}
		})
		perSecond(b, 1)
		b.ReportMetric(bytesPerKey(b, p, "peer"), "bytes/key")
	})
}

func BenchmarkJoined(b *testing.B) {
	for _, prepare := range []bool{false, true} {
		b.Run(fmt.Sprintf("1024 callers, prepare %t", prepare), func(b *testing.B) {
			s, p := benchStore(b, 4, &Options{Prepare: prepare})
			joined := semel.Join(s, 0)
			b.SetParallelism(512)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					claimAll(b, joined, requests(1, true), semel.Fresh)
				}
			})
			perSecond(b, 1)
			b.ReportMetric(bytesPerKey(b, p, "semel_keys"), "bytes/key")
		})
	}
}

// BenchmarkCleanup claims new ids in batches, in every form of clean-up. It
// reports keys per second and the 99th percentile of a call, with and without a
// continuous clean-up. Windows are short, so that all keys expire. Each round of
// b.N is one call of each of 4 workers.
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
		// A clean-up leaves rows for a minute, which is longer than this takes.
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
				n, err := s.purge(ctx, func(ctx context.Context) error { // as Maintain does
					err := sleep(ctx, rest*time.Since(worked))
					worked = time.Now()
					return err
				})
				if gone.Add(n); err != nil && ctx.Err() == nil {
					b.Error(err)
				}
				_ = sleep(ctx, 10*time.Millisecond) // at most until ctx ends
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
