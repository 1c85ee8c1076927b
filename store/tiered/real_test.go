package tiered_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/store/tiered"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// shared are the servers of the tests that do not disturb them.
var shared = servicestest.Pool{Unsynced: true}

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

// connect connects to a Redis server for the duration of a test. It gives the server a minute
// to answer, because a running server may be slow.
func connect(t testing.TB, url string) *redisstore.Client {
	t.Helper()
	client, err := redisstore.NewClient(t.Context(), url, &redisstore.ClientOptions{Timeout: time.Minute, ConnectTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// inRedis returns a place in Redis.
func inRedis(client *redisstore.Client) place {
	return func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
		prefix := servicestest.Prefix()
		return func() (semel.Store, error) {
			return redisstore.New(tb.Context(), client, &redisstore.Options{Prefix: prefix, Persistence: redisstore.Logged})
		}
	}
}

// inPostgres returns a place in PostgreSQL: a schema.
func inPostgres(pool *pgxpool.Pool) place {
	return func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
		names := migrated(tb, pool)
		return func() (semel.Store, error) {
			return pgstore.New(context.Background(), pool, &pgstore.Options{Names: names, LockWait: 20 * time.Second}) // on a busy machine a commit takes long
		}
	}
}

// migrated creates the tables in their own schema.
func migrated(t testing.TB, pool *pgxpool.Pool) pgstore.Names {
	t.Helper()
	names := pgstore.Names{Schema: "s" + strings.ToLower(rand.Text()[:10])}
	if _, err := pgstore.Migrate(t.Context(), pool, &pgstore.MigrateOptions{Names: names}); err != nil {
		t.Fatal(err)
	}
	return names
}

// poolOf connects to a PostgreSQL server for the duration of a test.
func poolOf(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func redisFilter(client *redisstore.Client, form redisstore.FilterForm) func(testing.TB, func() time.Time) func() (tiered.Layer, error) {
	return func(tb testing.TB, _ func() time.Time) func() (tiered.Layer, error) {
		prefix := servicestest.Prefix()
		return func() (tiered.Layer, error) {
			f, err := redisstore.NewFilter(tb.Context(), client, &redisstore.FilterOptions{Prefix: prefix, Capacity: 10_000, Form: form})
			return tiered.Layer{Filter: f}, err
		}
	}
}

func TestConformanceWithRealServers(t *testing.T) {
	client := connect(t, shared.Redis(t))
	bloom := connect(t, servicestest.StartRedis(t, &services.RedisOptions{Bloom: true}).URL())
	pool := poolOf(t, shared.Database(t))
	all := map[string]bottom{
		"redis":    {inRedis(client), nil},
		"postgres": {inPostgres(pool), transactIn(pool)},
	}
	stacks := map[string][]func(testing.TB, func() time.Time) func() (tiered.Layer, error){
		"memory cache":                 {cacheOf(inMemory(memstore.Options{}))},
		"redis cache":                  {cacheOf(inRedis(client))},
		"module filter over redis":     {redisFilter(bloom, redisstore.FilterModule), cacheOf(inRedis(client))},
		"memory, bit filter and redis": {cacheOf(inMemory(memstore.Options{})), redisFilter(client, redisstore.FilterBits), cacheOf(inRedis(client))},
	}
	for below, b := range sampletest.Sampled(all, 1) {
		for above, layers := range sampletest.Sampled(stacks, 1) {
			t.Run(above+" over "+below, func(t *testing.T) {
				t.Parallel()
				storetest.Run(t, storetest.Harness{
					Time:     storetest.Wall,
					New:      stacked(b.place, layers, tiered.Options{Timeout: time.Minute}),
					Transact: b.transact,
				})
			})
		}
	}
}

// transactIn returns a function that claims in one transaction of the
// PostgreSQL store below a stack.
func transactIn(pool *pgxpool.Pool) func(context.Context, semel.Store, []semel.ClaimRequest, []semel.ClaimAnswer, bool) error {
	return func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
		durable, _ := semel.As[*pgstore.Store](store)
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		guard, err := pgstore.NewGuard(durable, nil)
		if err != nil {
			return errors.Join(err, tx.Rollback(ctx))
		}
		calls := make([]semel.Call, len(reqs))
		for i, r := range reqs {
			calls[i] = semel.Call{Key: r.Key, Fingerprint: r.Fingerprint, Window: r.Window, Time: r.Time}
		}
		for i, out := range guard.InTx(tx).ClaimBatch(ctx, calls) {
			answers[i] = semel.ClaimAnswer{Decision: out.Decision, Result: out.Result}
			if out.Decision == semel.Undecided {
				return errors.Join(out.Err, tx.Rollback(ctx))
			}
		}
		if commit {
			return tx.Commit(ctx)
		}
		return tx.Rollback(ctx)
	}
}
