package redisstore

import (
	"os"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// newClient connects to servers for the duration of a test.
func newClient(t testing.TB, addrs ...string) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true})
	if err != nil {
		t.Fatalf("connect to %v: %v", addrs, err)
	}
	t.Cleanup(client.Close)
	return client
}

// newStore opens a store with its own prefix on the shared server.
func newStore(t testing.TB, opts *Options) *Store {
	t.Helper()
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = servicestest.Prefix()
	}
	s, err := New(t.Context(), newClient(t, redisAddr(t)), &o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

// redisAddr returns the address of the shared server.
func redisAddr(t testing.TB) string {
	t.Helper()
	const scheme = "redis://"
	return servers.Redis(t)[len(scheme):]
}

// compactForm is a compact form for the suite's window, which is an hour and
// four ticks.
func compactForm() *Compact { return &Compact{Window: 2 * time.Hour, Slices: 8} }

// TestConformance runs the suite with each form of the store, on a server, on a cluster and on a
// server without persistence. With -short it draws two of them.
func TestConformance(t *testing.T) {
	opened := func(o Options, servers func(t *testing.T) []string) func(t *testing.T) {
		return func(t *testing.T) {
			addrs := servers(t)
			o.Persistence = Logged
			h := storetest.Harness{
				Time: storetest.Wall,
				New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
					o := o
					o.Prefix = servicestest.Prefix()
					client := newClient(tb, addrs...)
					return func() (semel.Store, error) { return New(tb.Context(), client, &o) }
				},
			}
			if o.Compact != nil {
				h.Collide = collide(t)
			}
			storetest.Run(t, h)
		}
	}
	one := func(t *testing.T) []string { return []string{redisAddr(t)} }
	cluster := func(t *testing.T) []string { return servicestest.StartRedisCluster(t, nil).Addrs() }
	for name, run := range sampletest.Sampled(map[string]func(t *testing.T){
		"plain":               opened(Options{}, one),
		"ids, connected":      connected,
		"compact":             opened(Options{Compact: compactForm()}, one),
		"cluster":             opened(Options{}, cluster),
		"cluster, compact":    opened(Options{Compact: compactForm(), KeepIDs: true}, cluster),
		"without persistence": withoutPersistence,
	}, 2) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
}

// connected runs the suite with a store that owns its connections.
func connected(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Time: storetest.Wall,
		New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
			o := Options{KeepIDs: true, MaxResult: 1000, Prefix: servicestest.Prefix(), Persistence: Logged, Client: unhurried(nil)}
			return func() (semel.Store, error) { return Connect(tb.Context(), servers.Redis(tb), &o) }
		},
	})
}

// withoutPersistence kills the server whenever the suite reopens
// the store. The data is gone then, and the traits say so.
func withoutPersistence(t *testing.T) {
	server := servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--appendonly", "no"}})
	storetest.Run(t, storetest.Harness{
		Time: storetest.Wall,
		New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
			o := Options{Prefix: servicestest.Prefix()}
			var last *lost
			return func() (semel.Store, error) {
				if last != nil && last.closed {
					if err := server.Kill(); err != nil {
						return nil, err
					}
					if err := server.Restart(tb.Context()); err != nil {
						return nil, err
					}
				}
				store, err := New(tb.Context(), newClient(tb, server.Addr()), &o)
				if err != nil {
					return nil, err
				}
				last = &lost{Store: store}
				return last, nil
			}
		},
	})
}

// lost records that the suite has closed a store.
type lost struct {
	*Store
	closed bool
}

func (o *lost) Close() error {
	o.closed = true
	return o.Store.Close()
}

func BenchmarkSuite(b *testing.B) {
	storetest.RunBenchmarks(b, storetest.Harness{New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
		return func() (semel.Store, error) { return newStore(tb, nil), nil }
	}})
}

// collide returns two keys that a store with the compact form takes for one.
// Keys that agree in 64 bits cannot be found. So collide puts half of the
// second key's digest into the set of the first key.
func collide(t *testing.T) func(semel.Store) (first, second semel.Key) {
	return func(store semel.Store) (first, second semel.Key) {
		s := store.(*Store)
		first, second = semel.Key{Scope: "collide", ID: "first"}, semel.Key{Scope: "collide", ID: "second"}
		memo := s.digests()
		d := memo.Key(second)
		set := s.appendSetKeys(nil, &d)[0]
		if err := s.client.Do(t.Context(), s.client.B().Sadd().Key(set).Member(member(&d)).Build()).Error(); err != nil {
			t.Fatal(err)
		}
		return first, second
	}
}
