package httpsrc

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// dial sends the beginning of a request.
func dial(t *testing.T, s *Source, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// trickle sends a byte now and then until the other end closes the connection. It returns
// the status of the answer, or 0.
func trickle(t *testing.T, conn net.Conn) int {
	t.Helper()
	var sending sync.WaitGroup
	defer sending.Wait()
	done := make(chan struct{})
	defer close(done)
	sending.Go(func() {
		for beat := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-done:
				return
			case <-beat.C:
				_, _ = conn.Write([]byte("x")) // fails once the other end has closed
			}
		}
	})
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Error(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Error("a sender that trickles keeps its connection")
		}
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestSendersThatTrickleAreCutOff(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Wait: time.Minute, MaxBody: 1000, patience: time.Second})
	var senders sync.WaitGroup
	senders.Go(func() { // its body has arrived: the limit of time for it has no meaning
		for t.Context().Err() == nil {
			resp, err := http.Post(address(s), "text/plain", strings.NewReader("m"))
			if err != nil {
				continue // a busy machine did not read the request in time
			}
			resp.Body.Close()
			if resp.StatusCode == http.StatusServiceUnavailable {
				continue
			}
			if resp.StatusCode != http.StatusOK {
				t.Errorf("a request that waits for its answer: %s", resp.Status)
			}
			return
		}
	})
	items, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := s.held.Load()
	var slow sync.WaitGroup
	for part, want := range map[string]int{
		"X-Long: ":                                  0,
		"Content-Length: 1000\r\n\r\n":              http.StatusServiceUnavailable,
		"Transfer-Encoding: chunked\r\n\r\n3e8\r\n": http.StatusServiceUnavailable,
	} {
		conn := dial(t, s, "POST / HTTP/1.1\r\nHost: x\r\n"+part)
		slow.Go(func() {
			if status := trickle(t, conn); status != want && status != 0 {
				t.Errorf("%q that trickles was answered %d, want %d", part, status, want)
			}
		})
	}
	slow.Wait()
	if now := s.held.Load(); now != before {
		t.Errorf("%d bytes are held after the senders were cut off, want %d", now, before)
	}
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	senders.Wait()
}

// Bodies that were announced and do not arrive take no memory from others.
func TestBodiesThatDoNotArriveReserveNoMemory(t *testing.T) {
	t.Parallel()
	s := open(t, Options{MaxBytes: 1 << 20, Wait: time.Minute})
	for range 20 {
		dial(t, s, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		if resp, text := post(t, s, strings.Repeat("x", 200<<10)); resp.StatusCode != 200 {
			t.Errorf("%s %s", resp.Status, text)
		}
	})
	items, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	sender.Wait()
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 8
	s := open(t, Options{most: most, Wait: time.Minute})
	var idle []net.Conn
	for range most {
		idle = append(idle, dial(t, s, ""))
	}
	for s.conns.Load() < most { // the last ones are on their way
		if t.Context().Err() != nil {
			t.Fatal("not all connections were accepted")
		}
	}
	extra := dial(t, s, "")
	if n, err := extra.Read(make([]byte, 1)); err == nil {
		t.Errorf("a connection beyond the bound got %d bytes", n)
	}
	for _, conn := range idle[:most/2] {
		conn.Close()
	}
	for s.conns.Load() > most/2 {
		if t.Context().Err() != nil {
			t.Fatal("closed connections still count")
		}
	}
	conn := dial(t, s, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || !resp.Close {
		t.Errorf("%s, closes %v: want an answer, and room for others after it", resp.Status, resp.Close)
	}
}

// A sender that takes many streams on few connections, as HTTP/2 can, gets a 503.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, Options{most: 4, Wait: time.Minute})
	s.requests.Add(4)
	resp, _ := post(t, s, "m")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("%s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
	s.requests.Add(-4)
	if n := s.requests.Load(); n != 0 {
		t.Errorf("%d requests count after their answers", n)
	}
}

func TestBodiesAreReadWhole(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Wait: time.Minute})
	for _, size := range []int{0, 1, chunk - 1, chunk, chunk + 1, 3*chunk + 7, 1 << 20} {
		for _, chunked := range []bool{false, true} {
			body := strings.Repeat("x", size)
			var sender sync.WaitGroup
			sender.Go(func() {
				var r io.Reader = strings.NewReader(body)
				if chunked {
					r = io.MultiReader(r)
				}
				resp, err := http.Post(address(s), "text/plain", r)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
			items, err := s.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			it := items[0]
			if got := string(it.Message.Body); got != body || s.held.Load() != it.Bytes() {
				t.Errorf("size %d, chunked %v: %d bytes arrived, %d are held, want %d", size, chunked, len(got), s.held.Load(), it.Bytes())
			}
			if err := s.Ack(t.Context(), items); err != nil {
				t.Fatal(err)
			}
			sender.Wait()
		}
	}
}
