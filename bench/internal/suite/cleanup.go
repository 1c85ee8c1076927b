package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// cleanup lists the benchmarks of clean-up in PostgreSQL during claims: one for each form
// of clean-up.
func cleanup(e Env) []Benchmark {
	span := time.Duration(e.size(6_000, 1_500)) * time.Millisecond
	dead := e.size(500_000, 20_000)
	var list []Benchmark
	for _, form := range []struct {
		name, work string
		opts       pgstore.Options
		migrate    pgstore.MigrateOptions
		old        string // the statement that creates this many old keys
	}{
		{"delete", fmt.Sprintf("at the same time the store deletes the rows of %s keys whose window has ended, with the default share of the time", count(dead)),
			prepared, pgstore.MigrateOptions{Cleanup: pgstore.CleanupDelete, Partitions: 8}, fmt.Sprintf(oldRows, "gen_random_uuid()")},
		{"message-time", fmt.Sprintf("windows follow the time of messages, and those of %s old keys are too old; at the same time the store checks and truncates their partition", count(dead)),
			ofNow(), pgstore.MigrateOptions{Cleanup: pgstore.CleanupMessageTime, Partitions: slots, MessageAge: messageAge}, fmt.Sprintf(oldRows, tooOldKey)},
	} {
		name := "postgres-cleanup-" + form.name
		measure := func(clean bool) side {
			return func(ctx context.Context) (map[string]float64, error) {
				rate, worst, err := claimsWhileCleaning(ctx, span, &form.opts, &form.migrate, clean, form.old, dead)
				return map[string]float64{name: rate, name + "-p99": worst}, err
			}
		}
		list = append(list, Benchmark{
			Name:        name,
			Work:        fmt.Sprintf("claim new ids of 16 bytes, done in one step, for a window of 1 s, in batches of 100 on 2 connections, for %v; %s. Peer: the same without clean-up", span, form.work),
			peerVersion: func() (string, error) { return "the store without clean-up", nil },
			ours:        measure(true),
			peer:        measure(false),
			figures: []figure{
				{name: name, unit: "claims/s", target: 0.8},
				{name: name + "-p99", unit: "ms", lessIsBetter: true, target: 0.5},
			},
		})
	}
	return list
}

// oldRows creates expired rows. An expression makes their keys.
const oldRows = "INSERT INTO semel_keys (key, until, seen) SELECT %s, now() - interval '1 day', now() - interval '2 days' FROM generate_series(1, $1)"

// Messages may be 8 hours old. There are 8 partitions of 2 hours each, and 4 of them are
// spare.
const (
	slots      = 8
	messageAge = 8 * time.Hour
	// tooOldKey is a key in the partition of messages that are just too old. The first
	// byte of a key selects the partition.
	tooOldKey = "encode(set_byte(uuid_send(gen_random_uuid()), 0, (floor(extract(epoch FROM now() - interval '10 hours') / 7200)::bigint % 8)::integer), 'hex')::uuid"
)

// ofNow are the options of a store whose messages are all new.
func ofNow() pgstore.Options {
	now := time.Now()
	return pgstore.Options{Prepare: true, MessageTime: func(semel.Key) (time.Time, bool) { return now, true }}
}

// claimsWhileCleaning returns the claims per second, and the 99th percentile of the time
// of a batch in milliseconds.
func claimsWhileCleaning(ctx context.Context, span time.Duration, opts *pgstore.Options, migrate *pgstore.MigrateOptions, clean bool, old string, dead int) (rate, p99 float64, err error) {
	err = onStore(ctx, 4, "", opts, migrate, func(pool *pgxpool.Pool, store *pgstore.Store) error {
		if _, err := pool.Exec(ctx, old, dead); err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, "CHECKPOINT"); err != nil {
			return err
		}
		cleaning, stop := context.WithCancel(ctx)
		var cleaner sync.WaitGroup
		if clean {
			cleaner.Go(func() { _ = store.Maintain(cleaning, &pgstore.MaintainOptions{Every: time.Second}) }) // stop ends it
		}
		defer func() { stop(); cleaner.Wait() }()
		rate, p99, err = timedBatches(ctx, store, span)
		return err
	})
	return rate, p99, err
}

// timedBatches claims batches of 100 ids by two workers.
func timedBatches(ctx context.Context, store semel.Store, span time.Duration) (rate, p99 float64, err error) {
	const batch, workers = 100, 2
	var mu sync.Mutex // guards took and errs
	var took []time.Duration
	var errs []error
	var group sync.WaitGroup
	start := time.Now()
	for w := range workers {
		group.Go(func() {
			reqs, answers := make([]semel.ClaimRequest, batch), make([]semel.ClaimAnswer, batch)
			var mine []time.Duration
			var failed error
			for n := 0; time.Since(start) < span && failed == nil; n++ {
				for i := range reqs {
					id := fmt.Sprintf("%d-%d-%d", w, n, i)
					reqs[i] = semel.ClaimRequest{Key: semel.Key{ID: id}, Window: time.Second, Done: true}
				}
				began := time.Now()
				failed = store.Claim(ctx, reqs, answers)
				mine = append(mine, time.Since(began))
				for i := range answers {
					failed = errors.Join(failed, wantFresh(answers[i].Decision == semel.Fresh, answers[i].Err))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took, errs = append(took, mine...), append(errs, failed)
		})
	}
	group.Wait()
	elapsed := time.Since(start)
	slices.Sort(took)
	worst := took[len(took)*99/100]
	return float64(len(took)*batch) / elapsed.Seconds(), float64(worst) / 1e6, errors.Join(errs...)
}
