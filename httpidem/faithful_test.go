package httpidem_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// raw sends the text of a request, and returns the text that the service behind the proxy
// gets, up to the empty line and with a body in chunks, and the response.
func raw(t *testing.T, request string, answer string) (got string, r *http.Response) {
	t.Helper()
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer upstream.Close()
	text := make(chan string, 1)
	go func() {
		conn, err := upstream.Accept()
		if err != nil {
			text <- err.Error()
			return
		}
		defer conn.Close()
		reader := bufio.NewReader(conn)
		var lines strings.Builder
		chunked := false
		for {
			line, err := reader.ReadString('\n')
			lines.WriteString(line)
			chunked = chunked || strings.HasPrefix(line, "Transfer-Encoding: chunked")
			if err != nil || line == "\r\n" && (!chunked || strings.Contains(lines.String(), "\r\n0\r\n")) {
				break
			}
		}
		text <- lines.String()
		fmt.Fprint(conn, answer)
	}()
	server := proxyTo(t, "http://"+upstream.Addr().String(), httpidem.ProxyOptions{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprint(conn, request)
	r, err = http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r.Body); err != nil {
		t.Fatal(err)
	}
	return <-text, r
}

// The service gets a request as its client sent it, with and without a key.
func TestProxyForwardsRequestsUnchanged(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
	for name, test := range map[string]struct {
		method, headers, body string
		want, not             []string // lines without case
	}{
		"empty":            {"POST", "Content-Length: 0\r\n", "", []string{"content-length: 0"}, []string{"transfer-encoding", "content-type"}},
		"empty patch":      {"PATCH", "Content-Length: 0\r\n", "", []string{"content-length: 0"}, []string{"transfer-encoding", "content-type"}},
		"without a length": {"POST", "", "", []string{"content-length: 0"}, []string{"transfer-encoding", "content-type"}},
		"with a body":      {"POST", "Content-Length: 4\r\n", "body", []string{"content-length: 4"}, []string{"transfer-encoding", "content-type"}},
		"behind TLS":       {"POST", "Content-Length: 4\r\nX-Forwarded-Proto: https\r\nForwarded: proto=https\r\n", "body", []string{"x-forwarded-proto: https", "forwarded: proto=https"}, nil},
		"without TLS":      {"POST", "Content-Length: 4\r\n", "body", []string{"x-forwarded-proto: http"}, []string{"\nforwarded"}},
		"trailers":         {"POST", "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n", "4\r\nbody\r\n0\r\nX-Sum: 7\r\n\r\n", []string{"transfer-encoding: chunked", "trailer: x-sum", "x-sum: 7"}, []string{"content-length"}},
	} {
		for _, key := range []string{"Idempotency-Key: k\r\n", "X-Other: k\r\n"} {
			t.Run(name+" "+key[:1], func(t *testing.T) {
				t.Parallel()
				got, _ := raw(t, test.method+" /orders HTTP/1.1\r\nHost: api\r\nCaller: alice\r\n"+key+test.headers+"\r\n"+test.body, ok)
				lower := strings.ToLower(got)
				for _, line := range append(test.want, strings.ToLower(strings.TrimSpace(key))) {
					if !slices.Contains(strings.Split(lower, "\r\n"), line) {
						t.Errorf("the service lacks %q:\n%s", line, got)
					}
				}
				for _, line := range test.not {
					if strings.Contains(lower, line) {
						t.Errorf("the service gets %q:\n%s", line, got)
					}
				}
			})
		}
	}
}

// A proxy in front tells the service about the client's connection. A client cannot.
func TestOnlyAProxyInFrontSaysHowItsClientConnects(t *testing.T) {
	t.Parallel()
	names := []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded"}
	got := make(chan [4]string, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var values [4]string
		for i, name := range names {
			values[i] = strings.Join(r.Header[name], "|")
		}
		got <- values
	}))
	t.Cleanup(upstream.Close)
	handler, err := httpidem.New(newGuard(t, newStore(t), hold), proxyHandler(t, upstream.URL, httpidem.ProxyOptions{}), &httpidem.Options{Scope: httpidem.AnyCaller})
	if err != nil {
		t.Fatal(err)
	}
	for peer, near := range map[string]bool{
		"127.0.0.1": true, "[::1]": true, "10.1.2.3": true, "172.16.0.1": true, "192.168.7.8": true, "[fd00::1]": true, "[::ffff:10.1.2.3]": true,
		"203.0.113.7": false, "172.32.0.1": false, "[2001:db8::1]": false, "[::ffff:203.0.113.7]": false, "": false,
	} {
		for _, says := range []bool{true, false} {
			for _, key := range []string{"k" + peer + fmt.Sprint(says), ""} {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://api/orders", strings.NewReader("body"))
				ip := strings.Trim(peer, "[]")
				want := [4]string{ip, "api", "http", ""}
				if r.RemoteAddr = peer + ":1234"; peer == "" { // as of a server that listens at a Unix socket
					r.RemoteAddr = "@"
					want[0] = ""
				}
				if key != "" {
					r.Header.Set("Idempotency-Key", key)
				}
				if says {
					for i, value := range []string{"192.0.2.1", "shop", "https", "proto=https"} {
						if r.Header.Set(names[i], value); near && i > 0 {
							want[i] = value
						}
					}
					if near {
						want[0] = "192.0.2.1, " + ip
					}
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				select {
				case values := <-got:
					if values != want {
						t.Errorf("from %q with its own headers %t and key %q the service gets %q, want %q", peer, says, key, values, want)
					}
				default:
					t.Errorf("from %q: %d %s", peer, w.Code, w.Body)
				}
			}
		}
	}
}

// A response without a Content-Type has none for the client either, at first and replayed.
func TestResponseWithoutAContentTypeKeepsNone(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, "<html>")
	}}
	server := proxied(t, s, httpidem.ProxyOptions{})
	for _, headers := range [][]string{nil, withKey("k"), withKey("k")} {
		r := post(t, server.URL, "body", headers)
		if _, has := r.Header["Content-Type"]; has || string(r.body) != "<html>" {
			t.Errorf("with %v: %v %s", headers, r.Header, r.body)
		}
	}
	s.mustHaveRun(t, 2)
}

// An empty request with a key is sent once, although net/http repeats such requests.
func TestAnEmptyRequestIsNeverSentTwice(t *testing.T) {
	t.Parallel()
	got := make(chan struct{}, 10)
	first := true
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first { // it leaves a connection that can be used again
			first = false
			return
		}
		got <- struct{}{}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close() // without an answer
	}))
	t.Cleanup(upstream.Close)
	server := proxyTo(t, upstream.URL, httpidem.ProxyOptions{})
	for _, name := range []string{"a", "b"} {
		r := post(t, server.URL, "", withKey(name))
		if want := map[string]int{"a": 200, "b": 502}[name]; r.StatusCode != want {
			t.Errorf("%s: %d %s", name, r.StatusCode, r.body)
		}
	}
	if n := len(got); n != 1 {
		t.Errorf("the request was sent %d times", n)
	}
}

// A proxy that lost the lease of a key does not blame the service.
func TestALostLeaseIsNotReportedAsAnErrorOfTheService(t *testing.T) {
	t.Parallel()
	store := &refusing{Store: newStore(t)}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that its client leaves
		store.lost.Store(true)             // not before: then nothing would have been sent
		<-r.Context().Done()
	}))
	t.Cleanup(upstream.Close)
	proxy := proxyHandler(t, upstream.URL, httpidem.ProxyOptions{})
	server := front(t, newGuard(t, store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold, Lease: time.Minute, Heartbeat: 100 * time.Millisecond}), proxy, nil)
	r := post(t, server.URL, "body", withKey("k"))
	if r.must(t, 502, httpidem.OutcomeUnknown); strings.Contains(string(r.body), "broke off") || !strings.Contains(string(r.body), "could not keep the key") {
		t.Errorf("the answer is %s", r.body)
	}
}

// refusing is a store that extends no lease after the leases were lost.
type refusing struct {
	semel.Store
	lost atomic.Bool
}

func (s *refusing) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if !s.lost.Load() {
		return s.Store.Extend(ctx, reqs, answers)
	}
	for i := range reqs {
		answers[i].Err = &semel.StaleTokenError{Key: reqs[i].Key, Token: reqs[i].Token}
	}
	return nil
}
