package runcmd_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/programtest"
)

// The program tells systemd when its pipelines are open, when it drains, and that it lives. It is
// not ready before a server of a pipeline has answered.
func TestRunNotifiesSystemd(t *testing.T) {
	t.Parallel()
	const whole = "READY=1 STOPPING=1"
	for _, c := range []struct{ name, keys, follow, want string }{
		{"a path", "embedded: { path: keys }", "true", whole},
		{"@abstract", "memory: {}", "true", whole},
		{"a server that is down", `postgres: { dsn: "postgres://app:x@127.0.0.1:1/x" }`, "true", "STOPPING=1"},
		{"files that end", "memory: {}", "false", whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			socket, config := programtest.NotifiedConfig(t, c.keys, c.follow)
			if name, abstract := strings.CutPrefix(c.name, "@"); abstract {
				socket = "@" + name + socket
			}
			systemd := programtest.ListenForNotify(t, socket)
			program := programtest.RunNotified(t, socket, "run", config)
			if c.follow == "true" {
				systemd.Until(t, "three signs of life", func() bool {
					return systemd.Alive >= 3 && (c.want != whole || slices.Contains(systemd.Got, "READY=1"))
				})
				if err := program.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			systemd.Until(t, "end", func() bool { return slices.Contains(systemd.Got, "STOPPING=1") })
			if err := program.Wait(); err != nil || strings.Join(systemd.Got, " ") != c.want {
				t.Errorf("%q, want %q: %v", systemd.Got, c.want, err)
			}
		})
	}
}

// The socket of systemd is full at the end of the run. Nothing waits for it for long.
func TestRunEndsAlthoughSystemdReadsNothing(t *testing.T) {
	t.Parallel()
	socket, config := programtest.NotifiedConfig(t, "memory: {}", "false")
	programtest.ListenForNotify(t, socket)
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	for err == nil {
		full := raw.Write(func(fd uintptr) bool {
			_, err = syscall.Write(int(fd), []byte("x")) // it does not wait
			return true
		})
		err = errors.Join(full, err)
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	program := programtest.RunNotified(t, socket, "run", config)
	hangs := time.AfterFunc(2*time.Minute, func() { _ = program.Process.Kill() })
	defer hangs.Stop()
	if err := program.Wait(); err != nil {
		t.Error(err)
	}
}
