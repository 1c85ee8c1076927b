// Package servicestest provides real servers for tests.
//
// If a server is not installed, a test that needs it is skipped with the command that installs
// the server. With SEMEL_SERVICES=required in the environment the test fails instead, and with
// SEMEL_SERVICES=none every such test is skipped.
//
// StartRedis, StartPostgres, StartKafka and similar functions start a private
// server, which the test may kill and pause. It ends with the test. A [Pool]
// has shared servers. The environment selects the versions: SEMEL_POSTGRES is
// 15 or 18, and SEMEL_REDIS is redis-7.0, redis-8.2 or valkey-9.
package servicestest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
)

// StartRedis starts a server for this test alone. An empty version means the
// version of the environment.
func StartRedis(t testing.TB, opts *services.RedisOptions) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartRedis(t.Context(), redisOptions(opts))
	})
}

// StartPostgres starts a server for this test alone. An empty version means the
// version of the environment.
func StartPostgres(t testing.TB, opts *services.PostgresOptions) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartPostgres(t.Context(), postgresOptions(opts))
	})
}

// StartRedisCluster starts three masters for this test alone.
func StartRedisCluster(t testing.TB, opts *services.RedisOptions) *services.RedisCluster {
	t.Helper()
	skipUnlessWanted(t)
	cluster, err := services.StartRedisCluster(t.Context(), redisOptions(opts))
	if err != nil {
		stopTest(t, err)
	}
	cleanUp(t, cluster.Nodes...)
	return cluster
}

// StartRedisSentinel starts a master, a replica and three Sentinels for this
// test alone.
func StartRedisSentinel(t testing.TB, opts *services.RedisOptions) *services.RedisSentinel {
	t.Helper()
	skipUnlessWanted(t)
	sentinel, err := services.StartRedisSentinel(t.Context(), redisOptions(opts))
	if err != nil {
		stopTest(t, err)
	}
	cleanUp(t, append(sentinel.Sentinels, sentinel.Replica, sentinel.Master)...)
	return sentinel
}

// StartKafka starts a single Kafka node for this test alone.
func StartKafka(t testing.TB, opts *services.KafkaOptions) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartKafka(t.Context(), opts)
	})
}

// StartKafkaCluster starts three Kafka nodes for this test alone.
func StartKafkaCluster(t testing.TB, opts *services.KafkaOptions) *services.KafkaCluster {
	t.Helper()
	skipUnlessWanted(t)
	cluster, err := services.StartKafkaCluster(t.Context(), opts)
	if err != nil {
		stopTest(t, err)
	}
	cleanUp(t, cluster.Nodes...)
	return cluster
}

// StartNATS starts a server for this test alone.
func StartNATS(t testing.TB, opts *services.NATSOptions) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartNATS(t.Context(), opts)
	})
}

// StartRabbitMQ starts a node for this test alone.
func StartRabbitMQ(t testing.TB, opts *services.RabbitMQOptions) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartRabbitMQ(t.Context(), opts)
	})
}

// StartElasticMQ starts a server for this test alone.
func StartElasticMQ(t testing.TB) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartElasticMQ(t.Context())
	})
}

// StartStandby starts a standby of a server for this test alone.
func StartStandby(t testing.TB, primary *services.Server, settings map[string]string) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartStandby(t.Context(), primary, settings)
	})
}

// StartPgBouncer starts a connection pool in front of a server, for this test
// alone.
func StartPgBouncer(t testing.TB, server *services.Server, settings map[string]string) *services.Server {
	t.Helper()
	return private(t, func() (*services.Server, error) {
		return services.StartPgBouncer(t.Context(), server, settings)
	})
}

func private(t testing.TB, start func() (*services.Server, error)) *services.Server {
	t.Helper()
	skipUnlessWanted(t)
	server, err := start()
	if err != nil {
		stopTest(t, err)
	}
	cleanUp(t, server)
	return server
}

// cleanUp closes servers at the end of the test, and shows their output if the
// test failed.
func cleanUp(t testing.TB, servers ...*services.Server) {
	t.Helper()
	t.Cleanup(func() {
		for _, server := range servers {
			if t.Failed() {
				t.Logf("%s at %s wrote:\n%s", server.Name(), server.Addr(), server.Log())
			}
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Program returns the program of one of services.Packages.
func Program(t testing.TB, name string) string {
	t.Helper()
	skipUnlessWanted(t)
	program, err := services.Find(name)
	if err != nil {
		stopTest(t, err)
	}
	return program
}

// skipUnlessWanted skips the test if the environment wants none with servers.
func skipUnlessWanted(t testing.TB) {
	t.Helper()
	if os.Getenv("SEMEL_SERVICES") == "none" {
		t.Skip("it needs a server, and SEMEL_SERVICES is none")
	}
}

// stopTest skips the test if the server is not installed and that is permitted.
// Otherwise it fails the test.
func stopTest(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, services.ErrNotInstalled) && os.Getenv("SEMEL_SERVICES") != "required" {
		t.Skip(err)
	}
	t.Fatal(err)
}

func redisOptions(opts *services.RedisOptions) *services.RedisOptions {
	o := services.RedisOptions{}
	if opts != nil {
		o = *opts
	}
	o.Version = cmp.Or(o.Version, os.Getenv("SEMEL_REDIS"), services.Redis70)
	return &o
}

func postgresOptions(opts *services.PostgresOptions) *services.PostgresOptions {
	o := services.PostgresOptions{}
	if opts != nil {
		o = *opts
	}
	if version := os.Getenv("SEMEL_POSTGRES"); o.Version == "" && version != "" {
		o.Version = "postgres-" + version
	}
	o.Version = cmp.Or(o.Version, services.Postgres15)
	return &o
}

// NewDatabase creates an empty database on the server with this address, and
// removes it at the end of the test.
func NewDatabase(t testing.TB, server string) string {
	t.Helper()
	database, err := services.CreateDatabase(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := services.DropDatabase(ctx, server, database); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return database
}

// Prefix returns a key prefix that no other test has, for a shared Redis.
func Prefix() string { return strings.ToLower(rand.Text()[:10]) + ":" }

// Topic returns a name for topics, groups and transactions that no other test
// has, for a shared Kafka.
func Topic() string { return "t-" + strings.ToLower(rand.Text()[:10]) }

// FreeAddr returns an address without a listener, which no other test gets. The
// address of a listener that was closed could be given to another program.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, release, err := services.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return addr
}

// Pool shares servers among the tests of a package. The zero Pool is ready to
// use. Its methods may be called concurrently. A package has one Pool and
// closes it:
//
//	var servers servicestest.Pool
//
//	func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }
//
// If the environment has the address of a server in SEMEL_TEST_REDIS,
// SEMEL_TEST_POSTGRES, SEMEL_TEST_KAFKA, SEMEL_TEST_NATS, SEMEL_TEST_RABBITMQ or
// SEMEL_TEST_SQS, as tools/services prints them, the Pool uses that server and starts
// none.
type Pool struct {
	// Unsynced has PostgreSQL not wait for the disk. Tests cannot tell, because a shared
	// server is never killed, but an operator's examination can. Defaults to false.
	Unsynced bool

	redis, postgres, kafka, nats, rabbitmq, sqs shared
}

type shared struct {
	once   sync.Once
	server *services.Server
	err    error
}

func (s *shared) url(t testing.TB, version string, start func(ctx context.Context) (*services.Server, error)) string {
	t.Helper()
	skipUnlessWanted(t)
	for _, unit := range services.Units() {
		if url := os.Getenv(unit.Variable); url != "" && unit.Name == version {
			return url
		}
	}
	s.once.Do(func() { s.server, s.err = start(context.WithoutCancel(t.Context())) })
	if s.err != nil {
		stopTest(t, s.err)
	}
	return s.server.URL()
}

func (s *shared) close() error {
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}

// Redis returns the address of the shared Redis, as redis://host:port. Tests
// use different names through [Prefix].
func (p *Pool) Redis(t testing.TB) string {
	t.Helper()
	opts := redisOptions(nil)
	return p.redis.url(t, opts.Version, func(ctx context.Context) (*services.Server, error) {
		return services.StartRedis(ctx, opts)
	})
}

// Postgres returns the address of the shared PostgreSQL server, as postgres://.
// Use [Pool.Database] for a database of the test's own.
func (p *Pool) Postgres(t testing.TB) string {
	t.Helper()
	opts := postgresOptions(nil)
	if p.Unsynced {
		opts.Settings = map[string]string{"fsync": "off"}
	}
	return p.postgres.url(t, opts.Version, func(ctx context.Context) (*services.Server, error) {
		return services.StartPostgres(ctx, opts)
	})
}

// Kafka returns the bootstrap address of the shared Kafka, as host:port. Tests
// use different names through [Topic].
func (p *Pool) Kafka(t testing.TB) string {
	t.Helper()
	return p.kafka.url(t, services.Kafka43, func(ctx context.Context) (*services.Server, error) {
		return services.StartKafka(ctx, nil)
	})
}

// NATS returns the address of the shared NATS server, as nats://host:port. Tests
// use different names through [Topic].
func (p *Pool) NATS(t testing.TB) string {
	t.Helper()
	return p.nats.url(t, services.NATS2, func(ctx context.Context) (*services.Server, error) {
		return services.StartNATS(ctx, nil)
	})
}

// RabbitMQ returns the address of the shared RabbitMQ node, as host:port. Tests use
// different names through [Topic].
func (p *Pool) RabbitMQ(t testing.TB) string {
	t.Helper()
	return p.rabbitmq.url(t, services.RabbitMQ3, func(ctx context.Context) (*services.Server, error) {
		return services.StartRabbitMQ(ctx, nil)
	})
}

// SQS returns the address of the shared ElasticMQ, as http://host:port. Tests use
// different queues through [Topic].
func (p *Pool) SQS(t testing.TB) string {
	t.Helper()
	return p.sqs.url(t, services.ElasticMQ, services.StartElasticMQ)
}

// Database returns the address of a new database on the shared PostgreSQL
// server, which is removed at the end of the test.
func (p *Pool) Database(t testing.TB) string {
	t.Helper()
	return NewDatabase(t, p.Postgres(t))
}

// Run runs the tests, closes the servers and returns the exit status.
func (p *Pool) Run(m *testing.M) int {
	status := m.Run()
	if err := errors.Join(p.redis.close(), p.postgres.close(), p.kafka.close(), p.nats.close(), p.rabbitmq.close(), p.sqs.close()); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n") // the status below says it too
		return max(status, 1)
	}
	return status
}
