package services_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// redisDo fails the test unless the server answers without an error.
func redisDo(t *testing.T, server *services.Server, command ...string) any {
	t.Helper()
	reply, err := services.RedisDo(t.Context(), server.Addr(), command...)
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return reply
}

func TestKilledRedisHasItsDataAfterRestart(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	redisDo(t, server, "SET", "k", "v")
	addr, pid := server.Addr(), server.PID()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if reply, err := services.RedisDo(t.Context(), addr, "PING"); err == nil {
		t.Fatalf("a killed server answered %v", reply)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if server.Addr() != addr || server.PID() == pid {
		t.Errorf("restarted at %s as %d, was at %s as %d", server.Addr(), server.PID(), addr, pid)
	}
	if reply := redisDo(t, server, "GET", "k"); reply != "v" {
		t.Errorf("GET k after the restart: %v", reply)
	}
}

// With appendfsync everysec, Redis answers before it writes while a sync runs.
// A test that kills Redis would then count losses that it caused itself.
func TestKilledRedisHasAllItAcknowledged(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	large := strings.Repeat("x", 60_000)
	acknowledged := 0
	for end := time.Now().Add(1500 * time.Millisecond); acknowledged == 0 || time.Now().Before(end); acknowledged++ {
		redisDo(t, server, "SET", strconv.Itoa(acknowledged%100), strconv.Itoa(acknowledged)+large)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := acknowledged - 1
	if got := redisDo(t, server, "GET", strconv.Itoa(last%100)); got != strconv.Itoa(last)+large {
		t.Errorf("write %d of %d is lost", last, acknowledged)
	}
}

func TestDatabasesShareNoData(t *testing.T) {
	t.Parallel()
	if one, other := servers.Database(t), servers.Database(t); one == other {
		t.Errorf("two tests got %s", one)
	}
}
