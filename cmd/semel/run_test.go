//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// slowTarget is a webhook that announces each request and waits to be released.
type slowTarget struct {
	*httptest.Server
	arrived  chan string // the bodies of the requests
	release  chan struct{}
	accepted atomic.Int64
}

func newSlowTarget(t *testing.T) *slowTarget {
	t.Helper()
	s := &slowTarget{arrived: make(chan string, 100), release: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // the server notices a disconnected sender only after reading the body
		s.arrived <- string(body)
		select {
		case <-s.release:
			s.accepted.Add(1)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func hooksConfig(t *testing.T, s *slowTarget) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"in.jsonl": "{\"id\":1}\n",
		"c.yaml": fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  hooks: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: keys, sink: { webhook: { url: %q, allow_private: true } } }
`, s.URL),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "c.yaml")
}

// add appends to a file.
func add(t *testing.T, name, text string) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestRunDrainsOnTheFirstSignal(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		target := newSlowTarget(t)
		file := hooksConfig(t, target)
		command, stderr := asProgram(t, "run", file, "--admin", "off")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		<-target.arrived
		if err := command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		close(target.release)
		if got := status(t, command); got != 0 || target.accepted.Load() != 1 {
			t.Errorf("%v: status %d, accepted %d: %s", signal, got, target.accepted.Load(), stderr)
		}
		// Messages under way at the signal are recorded as done. They are not sent
		// again before the messages that follow.
		const next = `{"id":2}`
		add(t, filepath.Join(filepath.Dir(file), "in.jsonl"), next+"\n")
		command, stderr = asProgram(t, "run", file, "--admin", "off")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		if body := <-target.arrived; body != next {
			t.Errorf("%s was sent again: %s", body, stderr)
		}
		if err := command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if got := status(t, command); got != 0 || target.accepted.Load() != 2 {
			t.Errorf("%v: status %d, accepted %d: %s", signal, got, target.accepted.Load(), stderr)
		}
	}
}

func TestRunEndsAtOnceOnTheSecondSignal(t *testing.T) {
	t.Parallel()
	target := newSlowTarget(t)
	command, stderr := asProgram(t, "run", hooksConfig(t, target), "--admin", "off")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	<-target.arrived
	ended := make(chan int, 1)
	go func() { ended <- status(t, command) }()
	for n := 0; ; n++ {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil && n == 0 {
			t.Fatal(err)
		}
		select {
		case got := <-ended:
			if got != -int(syscall.SIGTERM) || n == 0 {
				t.Errorf("status %d after %d signals: %s", got, n+1, stderr)
			}
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}
