package servicestest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestPoolUsesServersFromTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"SEMEL_REDIS": "valkey-9", "SEMEL_TEST_REDIS": "redis://other:1", "SEMEL_TEST_VALKEY_9": "redis://given:1",
		"SEMEL_POSTGRES": "", "SEMEL_TEST_POSTGRES": "postgres://given:2",
		"SEMEL_TEST_KAFKA": "given:3",
	} {
		t.Setenv(name, value)
	}
	var servers servicestest.Pool
	if url := servers.Redis(t); url != "redis://given:1" {
		t.Errorf("Redis at %s", url)
	}
	if url := servers.Postgres(t); url != "postgres://given:2" {
		t.Errorf("PostgreSQL at %s", url)
	}
	if addr := servers.Kafka(t); addr != "given:3" {
		t.Errorf("Kafka at %s", addr)
	}
}

func TestPrefixesAndTopicsAreUnique(t *testing.T) {
	t.Parallel()
	if one, other := servicestest.Prefix(), servicestest.Prefix(); one == other {
		t.Errorf("twice %s", one)
	}
	if one, other := servicestest.Topic(), servicestest.Topic(); one == other {
		t.Errorf("twice %s", one)
	}
}

func TestFreeAddressesDiffer(t *testing.T) {
	t.Parallel()
	given := map[string]bool{}
	for range 300 {
		addr := servicestest.FreeAddr(t)
		if given[addr] {
			t.Fatalf("%s is given twice", addr)
		}
		given[addr] = true
	}
}

func TestFreeAddressCanBeListenedOn(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t)
	if conn, err := net.Dial("tcp", addr); err == nil {
		t.Errorf("%v listens", conn.RemoteAddr())
	}
	for range 2 {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// own is a pool of servers that this package starts, whatever the environment has.
var own servicestest.Pool

func TestMain(m *testing.M) {
	for _, unit := range services.Units() {
		if err := os.Unsetenv(unit.Variable); err != nil {
			panic(err)
		}
	}
	os.Exit(own.Run(m))
}

func TestAPoolStartsEachServerOnce(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) string{"Redis": own.Redis, "PostgreSQL": own.Postgres, "NATS": own.NATS} {
		first := start(t)
		if again := start(t); first == "" || again != first {
			t.Errorf("%s is at %q, and then at %q", name, first, again)
		}
		_, address, _ := strings.Cut(first, "://")
		if i := strings.LastIndexByte(address, '@'); i >= 0 {
			address = address[i+1:]
		}
		address, _, _ = strings.Cut(address, "/")
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = conn.Close() // nothing was written
	}
}

func TestDatabasesOfTestsAreRemovedWithThem(t *testing.T) {
	t.Parallel()
	connect := func(dsn string) error {
		conn, err := pgx.Connect(context.Background(), dsn)
		if err != nil {
			return err
		}
		return conn.Close(context.Background())
	}
	if err := connect(own.Database(t)); err != nil { // which skips the test without PostgreSQL
		t.Fatal(err)
	}
	var one, other string
	t.Run("test", func(t *testing.T) {
		one, other = own.Database(t), own.Database(t)
		if one == other {
			t.Errorf("twice %s", one)
		}
		if err := connect(one); err != nil {
			t.Error(err)
		}
	})
	refused := new(pgconn.PgError)
	if err := connect(one); !errors.As(err, &refused) || refused.Code != "3D000" { // it does not exist
		t.Errorf("the database of a test that ended: %v", err)
	}
}

// TestPrivateServersEndWithTheirTest starts servers of a test that ends.
func TestPrivateServersEndWithTheirTest(t *testing.T) {
	t.Parallel()
	var started []*services.Server
	t.Run("test", func(t *testing.T) {
		database := servicestest.StartPostgres(t, nil)
		started = append(started,
			servicestest.StartRedis(t, nil), servicestest.StartNATS(t, nil), database,
			servicestest.StartStandby(t, database, nil), servicestest.StartPgBouncer(t, database, nil))
		cluster, sentinel := servicestest.StartRedisCluster(t, nil), servicestest.StartRedisSentinel(t, nil)
		started = append(append(started, cluster.Nodes...), sentinel.Master)
		for _, server := range started {
			conn, err := net.Dial("tcp", server.Addr())
			if err != nil {
				t.Errorf("%s: %v", server.Name(), err)
				continue
			}
			_ = conn.Close() // nothing was written
		}
	})
	for _, server := range started {
		if conn, err := net.Dial("tcp", server.Addr()); err == nil {
			_ = conn.Close()
			t.Errorf("%s still listens at %s", server.Name(), server.Addr())
		}
	}
}

func TestServerTestsAreSkippedWithServicesNone(t *testing.T) {
	t.Setenv("SEMEL_SERVICES", "none")
	skipped := 0
	for name, test := range map[string]func(*testing.T){
		"private": func(t *testing.T) { servicestest.StartRedis(t, nil) },
		"pool":    func(t *testing.T) { new(servicestest.Pool).Kafka(t) },
		"program": func(t *testing.T) { servicestest.Program(t, "redis-server") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Skipped() {
					skipped++
				}
			})
			test(t)
			t.Error("the test went on")
		})
	}
	if skipped != 3 {
		t.Errorf("%d of 3 tests were skipped", skipped)
	}
}
