//go:build unix

package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// patience is how long a step may take on a busy machine.
const patience = 3 * time.Minute

// server is semel serve in a process of its own, which can be started again.
type server struct {
	t    *testing.T
	url  string
	args []string

	mu    sync.Mutex // guards the fields below
	cmd   *exec.Cmd
	ended chan struct{}
	log   *safeLog
}

// newServer starts a server, which ends with the test.
func newServer(t *testing.T) *server {
	t.Helper()
	address := servicestest.FreeAddr(t)
	s := &server{t: t, url: "http://" + address, log: &safeLog{}, args: []string{
		"serve", "--listen", address, "--store", filepath.Join(t.TempDir(), "keys"), "--admin", "off",
	}}
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("the server said:\n%s", s.log.text())
		}
	})
	s.start()
	return s
}

// start starts the process, and returns when it answers.
func (s *server) start() {
	s.t.Helper()
	program, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.cmd, s.ended = exec.Command(program, s.args...), make(chan struct{})
	cmd, ended := s.cmd, s.ended
	cmd.Env = append(os.Environ(), programtest.Variable+"=1")
	cmd.Stderr, cmd.Stdout = s.log, s.log
	err = cmd.Start()
	s.mu.Unlock()
	if err != nil {
		s.t.Fatal(err)
	}
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its end is part of some cases
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); ; {
		if answer, err := http.Get(s.url + "/v1/limits"); err == nil {
			_ = answer.Body.Close()
			return
		}
		select {
		case <-tick.C:
		case <-ended:
			s.t.Fatalf("semel serve ended:\n%s", s.log.text())
		case <-late:
			s.t.Fatalf("semel serve does not answer:\n%s", s.log.text())
		}
	}
}

func (s *server) signal(what syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.cmd.Process.Signal(what) // it may have ended
}

// wait waits until the process has ended.
func (s *server) wait() {
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	<-ended
}

func (s *server) kill() {
	s.signal(syscall.SIGKILL)
	s.wait()
}

// drain tells the process to end, and returns when it refuses new claims or has ended.
func (s *server) drain() {
	s.t.Helper()
	s.signal(syscall.SIGTERM)
	for n := 0; ; n++ {
		answer, err := http.Post(s.url+"/v1/claim", "application/json", strings.NewReader(fmt.Sprintf(`{"scope":"drain","id":%d,"done":true}`, n)))
		if err != nil {
			return
		}
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusServiceUnavailable {
			return
		}
	}
}

// state asks for the state of a key.
func (s *server) state(scope string, id json.RawMessage) (string, error) {
	key := fmt.Sprintf(`{"items":[{"scope":%q,"id":%s}]}`, scope, id)
	if encoded, ok := base64ID(id); ok {
		key = fmt.Sprintf(`{"items":[{"scope":%q,"id_base64":%q}]}`, scope, encoded)
	}
	answer, err := http.Post(s.url+"/v1/lookup", "application/json", strings.NewReader(key))
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	var found struct{ Items []struct{ State string } }
	if err := json.Unmarshal(text, &found); err != nil || len(found.Items) != 1 {
		return "", fmt.Errorf("lookup: status %d, %s", answer.StatusCode, text)
	}
	return found.Items[0].State, nil
}

// safeLog is what processes wrote.
type safeLog struct {
	mu  sync.Mutex // guards all
	all bytes.Buffer
}

// Write implements io.Writer.
func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *safeLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
