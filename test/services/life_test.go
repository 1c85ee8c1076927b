package services_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// runs reports whether a process exists and is not a zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// descendants returns a process and all its descendants.
func descendants(t *testing.T, pid int) []int {
	t.Helper()
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		if err != nil {
			t.Fatal(err)
		}
		for _, list := range lists {
			content, _ := os.ReadFile(list)
			for child := range strings.FieldsSeq(string(content)) {
				n, err := strconv.Atoi(child)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, n)
			}
		}
	}
	return all
}

// TestServersEndWithTheirTest starts this test binary again. The binary starts
// servers, pauses one of them and waits to be killed.
func TestServersEndWithTheirTest(t *testing.T) {
	t.Parallel()
	servicestest.StartRedis(t, nil) // skips the test here if nothing is installed
	owner := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProcessThatOwnsServers$")
	owner.Env = append(os.Environ(), "SEMEL_SERVICES_OWNER=yes", "SEMEL_SERVICES_DIR="+openDir(t))
	said, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var members []int
	for field := range strings.FieldsSeq(line) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("the owner said %q", line)
		}
		members = append(members, descendants(t, pid)...)
	}
	if len(members) < 7 { // four servers, and PostgreSQL has several processes
		t.Fatalf("the owner's servers are the processes %v", members)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	for _, pid := range members {
		eventually(t, fmt.Sprintf("process %d of %v", pid, members), func() (string, bool) {
			return "there", !runs(pid)
		})
	}
}

func TestHelperProcessThatOwnsServers(t *testing.T) {
	if os.Getenv("SEMEL_SERVICES_OWNER") == "" {
		t.Skip("runs in a process of its own, for TestServersEndWithTheirTest")
	}
	redis, kafka := servicestest.StartRedis(t, nil), servicestest.StartKafka(t, nil)
	postgres, paused := servicestest.StartPostgres(t, nil), servicestest.StartPostgres(t, nil)
	// A backend that refuses a connection, because PostgreSQL is starting, gets no signals
	// from it. If it is paused, PostgreSQL waits for it for ever. It has no title yet.
	eventually(t, "backends that refuse connections", func() (string, bool) {
		for _, pid := range descendants(t, paused.PID())[1:] {
			if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && !bytes.HasPrefix(line, []byte("postgres: ")) {
				return "there", false
			}
		}
		return "", true
	})
	if err := paused.Pause(); err != nil {
		t.Fatal(err)
	}
	fmt.Println(redis.PID(), kafka.PID(), postgres.PID(), paused.PID())
	<-t.Context().Done()
}

func TestServersShareNoData(t *testing.T) {
	t.Parallel()
	const many = 8
	started := make([]*services.Server, many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			server, err := services.StartRedis(t.Context(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			started[i] = server
		})
	}
	all.Wait()
	t.Cleanup(func() {
		for _, server := range started {
			if server != nil {
				_ = server.Close()
			}
		}
	})
	if t.Failed() {
		return
	}
	for i, server := range started {
		redisDo(t, server, "SET", "k", strconv.Itoa(i))
	}
	if err := started[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(started[0].Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a closed server: %v", err)
	}
	for i, server := range started[1:] {
		if reply := redisDo(t, server, "GET", "k"); reply != strconv.Itoa(i+1) {
			t.Errorf("server %d has %v", i+1, reply)
		}
	}
}

func TestPortOfAStoppedServerIsNotGivenToAnother(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if claim, err := services.ClaimPort(server.Port()); err == nil {
		t.Errorf("another start may have it: %v", claim.Close())
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a claim of the port of a closed server", func() (string, bool) { // a child may have the claim until it executes its program
		claim, err := services.ClaimPort(server.Port())
		return fmt.Sprint(err), err == nil && claim.Close() == nil
	})
}

func TestRestartOnTakenPortFails(t *testing.T) {
	t.Parallel()
	for _, server := range []*services.Server{servicestest.StartRedis(t, nil), servicestest.StartPostgres(t, nil)} {
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		thief, err := net.Listen("tcp4", server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "port is taken") {
			t.Errorf("%s on a taken port: %v", server.Name(), err)
		}
		if server.Running() {
			t.Errorf("%s runs", server.Name())
		}
		if err := thief.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a start on the port", func() (string, bool) { // a child may have the port until it executes its program
			err := server.Restart(t.Context())
			return fmt.Sprint(err), err == nil
		})
	}
}

func TestRestartDetectsAForeignServerOnItsPort(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]*services.Server{
		{servicestest.StartRedis(t, nil), servicestest.StartRedis(t, nil)},
		{servicestest.StartPostgres(t, nil), servicestest.StartPostgres(t, nil)},
	} {
		pair[0].MoveTo(pair[1].Port())
		if err := pair[0].Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "port is taken") {
			t.Errorf("%s started on the port of another: %v", pair[0].Name(), err)
		}
	}
}

func TestFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	dir := ownTempDir(t)
	servicestest.StartRedis(t, nil) // skips the test here if nothing is installed
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx  context.Context
		args []string
		want string
	}{
		{t.Context(), []string{"--no-such-option", "1"}, "no-such-option"},
		{canceled, nil, "context canceled"},
	} {
		before := contents(t, dir)
		if _, err := services.StartRedis(test.ctx, &services.RedisOptions{Args: test.args}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want an error with %q", err, test.want)
		}
		if after := contents(t, dir); !slices.Equal(after, before) {
			t.Errorf("%q became %q", before, after)
		}
	}
}

func TestStartRemovesFilesOfAKilledTest(t *testing.T) {
	dir := ownTempDir(t)
	live := servicestest.StartRedis(t, nil)
	used, remove, err := services.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	orphan, run, foreign := filepath.Join(dir, "semel-server-orphan"), filepath.Join(dir, "semel-run-orphan"), filepath.Join(dir, "other")
	for _, name := range []string{orphan, run, foreign} {
		if err := os.MkdirAll(filepath.Join(name, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{orphan, run, foreign, used, live.Dir()} {
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
	}
	if err := servicestest.StartRedis(t, nil).Close(); err != nil {
		t.Fatal(err)
	}
	left := []string{filepath.Base(foreign), filepath.Base(used), filepath.Base(live.Dir())}
	slices.Sort(left)
	if found := contents(t, dir); !slices.Equal(found, left) {
		t.Errorf("found %q, want %q", found, left)
	}
	if err := remove(); err != nil || slices.Contains(contents(t, dir), filepath.Base(used)) {
		t.Errorf("%s is still there: %v", used, err)
	}
}

// ownTempDir gives this test a directory for temporary files that other users
// can enter.
func ownTempDir(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	t.Setenv("SEMEL_SERVICES_DIR", dir)
	return dir
}

// openDir is t.TempDir for servers, which run as another user.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "semel-test-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func contents(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names
}

// TestMissingProgramSkipsOrFailsATest runs a test of this binary without
// installed servers.
func TestMissingProgramSkipsOrFailsATest(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule string
		ok   bool
		want string
	}{
		{"", true, "--- SKIP: TestKilledRedisHasItsDataAfterRestart"},
		{"required", false, "--- FAIL: TestKilledRedisHasItsDataAfterRestart"},
	} {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestKilledRedisHasItsDataAfterRestart$")
		child.Env = append(os.Environ(), "SEMEL_SERVICES="+test.rule, "SEMEL_REDIS="+services.Valkey9, "SEMEL_SERVICES_CACHE="+t.TempDir())
		output, err := child.CombinedOutput()
		if test.ok != (err == nil) || !strings.Contains(string(output), test.want) || !strings.Contains(string(output), "go run ./tools/services install valkey-9") {
			t.Errorf("with SEMEL_SERVICES=%s: %v, %s", test.rule, err, output)
		}
	}
}

func TestUnknownNameIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := services.Find("redis-5"); err == nil || errors.Is(err, services.ErrNotInstalled) || !strings.Contains(err.Error(), services.Redis70) {
		t.Errorf("got %v, want an error that lists the names and is not ErrNotInstalled", err)
	}
	if _, err := services.SelectUnits([]string{"redis-5"}); err == nil {
		t.Error("a unit that is not there was selected")
	}
}

func TestInstallationSelectsPackagesInOrder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		names []string
		want  string
	}{
		{[]string{"promtool", "standby", "postgres-15"}, "postgres-15 promtool"},
		{nil, "curl elasticmq java-17 kafka-4.3 maven nats-2 pgbouncer postgres-15 promtool python-3 rabbitmq-3.10 redis-7.0 redisbloom"},
	} {
		names, err := services.SelectPackages(test.names)
		if got := strings.Join(names, " "); err != nil || got != test.want {
			t.Errorf("%q selects %q, want %q, %v", test.names, got, test.want, err)
		}
	}
	if _, err := services.SelectPackages([]string{"redis-5"}); err == nil {
		t.Error("a package that is not there was selected")
	}
}

func TestSelectedUnitsComeWithTheirDependencies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		names []string
		want  string
	}{
		{[]string{"pgbouncer"}, "postgres-15 pgbouncer"},
		{[]string{"kafka-cluster"}, "kafka-cluster"},
		{[]string{"redis-cluster", "redis-7.0"}, "redis-7.0 redis-cluster"},
	} {
		units, err := services.SelectUnits(test.names)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, unit := range units {
			names = append(names, unit.Name)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%q selects %q, want %q", test.names, got, test.want)
		}
	}
}
