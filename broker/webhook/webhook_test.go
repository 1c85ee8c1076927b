package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func newSink(t testing.TB, opts Options) *Sink {
	t.Helper()
	opts.AllowPrivate = true
	s, err := New(&opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func item(id, body string) *pipeline.Item {
	it := &pipeline.Item{Partition: pipeline.NewPartition("a")}
	it.Call.Key, it.Message.Body = semel.Key{Scope: "orders", ID: id}, []byte(body)
	it.Attempt, it.Token = 2, 7
	return it
}

func deliver(ctx context.Context, s *Sink, it *pipeline.Item) error {
	s.Deliver(ctx, []*pipeline.Item{it})
	return it.Err
}

// class returns the class of an error as a word.
func class(err error) string {
	var (
		away      *pipeline.UnavailableError
		permanent *semel.PermanentError
		again     *pipeline.RetryError
	)
	switch {
	case err == nil:
		return "delivered"
	case errors.As(err, &away) && errors.Is(err, semel.ErrOutcomeUnknown):
		return "unavailable, unknown"
	case errors.As(err, &away):
		return "unavailable"
	case errors.As(err, &permanent):
		return "permanent"
	case errors.Is(err, semel.ErrOutcomeUnknown):
		return "unknown"
	case errors.As(err, &again):
		return "retry"
	}
	return "other"
}

func TestHTTPStatusDecidesTheOutcome(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status int
		body, _ := io.ReadAll(r.Body)
		fmt.Sscan(string(body), &status)
		if status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	s := newSink(t, Options{URL: server.URL, Success: []int{418}, Retry: []int{202, 404}})
	for status, want := range map[int]string{
		200: "delivered", 201: "delivered", 204: "delivered", 418: "delivered", 202: "retry", 404: "retry",
		301: "permanent", 302: "permanent", 307: "permanent", 308: "permanent", 304: "permanent",
		400: "permanent", 405: "permanent", 410: "permanent", 413: "permanent", 422: "permanent", 501: "retry",
		401: "unavailable", 407: "unavailable", 503: "unavailable", 403: "retry",
		408: "retry", 409: "retry", 425: "retry", 429: "retry", 500: "retry", 502: "unavailable, unknown", 504: "unavailable, unknown",
	} {
		if got := class(deliver(t.Context(), s, item("k", fmt.Sprint(status)))); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

func TestRetryAfterHeaderIsParsed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, "-3": 0, "3600": time.Hour, "99999999999": time.Hour, "99999999999999999999": 0,
		"soon": 0, "1.5": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT":  time.Minute,
		"Fri, 02 Jan 2026 03:00:05 GMT":  0,
		"Friday, 02-Jan-26 03:04:35 GMT": 30 * time.Second,
		"Sat, 03 Jan 2026 03:00:05 GMT":  time.Hour,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestHeadersIdentifyTheMessageForTheTarget(t *testing.T) {
	t.Parallel()
	headers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		headers <- r.Header
	}))
	defer server.Close()
	s := newSink(t, Options{
		URL: server.URL, Pipeline: "p", Forward: []string{"X-Trace", "X-Bad", "idempotency-key"},
		Headers: http.Header{"host": {"example.org"}, "x-static": {"1", "2"}, "IDEMPOTENCY-KEY": {"forged"}, "semel-token": {"forged"}},
	})
	for id, want := range map[string]string{
		"o-1": "o-1", "with space": "with space", `a,b`: `"a,b"`, `"q-1"`: `"\"q-1\""`, `a"b\`: `a"b\`, "ü": "", " x": "", "a\r\nX-Evil: 1": "", strings.Repeat("x", 256): "", "sha256:abc": "",
	} {
		it := item(id, `{"a":1}`)
		it.Redrive = 3
		it.Message.Headers = []semel.Header{
			{Name: "X-Trace", Value: []byte("t")}, {Name: "X-Bad", Value: []byte("v\r\nX-Evil: 1")}, {Name: "X-Not-Named", Value: []byte("n")},
			{Name: "idempotency-key", Value: []byte("forged")},
		}
		if err := deliver(t.Context(), s, it); err != nil {
			t.Fatal(err)
		}
		h := <-headers
		keys := h.Values(idempotencyKeyHeader)
		if len(keys) != 1 || want != "" && keys[0] != want || want == "" && (len(keys[0]) != 50 || !strings.HasPrefix(keys[0], "sha256:")) {
			t.Errorf("%q: Idempotency-Key: %q", id, keys)
		}
		for name, want := range map[string]string{
			attemptHeader: "2", tokenHeader: "7", scopeHeader: "orders", redriveHeader: "3", pipelineHeader: "p", "X-Trace": "t", "X-Bad": "",
			"X-Evil": "", "X-Not-Named": "", "Host": "example.org", "Content-Type": "application/json",
		} {
			if got := h.Get(name); got != want || len(h.Values(name)) > 1 {
				t.Errorf("%q: %s: %q, want %q", id, name, h.Values(name), want)
			}
		}
		if got := h.Values("X-Static"); len(got) != 2 {
			t.Errorf("X-Static: %q", got)
		}
	}
}

// hangUp is a server that answers the first request of a connection. It reads
// the second one and closes the connection without an answer.
func hangUp(t *testing.T) (url string, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if requests.Add(1) == 1 {
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

func TestWebhookRequestIsNotRetriedByTheHTTPClient(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"body", ""} {
		url, requests := hangUp(t)
		s := newSink(t, Options{URL: url})
		if err := deliver(t.Context(), s, item("1", body)); err != nil {
			t.Fatal(err)
		}
		err := deliver(t.Context(), s, item("2", body))
		if class(err) != "unavailable, unknown" || requests.Load() != 2 {
			t.Errorf("body %q: %v after %d requests, want an unknown outcome after 2", body, err, requests.Load())
		}
	}
}

func TestTimeoutsAndRefusedConnectionsAreClassified(t *testing.T) {
	t.Parallel()
	stuck, arrived := make(chan struct{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "begun")
		case "/slow":
			_, _ = io.WriteString(w, "begun")
			w.(http.Flusher).Flush()
			<-stuck
		case "/last":
			arrived <- struct{}{}
			<-stuck
		default:
			<-stuck
		}
	}))
	defer server.Close()
	defer close(stuck)
	refusing := "http://" + servicestest.FreeAddr(t)
	const enough, short = time.Minute, time.Second
	for name, c := range map[string]struct {
		url, want string
		kind      semel.ResultKind
		timeout   time.Duration
	}{
		"no answer":         {server.URL, "unavailable, unknown", 0, short},
		"nobody there":      {refusing, "unavailable", 0, enough},
		"answer cut":        {server.URL + "/cut", "delivered", semel.NotKept, enough},
		"answer stuck":      {server.URL + "/slow", "delivered", semel.NotKept, short},
		"no such name":      {"http://no-such-name.invalid", "unavailable", 0, enough},
		"TLS where is none": {strings.Replace(server.URL, "http:", "https:", 1), "unavailable", 0, enough},
	} {
		// A call that must time out must have started. A slow machine gets more
		// time for that.
		for timeout := c.timeout; ; timeout *= 2 {
			it := item("k", "b")
			got := class(deliver(t.Context(), newSink(t, Options{URL: c.url, Timeout: timeout}), it))
			if got == c.want && it.Result.Kind == c.kind {
				break
			}
			if timeout >= enough {
				t.Errorf("%s: %s (%v), result %v; want %s, %v", name, got, it.Err, it.Result.Kind, c.want, c.kind)
				break
			}
		}
	}
	s := newSink(t, Options{URL: server.URL + "/last", Timeout: enough})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if err := deliver(ctx, s, item("k", "b")); class(err) != "unknown" {
		t.Errorf("the context ended after the request was sent: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := deliver(ended, s, item("k", "b")); class(err) != "other" {
		t.Errorf("the context ended before: %v", err)
	}
}

func TestResultsAreBounded(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Path[1:])
		_, _ = io.WriteString(w, strings.Repeat("x", n))
	}))
	defer server.Close()
	for n, want := range map[int]semel.ResultKind{64 << 10: semel.Value, 64<<10 + 1: semel.NotKept} {
		it := item("k", "b")
		if err := deliver(t.Context(), newSink(t, Options{URL: fmt.Sprintf("%s/%d", server.URL, n)}), it); err != nil || it.Result.Kind != want {
			t.Errorf("an answer of %d bytes: %v, %v, want %v", n, it.Result.Kind, err, want)
		}
	}
}

func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	g := &guard{allowed: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for address, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "2606:4700::1111": true, "::ffff:8.8.8.8": true, "10.1.2.3": true, "::ffff:10.1.2.3": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::": false, "0.0.0.0": false, "0.1.2.3": false,
		"10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "169.254.169.254": false,
		"100.64.0.1": false, "100.100.100.200": false, "192.0.0.1": false, "192.0.2.1": false, "198.18.0.1": false, "198.51.100.1": false,
		"203.0.113.1": false, "224.0.0.1": false, "240.0.0.1": false, "255.255.255.255": false,
		"::ffff:127.0.0.1": false, "::127.0.0.1": false, "::ffff:169.254.169.254": false, "64:ff9b::7f00:1": false, "64:ff9b:1::1": false,
		"2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false, "3fff::1": false, "fc00::1": false, "fd00:ec2::254": false,
		"fe80::1": false, "fe80::1%eth0": false, "fec0::1": false, "ff02::1": false, "100::1": false,
	} {
		if got := g.check(netip.MustParseAddr(address)) == nil; got != want {
			t.Errorf("%s: allowed %t, want %t", address, got, want)
		}
	}
}

// TestHostThatResolvesToAPrivateAddressWhenConnectingIsRefused makes a name resolve to a public
// address first, and to a private one when the sink connects. The guard checks
// each address at the moment of the connection.
func TestHostThatResolvesToAPrivateAddressWhenConnectingIsRefused(t *testing.T) {
	t.Parallel()
	reached := atomic.Bool{}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"127.0.0.1:" + port, "localhost:" + port, "[::ffff:127.0.0.1]:" + port, "0:" + port, "2130706433:" + port} {
		s, err := New(&Options{URL: "http://" + target, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		err = deliver(t.Context(), s, item("k", "b"))
		if class(err) != "unavailable" || reached.Load() {
			t.Errorf("%s: %v, reached: %t", target, err, reached.Load())
		}
	}
	s, err := New(&Options{URL: server.URL, Allowed: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := deliver(t.Context(), s, item("k", "b")); err != nil || !reached.Load() {
		t.Errorf("allowed: %v", err)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	if err := deliver(t.Context(), newSink(t, Options{URL: server.URL}), item("k", "b")); class(err) != "permanent" || requests.Load() != 1 {
		t.Errorf("%v after %d requests", err, requests.Load())
	}
}

func TestTLSNeedsATrustedCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	if err := deliver(t.Context(), newSink(t, Options{URL: server.URL}), item("k", "b")); class(err) != "unavailable" {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	trusting := server.Client().Transport.(*http.Transport).TLSClientConfig
	if err := deliver(t.Context(), newSink(t, Options{URL: server.URL, TLS: trusting}), item("k", "b")); err != nil {
		t.Error(err)
	}
}

func TestOptionsAreCheckedAllAtOnce(t *testing.T) {
	t.Parallel()
	_, err := New(&Options{
		URL: "ftp://x", Method: "A B", Timeout: -1, Parallel: -1, Success: []int{99}, Pipeline: "p\n",
		Headers: http.Header{"X-A": {"v\r\nX-B: 1"}, "X-None": nil}, Forward: []string{"bad name", "Transfer-Encoding"},
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("%v", err)
	}
	for _, part := range []string{"URL", "Method", "Timeout", "Parallel", "Success", "Pipeline", `"X-A"`, `"X-None"`, `"bad name"`, `"Transfer-Encoding"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not named in %v", part, err)
		}
	}
	if _, err := New(&Options{URL: "http://user:secret@ho st"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestErrorsShowNoSecretOfTheAddress(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", servicestest.FreeAddr(t)) // no other test gets this address after it is closed
	if err != nil {
		t.Fatal(err)
	}
	refuse := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	target := &httptest.Server{Listener: listener, Config: &http.Server{Handler: refuse}}
	target.Start()
	address := strings.Replace(target.URL, "http://", "http://me:canary@", 1) + "/hook?token=canary&x=canary"
	for _, want := range []string{"/hook?[hidden] answered 418 I'm a teapot", "/hook?[hidden]: dial tcp"} {
		err := deliver(t.Context(), newSink(t, Options{URL: address}), item("1", "x"))
		if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
		if of, ok := errors.AsType[*StatusError](err); ok && (of.Code != http.StatusTeapot || !strings.HasSuffix(of.Public(), "/hook?[hidden] answered 418 I'm a teapot")) {
			t.Errorf("%d %s", of.Code, of.Public())
		}
		target.Close()
	}
}
