package open_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// The directory has a path that does not fit into the address of a socket.
func TestALeftoverSocketIsReplaced(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("a-long-name/", 12))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := programtest.AdminConfig(t, dir)
	socket := filepath.Join(dir, "keys", "SOCKET")
	for attempt := range 2 { // the second one with the socket of the first
		running := programtest.Start(t, "parked", "run", file)
		// The message without a key may be parked before the others are done.
		for late := time.Now().Add(programtest.TroubleWithin); ; <-time.After(20 * time.Millisecond) {
			got := programtest.Run(t, "", "why", "order-1", "--config", file)
			if got.Status == term.ExitDone && strings.Contains(got.Stdout, "state        done") && strings.Contains(got.Stdout, "the journal begins at the start of the process") {
				break
			}
			if time.Now().After(late) {
				t.Fatalf("attempt %d: %+v", attempt, got)
			}
		}
		if err := running.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = running.Wait() // it was killed
		if _, err := os.Lstat(socket); err != nil {
			t.Errorf("the killed process left no socket: %v", err)
		}
		if got := programtest.Run(t, "", "why", "order-1", "--config", file); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "state        done") || strings.Contains(got.Stdout, "journal") {
			t.Errorf("after the kill: %+v", got)
		}
		// The next attempt parks this message.
		programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), programtest.ReadFile(t, filepath.Join(dir, "in.jsonl"))+"{\"y\":1}\n")
	}
}

// Without root the test sees only the mode of the socket.
func TestSocketIsOpenToItsUserOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.Background(t, "run", programtest.AdminConfig(t, dir))
	socket := filepath.Join(dir, "keys", "SOCKET")
	info, err := os.Lstat(socket)
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("%v %v", info, err)
	}
	if os.Getuid() != 0 {
		return
	}
	// Even with all modes open, the process asks the system who is at the other end.
	for at := socket; at != os.TempDir(); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // the thread of another user ends with this goroutine
		const other = 65534
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), other, ^uintptr(0)); errno != 0 {
			got <- errno.Error()
			return
		}
		got <- statusThrough(socket)
	}()
	if got := <-got; !strings.HasPrefix(got, "403 Forbidden the process runs as user 0 and answers only that user and root, not user 65534") {
		t.Errorf("%s", got)
	}
	if got := statusThrough(socket); !strings.HasPrefix(got, "200 OK {") {
		t.Errorf("%s", got)
	}
}

// TestAnswersOfAForeignSocketAreNotTrusted puts the socket of another user into a
// directory that every user can write.
func TestAnswersOfAForeignSocketAreNotTrusted(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		if os.Getenv("SEMEL_SERVICES") == "required" {
			t.Fatal("only root can listen as another user: run the tests as root")
		}
		t.Skip("only root can listen as another user: sudo go test ./internal/cli/open -run " + t.Name())
	}
	dir := t.TempDir()
	programtest.Background(t, "run", programtest.AdminConfig(t, dir))
	keys := filepath.Join(dir, "keys")
	for at := keys; at != os.TempDir(); at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	const other = 65534
	type listening struct {
		net.Listener
		err error
	}
	opened := make(chan listening, 1)
	go func() {
		runtime.LockOSThread() // the thread of another user ends with this goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), other, ^uintptr(0)); errno != 0 {
			opened <- listening{nil, errno}
			return
		}
		if err := os.Remove(filepath.Join(keys, "SOCKET")); err != nil {
			opened <- listening{nil, err}
			return
		}
		listener, err := net.Listen("unix", filepath.Join(keys, "SOCKET"))
		opened <- listening{listener, err}
	}()
	foreign := <-opened
	if foreign.err != nil {
		t.Fatal(foreign.err)
	}
	asked := make(chan error, 1)
	go func() { // any answer that is not JSON
		asked <- http.Serve(foreign, http.NotFoundHandler())
	}()
	t.Cleanup(func() {
		_ = foreign.Close() // Serve returns why it ended
		<-asked
	})
	got := programtest.Run(t, "", "keys", "ls", "--store", keys)
	got.Check(t, term.ExitFailed, "SOCKET belongs to a process of user 65534, who does not own the directory: its answers are not trusted")
	if got.Stdout != "" {
		t.Errorf("a header above an error: %q", got.Stdout)
	}
	if err := os.Chown(keys, other, -1); err != nil {
		t.Fatal(err)
	}
	got = programtest.Run(t, "", "keys", "ls", "--store", keys) // the owner's process is asked
	got.Check(t, term.ExitFailed, "SOCKET/ask answers 404")
	if got.Stdout != "" {
		t.Errorf("a header above an error: %q", got.Stdout)
	}
}

// statusThrough asks for the status on the thread of the caller.
func statusThrough(socket string) string {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: semel\r\nConnection: close\r\n\r\n"); err != nil {
		return err.Error()
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return response.Status + " " + string(text)
}
