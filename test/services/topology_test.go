package services_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// sql runs statements and returns the first value of the last result.
func sql(ctx context.Context, address, statements string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgconn.Connect(ctx, address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, statements).ReadAll()
	if err != nil {
		return "", err
	}
	if last := results[len(results)-1]; len(last.Rows) > 0 {
		return string(last.Rows[0][0]), nil
	}
	return "", nil
}

func mustSQL(t *testing.T, address, statements string) string {
	t.Helper()
	value, err := sql(t.Context(), address, statements)
	if err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
	return value
}

// eventually repeats a question until the answer is right, for at most five
// minutes.
func eventually(t *testing.T, what string, ask func() (string, bool)) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(5 * time.Minute)
	for {
		got, ok := ask()
		if ok {
			return
		}
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("%s: still %s after five minutes", what, got)
		}
	}
}

func TestKilledPostgresHasItsDataAfterRestart(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	mustSQL(t, server.URL(), "CREATE TABLE kept AS SELECT 7 AS n")
	busy := make(chan error)
	go func() { // a backend that does not notice that the others are gone
		_, err := sql(context.WithoutCancel(t.Context()), server.URL(), "/* busy */ SELECT count(*) FROM generate_series(1, 10000000000)")
		busy <- err
	}()
	eventually(t, "a busy backend", func() (string, bool) {
		n := mustSQL(t, server.URL(), "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '/* busy%'")
		return n, n == "1"
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-busy; err == nil {
		t.Error("a statement outlived its server")
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := mustSQL(t, server.URL(), "SELECT n FROM kept"); n != "7" {
		t.Errorf("kept %s", n)
	}
}

func TestPausedServerDoesNotAnswerUntilItContinues(t *testing.T) {
	t.Parallel()
	redis, postgres := servicestest.StartRedis(t, nil), servicestest.StartPostgres(t, nil)
	for _, test := range []struct {
		server *services.Server
		ask    func(context.Context) error
	}{
		{redis, func(ctx context.Context) error {
			_, err := services.RedisDo(ctx, redis.Addr(), "PING")
			return err
		}},
		{postgres, func(ctx context.Context) error {
			_, err := sql(ctx, postgres.URL(), "SELECT 1")
			return err
		}},
	} {
		if err := test.server.Pause(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if err := test.ask(ctx); err == nil {
			t.Errorf("%s answered while paused", test.server.Name())
		}
		cancel()
		if err := test.server.Continue(); err != nil {
			t.Fatal(err)
		}
		if err := test.ask(t.Context()); err != nil {
			t.Errorf("%s no longer answers: %v", test.server.Name(), err)
		}
		if err := test.server.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := test.server.Stop(); err != nil {
			t.Errorf("stop while paused: %v", err)
		}
		if test.server.Running() {
			t.Errorf("%s runs after Stop", test.server.Name())
		}
	}
}

func TestPostgresStandbyIsPromoted(t *testing.T) {
	t.Parallel()
	primary := servicestest.StartPostgres(t, nil)
	standby := servicestest.StartStandby(t, primary, nil)
	mustSQL(t, primary.URL(), "ALTER SYSTEM SET synchronous_standby_names = '*'")
	mustSQL(t, primary.URL(), "SELECT pg_reload_conf()")
	eventually(t, "a synchronous standby", func() (string, bool) {
		state := mustSQL(t, primary.URL(), "SELECT sync_state FROM pg_stat_replication")
		return state, state == "sync"
	})
	mustSQL(t, primary.URL(), "CREATE TABLE kept AS SELECT 7 AS n")
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := sql(t.Context(), standby.URL(), "CREATE TABLE refused ()"); err == nil {
		t.Error("a standby took a write")
	}
	if promoted := mustSQL(t, standby.URL(), "SELECT pg_promote()"); promoted != "t" {
		t.Fatalf("pg_promote: %s", promoted)
	}
	if n := mustSQL(t, standby.URL(), "CREATE TABLE taken (); SELECT n FROM kept"); n != "7" {
		t.Errorf("kept %s", n)
	}
}

func TestPgBouncerGivesEachTransactionAConnection(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	database := servicestest.NewDatabase(t, server.URL())
	bouncer := servicestest.StartPgBouncer(t, server, map[string]string{"default_pool_size": "1"})
	through, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	through.Host = bouncer.Addr()
	conns := make([]*pgconn.PgConn, 2)
	backends := make([]string, len(conns))
	for i := range conns {
		if conns[i], err = pgconn.Connect(t.Context(), through.String()); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conns[i].Close(context.WithoutCancel(t.Context())) }()
		results, err := conns[i].Exec(t.Context(), "SELECT pg_backend_pid() || ' ' || current_database()").ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		backends[i] = string(results[0].Rows[0][0])
	}
	if backends[0] != backends[1] {
		t.Errorf("two clients of a pool of one have the backends %q", backends)
	}
	if !strings.HasSuffix(backends[0], strings.TrimPrefix(through.Path, "/")) {
		t.Errorf("%q is not in the database of %s", backends[0], through)
	}
	if err := bouncer.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := bouncer.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustSQL(t, through.String(), "SELECT 1")
}

func TestClusterNoticesALostNodeAndHeals(t *testing.T) {
	t.Parallel()
	cluster := servicestest.StartRedisCluster(t, nil)
	state := func() string {
		return fmt.Sprint(redisDo(t, cluster.Nodes[0], "CLUSTER", "INFO"))
	}
	if err := cluster.Nodes[2].Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first node", func() (string, bool) {
		return state(), strings.Contains(state(), "cluster_state:fail")
	})
	if err := cluster.Nodes[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitWhole(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSentinelsFailOver(t *testing.T) {
	t.Parallel()
	sentinel := servicestest.StartRedisSentinel(t, nil)
	if current, err := sentinel.Current(t.Context()); err != nil || current != sentinel.Master {
		t.Fatalf("before: %v, %v", current, err)
	}
	if err := sentinel.KillMaster(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica", func() (string, bool) {
		_, err := services.RedisDo(t.Context(), sentinel.Replica.Addr(), "SET", "k", "v")
		return fmt.Sprint(err), err == nil
	})
	eventually(t, "the master's address", func() (string, bool) {
		current, err := sentinel.Current(t.Context())
		return fmt.Sprint(err), err == nil && current == sentinel.Replica
	})
}

func TestBloomModuleAnswers(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, &services.RedisOptions{Bloom: true})
	redisDo(t, server, "BF.RESERVE", "f", "0.001", "100", "NONSCALING")
	if first, again := redisDo(t, server, "BF.ADD", "f", "a"), redisDo(t, server, "BF.ADD", "f", "a"); first != int64(1) || again != int64(0) {
		t.Errorf("BF.ADD answered %v and then %v", first, again)
	}
}

func TestRedisReadsFilesOfItsDirectory(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, &services.RedisOptions{
		Files: map[string][]byte{"users": []byte("user default on nopass ~* &* +@all\nuser reader on >word ~* +get\n")},
		Args:  []string{"--aclfile", "users"},
	})
	if users := fmt.Sprint(redisDo(t, server, "ACL", "USERS")); users != "[default reader]" {
		t.Errorf("users %s", users)
	}
}
