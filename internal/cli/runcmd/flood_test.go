package runcmd_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// Senders send more than in_flight.bytes while the target is stuck, and others keep
// connections open with requests that never become whole. The senders beyond the bound get
// a 503 and send again. Every message has its effect once.
func TestAFloodOfRequestsLosesNothing(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var mu sync.Mutex
	effects := map[string]int{}
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-release
		mu.Lock()
		defer mu.Unlock()
		effects[r.Header.Get("Idempotency-Key")]++
	}))
	t.Cleanup(target.Close)
	listen := servicestest.FreeAddr(t)
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: %s/keys } } }
pipelines:
  hooks:
    source: { http: { listen: "%s" } }
    key: { id: .id }
    store: keys
    in_flight: { bytes: 1MiB }
    parallel: 16
    sink: { webhook: { url: "%s", allow_private: true, timeout: 10m } }
    lease: 20m
`, dir, listen, target.URL))
	stop := programtest.BackgroundUntil(t, "running", programtest.NoEnv, "run", file, "--admin", "off")
	for i := range 200 {
		conn, err := net.Dial("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		part := "POST / HTTP/1.1\r\nHost: x\r\nX-Slow: "
		if i%2 == 0 {
			part = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n{"
		}
		if _, err := io.WriteString(conn, part); err != nil {
			t.Fatal(err)
		}
	}
	const senders = 40
	var flood sync.WaitGroup
	full := sync.OnceFunc(func() { close(release) })
	for i := range senders {
		flood.Go(func() {
			body := fmt.Sprintf(`{"id":"m%d","filler":"%s"}`, i, strings.Repeat("x", 200<<10))
			for beat := time.NewTicker(20 * time.Millisecond); t.Context().Err() == nil; <-beat.C {
				answer, err := http.Post("http://"+listen, "application/json", strings.NewReader(body))
				if err != nil {
					continue // the answer came before the body was sent
				}
				text, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				switch answer.StatusCode {
				case http.StatusOK:
					return
				case http.StatusServiceUnavailable:
					if answer.Header.Get("Retry-After") == "" || !strings.Contains(string(text), "too many requests are in progress") {
						t.Errorf("503 %s, Retry-After %q", text, answer.Header.Get("Retry-After"))
					}
					full()
				default:
					t.Errorf("%s %s", answer.Status, text)
					return
				}
			}
		})
	}
	flood.Wait()
	if len(effects) != senders {
		t.Errorf("%d messages had an effect, want %d", len(effects), senders)
	}
	for id, times := range effects {
		if times != 1 {
			t.Errorf("%s had its effect %d times", id, times)
		}
	}
	stop().Check(t, term.ExitDone, "running")
}
