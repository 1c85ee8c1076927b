package programtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// NotifySocket is a socket of systemd, and the messages that it gets.
type NotifySocket struct {
	conn  *net.UnixConn
	Alive int
	Got   []string // without signs of life
}

// ListenForNotify opens the socket.
func ListenForNotify(t *testing.T, name string) *NotifySocket {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &NotifySocket{conn: conn}
}

// Until reads messages until done, for at most two minutes.
func (n *NotifySocket) Until(t *testing.T, what string, done func() bool) {
	t.Helper()
	if err := n.conn.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for buf := make([]byte, 64); !done(); {
		size, err := n.conn.Read(buf)
		if err != nil {
			t.Fatalf("no %s after %q: %v", what, n.Got, err)
		}
		if state := string(buf[:size]); state == "WATCHDOG=1" {
			n.Alive++
		} else {
			n.Got = append(n.Got, state)
		}
	}
}

// NotifiedConfig returns a socket, whose path must be short, and a configuration.
func NotifiedConfig(t *testing.T, keys, follow string) (socket, config string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "semel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	return filepath.Join(dir, "notify"), WriteFile(t, filepath.Join(dir, "semel.yaml"), fmt.Sprintf(`stores: { keys: { %s } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: %s } }, key: { id: .id }, window: 1h, store: keys, sink: { file: { path: out } }, parked: { path: parked } }
`, keys, follow))
}

// RunNotified starts the program as systemd does.
func RunNotified(t *testing.T, socket, verb, config string) *exec.Cmd {
	t.Helper()
	name, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.CommandContext(t.Context(), name, verb, config, "--admin", "off")
	program.Env = append(os.Environ(), Variable+"=1", "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=150000")
	program.Stderr = t.Output()
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	return program
}
