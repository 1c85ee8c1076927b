package httpsrc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func open(t testing.TB, opts Options) *Source {
	t.Helper()
	opts.Listen = "127.0.0.1:0"
	s, err := Open(&opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func address(s *Source) string { return "http://" + s.Addr().String() + s.opts.Path }

// post sends a request and returns the answer with its body.
func post(t testing.TB, s *Source, body string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(address(s), "text/plain", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return &http.Response{Header: http.Header{}}, ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp, string(data)
}

func TestHalfClosedConnectionGetsNoSuccessBeforeTheMessageIsRead(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Wait: time.Minute})
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return // without an answer the sender keeps the message
	}
	resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		t.Errorf("answered %s before the message was read", resp.Status)
	}
}

func TestResponseStatusFollowsTheOutcome(t *testing.T) {
	t.Parallel()
	s := open(t, Options{})
	for _, c := range []struct {
		name     string
		decision semel.Decision
		result   semel.Result
		err      error
		back     bool
		status   int
		header   string
		body     string
	}{
		{"done", semel.Fresh, semel.Result{Kind: semel.Value, Data: []byte("r")}, nil, false, 200, "fresh", "r"},
		{"known", semel.Duplicate, semel.Result{Kind: semel.Value, Data: []byte("r")}, nil, false, 200, "duplicate", "r"},
		{"known to have failed", semel.Duplicate, semel.Result{Kind: semel.Failed, Data: []byte("secret")}, nil, false, 422, "duplicate", "failed permanently before\n"},
		{"dropped", semel.Late, semel.Result{}, semel.ErrLate, false, 422, "dropped", "given up\n"},
		{"in flight", semel.InFlight, semel.Result{}, semel.ErrInFlight, true, 503, "in_flight", "another delivery holds the key: send it again\n"},
		{"returned", semel.Undecided, semel.Result{}, nil, true, 503, "", "not settled: send it again\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var serving sync.WaitGroup
			serving.Go(func() {
				items, err := s.Read(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				it := items[0]
				it.Decision, it.Result, it.Err = c.decision, c.result, c.err
				if c.back {
					err = s.Return(t.Context(), items, 1500*time.Millisecond)
				} else {
					err = s.Ack(t.Context(), items)
				}
				if err != nil {
					t.Error(err)
				}
			})
			resp, body := post(t, s, "m")
			serving.Wait()
			if resp.StatusCode != c.status || body != c.body || resp.Header.Get(decisionHeader) != c.header {
				t.Errorf("%d %q %q, want %d %q %q", resp.StatusCode, resp.Header.Get(decisionHeader), body, c.status, c.header, c.body)
			}
			if c.back && resp.Header.Get("Retry-After") != "2" {
				t.Errorf("Retry-After: %q, want 2", resp.Header.Get("Retry-After"))
			}
		})
	}
}

func TestInvalidRequestsGetAnErrorStatus(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Path: "/in", MaxBody: 10, Authorization: "Bearer sesame"})
	for name, c := range map[string]struct {
		method, path, auth, body string
		chunked                  bool
		want                     int
	}{
		"path":        {"POST", "/", "Bearer sesame", "x", false, 404},
		"method":      {"GET", "/in", "Bearer sesame", "", false, 405},
		"nobody":      {"POST", "/in", "", "x", false, 401},
		"wrong":       {"POST", "/in", "Bearer sesam", "x", false, 401},
		"large":       {"POST", "/in", "Bearer sesame", "12345678901", false, 413},
		"large parts": {"POST", "/in", "Bearer sesame", "12345678901", true, 413},
	} {
		var body io.Reader = strings.NewReader(c.body)
		if c.chunked {
			body = io.MultiReader(body)
		}
		req, err := http.NewRequest(c.method, "http://"+s.Addr().String()+c.path, body)
		if err != nil {
			t.Fatal(err)
		}
		if c.auth != "" {
			req.Header.Set("Authorization", c.auth)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, resp.Status, c.want)
		}
	}
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held of requests that were refused", n)
	}
}

// A page can let its own name lead to this machine, and is then of the same site for the
// browser.
func TestRequestsFromWebPagesAreRefused(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]int{"": http.StatusForbidden, "Bearer t": http.StatusServiceUnavailable} {
		s := open(t, Options{Wait: time.Millisecond, Authorization: token})
		for origin, want := range map[string]int{
			"http://evil.example:8080": want, "null": want, "http://127.0.0.1.evil.example": want,
			"": http.StatusServiceUnavailable, "http://localhost:3000": http.StatusServiceUnavailable, "http://[::1]": http.StatusServiceUnavailable,
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address(s), strings.NewReader("x"))
			if err != nil {
				t.Fatal(err)
			}
			request.Host = "evil.example:8080" // as a proxy or a rebound name sends it
			request.Header.Set("Authorization", token)
			if origin != "" {
				request.Header.Set("Origin", origin)
			}
			resp, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want { // no pipeline settles an accepted message
				t.Errorf("token %q, origin %q: %s, want %d", token, origin, resp.Status, want)
			}
		}
	}
}

func TestTheBytesOfHeldRequestsAreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, Options{MaxBody: 100, MaxBytes: 100, Wait: time.Minute})
	var first sync.WaitGroup
	first.Go(func() {
		if resp, _ := post(t, s, strings.Repeat("x", 60)); resp.StatusCode != 200 {
			t.Errorf("the first: %s", resp.Status)
		}
	})
	items, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if resp, _ := post(t, s, strings.Repeat("x", 60)); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("beyond the bound: %s", resp.Status)
	}
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	first.Wait()
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held of settled messages", n)
	}
}

// A message stays in memory until it is settled, though its sender has left.
func TestMessageStaysInMemoryAfterItsSenderLeft(t *testing.T) {
	t.Parallel()
	s := open(t, Options{MaxBytes: 100, Wait: time.Millisecond})
	for s.held.Load() == 0 { // a request that was not accepted within Wait is not held
		if resp, _ := post(t, s, "m"); resp.StatusCode != 503 {
			t.Fatalf("answered %s before the message was settled", resp.Status)
		}
	}
	if resp, body := post(t, s, "m"); resp.StatusCode != 503 || !strings.Contains(body, "too many") {
		t.Errorf("the next one: %s %q, want 503", resp.Status, body)
	}
	items, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	it := items[0]
	if n := s.held.Load(); n != it.Bytes() {
		t.Errorf("%d bytes are held, want %d as the pipeline counts them", n, it.Bytes())
	}
	if err := s.Ack(t.Context(), items); err != nil || s.held.Load() != 0 {
		t.Errorf("%d bytes are held of a settled message, %v", s.held.Load(), err)
	}
}

func TestAFullQueueAsksSendersToRetry(t *testing.T) {
	t.Parallel()
	s := open(t, Options{queue: 1, Wait: 50 * time.Millisecond})
	var senders sync.WaitGroup
	for range 5 {
		senders.Go(func() {
			if resp, _ := post(t, s, "m"); resp.StatusCode != 503 {
				t.Errorf("%s, want 503", resp.Status)
			}
		})
	}
	senders.Wait()
}

func TestCloseAnswersWaitingCalls(t *testing.T) {
	t.Parallel()
	s := open(t, Options{Wait: time.Minute})
	var senders sync.WaitGroup
	for range 20 {
		senders.Go(func() {
			resp, err := http.Post(address(s), "text/plain", bytes.NewReader([]byte("m")))
			if err != nil {
				return // the listener was closed
			}
			resp.Body.Close()
			if resp.StatusCode != 503 {
				t.Errorf("%s, want 503", resp.Status)
			}
		})
	}
	items, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Return(t.Context(), items, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	senders.Wait()
}

func TestOptionsAreCheckedAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Open(&Options{Path: "in", MaxBody: -1})
	if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "Listen") || !strings.Contains(err.Error(), "Path") || !strings.Contains(err.Error(), "MaxBody") {
		t.Errorf("%v", err)
	}
}
