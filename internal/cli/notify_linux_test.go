package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// notified is a socket of systemd, and the messages that it gets.
type notified struct {
	conn  *net.UnixConn
	alive int
	got   []string // without signs of life
}

func listenForNotes(t *testing.T, name string) *notified {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &notified{conn: conn}
}

// until reads messages until done, for at most two minutes.
func (n *notified) until(t *testing.T, what string, done func() bool) {
	t.Helper()
	if err := n.conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 64); !done(); {
		size, err := n.conn.Read(buf)
		if err != nil {
			t.Fatalf("no %s after %q: %v", what, n.got, err)
		}
		if state := string(buf[:size]); state == "WATCHDOG=1" {
			n.alive++
		} else {
			n.got = append(n.got, state)
		}
	}
}

// The program tells systemd that its pipelines are open, that it lives, and that it ends.
// It is not ready before a server of a pipeline has answered.
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
			socket, config := notifiedConfig(t, c.keys, c.follow)
			if name, abstract := strings.CutPrefix(c.name, "@"); abstract {
				socket = "@" + name + socket
			}
			systemd := listenForNotes(t, socket)
			program := runNotified(t, socket, "run", config)
			if c.follow == "true" {
				systemd.until(t, "three signs of life", func() bool {
					return systemd.alive >= 3 && (c.want != whole || slices.Contains(systemd.got, "READY=1"))
				})
				if err := program.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			systemd.until(t, "end", func() bool { return slices.Contains(systemd.got, "STOPPING=1") })
			if err := program.Wait(); err != nil || strings.Join(systemd.got, " ") != c.want {
				t.Errorf("%q, want %q: %v", systemd.got, c.want, err)
			}
		})
	}
}

// The unit of the proxy is as that of pipelines. It is ready when its store is open.
func TestProxyNotifiesSystemd(t *testing.T) {
	t.Parallel()
	for keys, want := range map[string]string{
		"embedded: { path: keys }":                            "READY=1 STOPPING=1",
		`postgres: { dsn: "postgres://app:x@127.0.0.1:1/x" }`: "STOPPING=1",
	} {
		socket, config := notifiedConfig(t, keys, "true")
		writeFile(t, config, "stores: { keys: { "+keys+" } }\nproxy: { listen: '127.0.0.1:0', upstream: 'http://127.0.0.1:1', store: keys, scope: global }\n")
		systemd := listenForNotes(t, socket)
		program := runNotified(t, socket, "proxy", config)
		systemd.until(t, "three signs of life", func() bool {
			return systemd.alive >= 3 && (want == "STOPPING=1" || slices.Contains(systemd.got, "READY=1"))
		})
		if err := program.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		systemd.until(t, "end", func() bool { return slices.Contains(systemd.got, "STOPPING=1") })
		if err := program.Wait(); err != nil || strings.Join(systemd.got, " ") != want {
			t.Errorf("%s: %q, want %q: %v", keys, systemd.got, want, err)
		}
	}
}

// The socket of systemd is full at the end of the run. Nothing waits for it for long.
func TestRunEndsAlthoughSystemdReadsNothing(t *testing.T) {
	t.Parallel()
	socket, config := notifiedConfig(t, "memory: {}", "false")
	listenForNotes(t, socket)
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for err == nil {
		if err = conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err == nil {
			_, err = conn.Write([]byte("x"))
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	program := runNotified(t, socket, "run", config)
	hangs := time.AfterFunc(2*time.Minute, func() { _ = program.Process.Kill() })
	defer hangs.Stop()
	if err := program.Wait(); err != nil {
		t.Error(err)
	}
}

// notifiedConfig returns a socket, whose path must be short, and a configuration.
func notifiedConfig(t *testing.T, keys, follow string) (socket, config string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "semel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	return filepath.Join(dir, "notify"), writeFile(t, filepath.Join(dir, "semel.yaml"), fmt.Sprintf(`stores: { keys: { %s } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: %s } }, key: { id: .id }, window: 1h, store: keys, sink: { file: { path: out } }, parked: { path: parked } }
`, keys, follow))
}

// runNotified starts the program as systemd does.
func runNotified(t *testing.T, socket, verb, config string) *exec.Cmd {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.CommandContext(t.Context(), name, verb, config, "--admin", "off")
	program.Env = append(os.Environ(), programVariable+"=1", "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=150000")
	program.Stderr = t.Output()
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	return program
}
