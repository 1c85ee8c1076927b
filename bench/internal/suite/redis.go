package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/test/services"
)

// remembered is the window of the keys in Redis: longer than a benchmark.
const remembered = time.Hour

// redis lists the benchmarks of the store in Redis.
func redis(e Env) []Benchmark {
	span := time.Duration(e.size(2000, 200)) * time.Millisecond
	var list []Benchmark
	for _, c := range []struct {
		callers int
		target  float64
	}{{64, 1.8}, {1024, 3}} {
		claims := fmt.Sprintf("%d callers claim new ids of 16 bytes, one at a time each, for %v, done in one step, through Redis over loopback with an append-only file synced every second. ", c.callers, span)
		for _, p := range []struct {
			name, work, module string
			target             float64
			claim              func(context.Context, string) (func(id string) (bool, error), func() error, error)
		}{
			{"go-redis", "Peer: SetNX", "github.com/redis/go-redis/v9", c.target, goRedisClaims},
			{"rueidis", "Peer: a bare SET NX EX, pipelined by the client itself", "github.com/redis/rueidis", 0.9, rueidisClaims},
		} {
			name := fmt.Sprintf("redis-%d-callers-%s", c.callers, p.name)
			list = append(list, Benchmark{
				Name:        name,
				Work:        claims + p.work,
				peerVersion: linked(p.module),
				ours: func(ctx context.Context) (map[string]float64, error) {
					rate, err := redisCallers(ctx, c.callers, span, storeClaims)
					return map[string]float64{name: rate}, err
				},
				peer: func(ctx context.Context) (map[string]float64, error) {
					rate, err := redisCallers(ctx, c.callers, span, p.claim)
					return map[string]float64{name: rate}, err
				},
				figures: []figure{{name: name, unit: "claims/s", target: p.target}},
			})
		}
	}
	batches, ids := e.size(1_280_000, 12_800), e.size(1_000_000, 10_000)
	return append(list,
		Benchmark{
			Name:        "redis-batch",
			Work:        fmt.Sprintf("claim %s new ids of 16 bytes in batches of 64, done in one step, by 50 goroutines, each with one batch in progress. Peer: redis-benchmark -c 50 -P 64 SET __rand_int__ 1 NX EX 3600, as many", count(batches)),
			peerVersion: redisBenchmarkVersion,
			ours: func(ctx context.Context) (map[string]float64, error) {
				rate, err := redisBatches(ctx, batches)
				return map[string]float64{"redis-batch": rate}, err
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				rate, _, err := redisBenchmark(ctx, batches, redisBatchers, redisBatch)
				return map[string]float64{"redis-batch": rate}, err
			},
			figures: []figure{{name: "redis-batch", unit: "claims/s", target: 0.9}},
		},
		Benchmark{
			Name:        "redis-memory-per-id",
			Work:        fmt.Sprintf("growth of the server's memory when %s ids of 36 characters become done in the compact form, after the grace period. Peer: SET NX EX of the id with an empty value", count(ids)),
			peerVersion: linked("github.com/redis/rueidis"),
			ours: func(ctx context.Context) (map[string]float64, error) {
				bytes, err := redisMemory(ctx, ids, compactDone)
				return map[string]float64{"redis-memory-per-id": bytes}, err
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				bytes, err := redisMemory(ctx, ids, plainDone)
				return map[string]float64{"redis-memory-per-id": bytes}, err
			},
			figures: []figure{{name: "redis-memory-per-id", unit: "B", lessIsBetter: true, target: 10}},
		},
	)
}

// startRedis starts a server for one side of one round.
func startRedis(ctx context.Context) (*services.Server, error) {
	return services.StartRedis(ctx, &services.RedisOptions{Args: []string{"--appendfsync", "everysec"}})
}

// redisCallers measures callers that claim through the client that open returns.
func redisCallers(ctx context.Context, callers int, span time.Duration, open func(context.Context, string) (func(id string) (bool, error), func() error, error)) (rate float64, err error) {
	server, err := startRedis(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	claim, end, err := open(ctx, server.Addr())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return load(callers, span, func(id []byte) error { return wantFresh(claim(string(id))) })
}

func openRedis(ctx context.Context, addr string, opts *redisstore.Options) (*redisstore.Store, func() error, error) {
	client, err := redisstore.NewClient(ctx, "redis://"+addr, nil)
	if err != nil {
		return nil, nil, err
	}
	end := func() error { client.Close(); return nil }
	store, err := redisstore.New(ctx, client, opts)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return store, end, nil
}

func storeClaims(ctx context.Context, addr string) (func(string) (bool, error), func() error, error) {
	store, end, err := openRedis(ctx, addr, nil)
	if err != nil {
		return nil, nil, err
	}
	joined := semel.Join(store, 0)
	return func(id string) (bool, error) { return doneOnce(ctx, joined, id) }, end, nil
}

// doneOnce claims an id, done in one step.
func doneOnce(ctx context.Context, store semel.Store, id string) (bool, error) {
	reqs := [1]semel.ClaimRequest{{Key: semel.Key{ID: id}, Owner: semel.Owner{Nonce: rand.Uint64()}, Window: remembered, Done: true}}
	var answers [1]semel.ClaimAnswer
	err := store.Claim(ctx, reqs[:], answers[:])
	return answers[0].Decision == semel.Fresh, errors.Join(err, answers[0].Err)
}

func goRedisClaims(ctx context.Context, addr string) (func(string) (bool, error), func() error, error) {
	client := goredis.NewClient(&goredis.Options{Addr: addr})
	return func(id string) (bool, error) { return client.SetNX(ctx, id, "", remembered).Result() }, client.Close, nil
}

func rueidisClaims(ctx context.Context, addr string) (func(string) (bool, error), func() error, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		return nil, nil, err
	}
	claim := func(id string) (bool, error) {
		err := client.Do(ctx, client.B().Set().Key(id).Value("").Nx().Ex(remembered).Build()).Error()
		if rueidis.IsRedisNil(err) {
			return false, nil
		}
		return err == nil, err
	}
	return claim, func() error { client.Close(); return nil }, nil
}

// redisBatch and redisBatchers are also the options of redis-benchmark.
const (
	redisBatch    = 64
	redisBatchers = 50
)

func redisBatches(ctx context.Context, ids int) (rate float64, err error) {
	server, err := startRedis(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	store, end, err := openRedis(ctx, server.Addr(), nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	took, err := sharedBatches(ctx, store, newIDs(ids, 16), redisBatch, redisBatchers)
	return float64(ids) / took.Seconds(), err
}

// redisBenchmark returns the commands per second of the server's own load generator, with
// new ids, and the milliseconds below which 99 of 100 were answered.
func redisBenchmark(ctx context.Context, ids, clients, pipelined int) (rate, late float64, err error) {
	server, err := startRedis(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	_, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, "redis-benchmark", "-p", port, "-c", strconv.Itoa(clients), "-P", strconv.Itoa(pipelined),
		"-n", strconv.Itoa(ids), "-r", "2000000000", "--csv", "SET", "key:__rand_int__", "1", "NX", "EX", "3600")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("suite: redis-benchmark: %w: %s", err, &complaint)
	}
	// The output is a line of titles, and a line with the command, its rate and its
	// latencies: average, least, p50, p95, p99, most.
	for line := range strings.Lines(string(out)) {
		if cells := strings.Split(strings.ReplaceAll(line, `"`, ""), ","); len(cells) > 6 && strings.HasPrefix(cells[0], "SET") {
			rate, wrong := strconv.ParseFloat(cells[1], 64)
			late, worse := strconv.ParseFloat(cells[6], 64)
			return rate, late, errors.Join(wrong, worse)
		}
	}
	return 0, 0, fmt.Errorf("suite: redis-benchmark answered %q", out)
}

func redisBenchmarkVersion() (string, error) {
	out, err := exec.Command("redis-benchmark", "--version").Output()
	return strings.TrimSpace(string(out)), err
}

// redisMemory returns the growth of the server's memory in bytes for each id that fill
// marks done. It measures after fill has returned.
func redisMemory(ctx context.Context, ids int, fill func(ctx context.Context, addr string, ids *ids) error) (bytesEach float64, err error) {
	server, err := startRedis(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	before, err := usedMemory(ctx, server.Addr())
	if err != nil {
		return 0, err
	}
	if err := fill(ctx, server.Addr(), newIDs(ids, 36)); err != nil {
		return 0, err
	}
	after, err := usedMemory(ctx, server.Addr())
	return (after - before) / float64(ids), err
}

// usedMemory returns the memory that the server reports as allocated.
func usedMemory(ctx context.Context, addr string) (float64, error) {
	reply, err := services.RedisDo(ctx, addr, "INFO", "memory")
	if err != nil {
		return 0, err
	}
	text := fmt.Sprint(reply)
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("suite: the server does not tell its memory: %q", text)
}

// compactDone marks ids done in the compact form and waits until their grace period has
// ended. All of them are in one slice of the window, so the store's option expects that
// many in each slice.
func compactDone(ctx context.Context, addr string, ids *ids) error {
	const slices = 4
	store, end, err := openRedis(ctx, addr, &redisstore.Options{
		Compact: &redisstore.Compact{Window: remembered, Slices: slices, Expect: slices * int64(ids.count), Grace: time.Second},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	if _, err := sharedBatches(ctx, store, ids, 256, 8); err != nil {
		return err
	}
	// When the records have expired, only the sets still have a time to live.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for last := -1.0; ; {
		used, err := usedMemory(ctx, addr)
		if err != nil {
			return err
		}
		n, err := services.RedisDo(ctx, addr, "DBSIZE")
		if err != nil {
			return err
		}
		if keys, ok := n.(int64); ok && used == last && keys < int64(ids.count)/50 {
			return nil
		}
		last = used
		<-tick.C
	}
}

func plainDone(ctx context.Context, addr string, ids *ids) error {
	claim, end, err := rueidisClaims(ctx, addr)
	if err != nil {
		return err
	}
	err = inParallel(64, ids.count, func(i int) error { return wantFresh(claim(ids.at(i))) })
	return errors.Join(err, end())
}
