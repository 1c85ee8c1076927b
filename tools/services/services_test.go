//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestMain is the command itself where a test, or the command, started it so.
func TestMain(m *testing.M) {
	if os.Getenv("SEMEL_SERVICES_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// command runs the command as a process of its own.
func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	// Also when the test has ended, and its context with it, to clean up.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SEMEL_SERVICES_MAIN=yes")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	return out.String(), complaint.String(), err
}

// started leaves a Redis running and returns its address and its holder.
func started(t *testing.T, dir string) (addr string, holder int) {
	t.Helper()
	stdout, stderr, err := command(t, "start", "-detach", "-state", dir, services.Redis70)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	addr, ok := strings.CutPrefix(strings.TrimSpace(stdout), "export SEMEL_TEST_REDIS='redis://")
	if !ok {
		t.Fatalf("it printed %q", stdout)
	}
	if holder, err = holderOf(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if free(t, dir) {
			return // the test stopped it
		}
		if _, stderr, err := command(t, "stop", "-state", dir); err != nil {
			t.Errorf("%v\n%s", err, stderr)
		}
	})
	return strings.TrimSuffix(addr, "'"), holder
}

func answers(t *testing.T, addr string) bool {
	t.Helper()
	_, err := services.RedisDo(t.Context(), addr, "PING")
	return err == nil
}

func TestStopEndsItsOwnServersOnly(t *testing.T) {
	t.Parallel()
	private := servicestest.StartRedis(t, nil)
	one, other := t.TempDir(), t.TempDir()
	oneAddr, _ := started(t, one)
	otherAddr, _ := started(t, other)
	if _, stderr, err := command(t, "start", "-state", one); err == nil || !strings.Contains(stderr, "already started") {
		t.Errorf("a second start: %v, %s", err, stderr)
	}
	if _, stderr, err := command(t, "stop", "-state", one); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if answers(t, oneAddr) {
		t.Error("a stopped server answers")
	}
	if !answers(t, otherAddr) || !answers(t, private.Addr()) {
		t.Error("stop ended a server that it did not start")
	}
	if _, stderr, err := command(t, "stop", "-state", one); err == nil || !strings.Contains(stderr, "nothing was started") {
		t.Errorf("a second stop: %v, %s", err, stderr)
	}
}

func TestServersEndWhenTheirHolderIsKilled(t *testing.T) {
	t.Parallel()
	servicestest.StartRedis(t, nil) // skip here where nothing is installed
	dir := t.TempDir()
	addr, holder := started(t, dir)
	if err := syscall.Kill(holder, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// The server may be gone a little before the last of the holder is.
	eventually(t, "a killed holder", func() bool { return !answers(t, addr) && free(t, dir) })
	if _, stderr, err := command(t, "stop", "-state", dir); err == nil || !strings.Contains(stderr, "nothing was started") {
		t.Errorf("stop: %v, %s", err, stderr)
	}
	// What it left does not stand in the way of a new start.
	if again, _ := started(t, dir); !answers(t, again) {
		t.Error("the new server does not answer")
	}
}

func TestStopSparesAProcessThatHasTheHoldersId(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stranger := exec.CommandContext(t.Context(), "sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	if err := put(dir, holderFile, strconv.Itoa(stranger.Process.Pid)+" started at 1"); err != nil {
		t.Fatal(err)
	}
	// A new holder has the lock, and has not written its own id yet.
	held, err := services.Lock(filepath.Join(dir, lockFile), false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	if _, stderr, err := command(t, "stop", "-state", dir); err == nil || !strings.Contains(stderr, "has ended") {
		t.Errorf("stop: %v, %s", err, stderr)
	}
	if err := stranger.Process.Kill(); err != nil {
		t.Errorf("the stranger: %v", err)
	}
	var ended *exec.ExitError
	if err := stranger.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the stranger was not ended by us: %v", err)
	}
}

// free reports whether no holder has the lock.
func free(t *testing.T, dir string) bool {
	t.Helper()
	held, err := services.Lock(filepath.Join(dir, lockFile), false)
	return err == nil && held.Close() == nil
}

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for timeout := time.After(time.Minute); !happened(); {
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("%s is still there after a minute", what)
		}
	}
}

func TestRunHandsTheAddressesAndTheStatusOver(t *testing.T) {
	t.Parallel()
	servicestest.StartRedis(t, nil) // skip here where nothing is installed
	stdout, _, err := command(t, "run", services.Redis70, "--", "sh", "-c", "echo $SEMEL_TEST_REDIS; touch $TMPDIR/file; echo $GOTMPDIR; exit 7")
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 7 {
		t.Errorf("the status: %v", err)
	}
	stdout, temporary, _ := strings.Cut(strings.TrimSpace(stdout), "\n")
	addr, ok := strings.CutPrefix(stdout, "redis://")
	if !ok || !filepath.IsAbs(temporary) {
		t.Fatalf("the command printed %q and %q", stdout, temporary)
	}
	if _, err := os.Stat(temporary); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary files of the command are still there: %v", err)
	}
	if answers(t, addr) {
		t.Error("the server outlived the command")
	}
}

func TestInterruptionOfRunEndsTheCommandItsChildrenAndTheServers(t *testing.T) {
	t.Parallel()
	servicestest.StartRedis(t, nil) // skip here where nothing is installed
	run := exec.CommandContext(t.Context(), os.Args[0], "run", services.Redis70, "--", "sh", "-c", "echo $SEMEL_TEST_REDIS $$ other=$SEMEL_TEST_POSTGRES; sleep 600; true")
	run.Env = append(os.Environ(), "SEMEL_SERVICES_MAIN=yes", "SEMEL_TEST_REDIS=redis://other:1", "SEMEL_TEST_POSTGRES=postgres://other:2")
	stdout, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	var group int
	if _, err := fmt.Fscanf(stdout, "redis://%s %d other=\n", &addr, &group); err != nil {
		t.Fatal(err)
	}
	if !answers(t, addr) {
		t.Errorf("the server at %s does not answer", addr)
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var failed *exec.ExitError
	if err := run.Wait(); !errors.As(err, &failed) {
		t.Errorf("the status of an interrupted run: %v", err)
	}
	if answers(t, addr) {
		t.Error("the server outlived the command")
	}
	eventually(t, "the child of the command", func() bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) })
}

func TestUsageErrorsHaveTheirOwnExitStatus(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"begin"}, {"run", services.Redis70}, {"run", "--"}, {"stop", "redis"}, {"start", "-detached"}} {
		_, stderr, err := command(t, args...)
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.ExitCode() != 2 || !strings.Contains(strings.ToLower(stderr), "usage") {
			t.Errorf("%q: %v, %q", args, err, stderr)
		}
	}
}

func TestListNamesEveryUnit(t *testing.T) {
	t.Parallel()
	stdout, _, err := command(t, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range services.Units() {
		if !strings.Contains(stdout, unit.Name) || !strings.Contains(stdout, unit.Variable) {
			t.Errorf("%s is missing in\n%s", unit.Name, stdout)
		}
	}
}
