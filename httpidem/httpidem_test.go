package httpidem_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// service is a handler that counts the requests it gets.
type service struct {
	ran    atomic.Int32
	handle http.HandlerFunc
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.ran.Add(1)
	s.handle(w, r)
}

func (s *service) mustHaveRun(t *testing.T, n int32) {
	t.Helper()
	if got := s.ran.Load(); got != n {
		t.Errorf("the service ran %d times, want %d", got, n)
	}
}

func newGuard(t *testing.T, store semel.Store, opts *semel.GuardOptions) *semel.Guard {
	t.Helper()
	guard, err := semel.NewGuard(store, opts)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

func newStore(t *testing.T) semel.Store {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

var hold = &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold}

// caller is the scope of the tests.
func caller(r *http.Request) (string, error) { return r.Header.Get("Caller"), nil }

// recorded is Options.Go: a client gets the end of its answer when that is recorded, however
// long the machine takes for it, and so the next request with the key finds it.
func recorded(wait func()) { wait() }

// front starts a server with a handler around next. Nil options have only a scope.
func front(t *testing.T, guard *semel.Guard, next http.Handler, opts *httpidem.Options) *httptest.Server {
	t.Helper()
	if opts == nil {
		opts = &httpidem.Options{}
	}
	if opts.Scope == nil {
		opts.Scope = caller
	}
	if opts.Go == nil {
		opts.Go = recorded
	}
	handler, err := httpidem.New(guard, next, opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// proxied starts a service and a proxy in front of it.
func proxied(t *testing.T, s *service, opts httpidem.ProxyOptions) *httptest.Server {
	t.Helper()
	upstream := httptest.NewServer(s)
	t.Cleanup(upstream.Close)
	return proxyTo(t, upstream.URL, opts)
}

func proxyTo(t *testing.T, target string, opts httpidem.ProxyOptions) *httptest.Server {
	t.Helper()
	return front(t, newGuard(t, newStore(t), hold), proxyHandler(t, target, opts), nil)
}

func proxyHandler(t *testing.T, target string, opts httpidem.ProxyOptions) http.Handler {
	t.Helper()
	var err error
	if opts.Target, err = url.Parse(target); err != nil {
		t.Fatal(err)
	}
	proxy, err := httpidem.NewProxy(&opts)
	if err != nil {
		t.Fatal(err)
	}
	return proxy
}

// reply is a response whose body was read.
type reply struct {
	*http.Response
	body []byte
	err  error // of reading the body
}

// problem returns the last part of the type of a problem, or "".
func (r *reply) problem() string {
	var p struct{ Type string }
	if r.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(r.body, &p) != nil {
		return ""
	}
	return p.Type[strings.LastIndexByte(p.Type, '/')+1:]
}

func (r *reply) must(t *testing.T, status int, problem httpidem.Problem) {
	t.Helper()
	if r.StatusCode != status || r.problem() != string(problem) {
		t.Errorf("the answer is %d %q, want %d %q: %s", r.StatusCode, r.problem(), status, problem, r.body)
	}
}

// header is a list of names and values, one after the other.
type header []string

func post(t *testing.T, url, body string, h header) *reply {
	t.Helper()
	r, err := send(t.Context(), url, strings.NewReader(body), h)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// request sends a request with another method than POST.
func request(t *testing.T, method, url, body string, h header) *reply {
	t.Helper()
	r, err := sendAs(t.Context(), method, url, strings.NewReader(body), h)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// client has connections of its own. Every httptest.Server that closes also closes those of
// http.DefaultClient, even while another test begins to use one.
var client = &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}

func send(ctx context.Context, url string, body io.Reader, h header) (*reply, error) {
	return sendAs(ctx, http.MethodPost, url, body, h)
}

func sendAs(ctx context.Context, method, url string, body io.Reader, h header) (*reply, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Caller", "alice")
	for i := 0; i < len(h); i += 2 {
		r.Header.Add(h[i], h[i+1])
	}
	if len(h) > 1 && h[0] == "Caller" {
		r.Header["Caller"] = r.Header["Caller"][1:]
	}
	r.GetBody = nil // the client must not repeat requests by itself
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return &reply{resp, data, err}, nil
}

func withKey(key string) header { return header{"Idempotency-Key", key} }

func created(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Location", "/orders/1")
	w.Header().Set("Set-Cookie", "session=secret")
	w.Header().Set("X-Request", "1")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "made of %s", body)
}

func TestRepeatedRequestGetsTheFirstResponse(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, *service) *httptest.Server{
		"handler": func(t *testing.T, s *service) *httptest.Server {
			return front(t, newGuard(t, newStore(t), nil), s, nil)
		},
		"proxy": func(t *testing.T, s *service) *httptest.Server { return proxied(t, s, httpidem.ProxyOptions{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &service{handle: created}
			server := start(t, s)
			first, again := post(t, server.URL+"/orders?x=1", "a", withKey("k1")), post(t, server.URL+"/orders?x=1", "a", withKey(`"k1"`))
			s.mustHaveRun(t, 1)
			if first.StatusCode != 201 || string(first.body) != "made of a" || first.Header.Get("Set-Cookie") == "" || first.Header.Get(httpidem.Replayed) != "" {
				t.Errorf("the first answer is %v %s", first.Response, first.body)
			}
			if again.StatusCode != 201 || string(again.body) != "made of a" || again.Header.Get("Location") != "/orders/1" || again.Header.Get(httpidem.Replayed) != "true" {
				t.Errorf("the second answer is %v %s", again.Response, again.body)
			}
			if again.Header.Get("Set-Cookie") != "" || again.Header.Get("X-Request") != "" {
				t.Errorf("headers of the first caller were replayed: %v", again.Header)
			}
			for _, other := range []string{"/orders?x=2", "/other?x=1", "/orders%2F?x=1"} {
				post(t, server.URL+other, "a", withKey("k1")).must(t, 422, httpidem.KeyReused)
			}
			post(t, server.URL+"/orders?x=1", "b", withKey("k1")).must(t, 422, httpidem.KeyReused)
			if r := post(t, server.URL+"/orders?x=1", "a", withKey("k1")); r.Header.Get(httpidem.Replayed) != "true" {
				t.Errorf("after a refusal the answer is %v %s", r.Response, r.body)
			}
			s.mustHaveRun(t, 1)
			post(t, server.URL+"/orders?x=1", "a", nil).must(t, 201, "")
			post(t, server.URL+"/orders?x=1", "a", header{"Caller", "bob", "Idempotency-Key", "k1"}).must(t, 201, "")
			s.mustHaveRun(t, 3)
			post(t, server.URL, "a", header{"Caller", "", "Idempotency-Key", "k1"}).must(t, 401, httpidem.ScopeMissing)
		})
	}
}

func TestInvalidKeysAreRefused(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	lenient := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{Profile: httpidem.Profile{Headers: []string{"Idempotency-Key", "X-Request-Id"}, Required: true}})
	for _, h := range []header{
		withKey(""), withKey(`""`), withKey(`"a`), withKey(`"a"b`), withKey(`"a", "b"`), withKey("a, b"), withKey(`"a\c"`), withKey(strings.Repeat("x", 256)),
		{"Idempotency-Key", "a", "Idempotency-Key", "a"}, {"Idempotency-Key", "a", "X-Request-Id", "b"},
	} {
		post(t, lenient.URL, "", h).must(t, 400, httpidem.KeyInvalid)
	}
	post(t, lenient.URL, "", nil).must(t, 400, httpidem.KeyMissing)
	s.mustHaveRun(t, 0)
	for _, h := range []header{withKey(strings.Repeat("x", 255)), withKey(`"a";v=1`), {"Idempotency-Key", "b", "X-Request-Id", `"b"`}, withKey("käse")} {
		post(t, lenient.URL, "", h).must(t, 201, "")
	}
	s.mustHaveRun(t, 4)
	strict := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{Profile: httpidem.Profile{Strict: true}})
	for _, key := range []string{"a", "'a'", ":YQ==:", "1", `"a`, `"ä"`} {
		post(t, strict.URL, "", withKey(key)).must(t, 400, httpidem.KeyInvalid)
	}
	post(t, strict.URL, "", withKey(`"a\"b\\c"`)).must(t, 201, "")
}

func TestOneOfManyConcurrentRequestsRuns(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		created(w, r)
	}}
	guard := newGuard(t, newStore(t), nil)
	one, two := front(t, guard, s, nil), front(t, guard, s, nil)
	first := make(chan *reply, 1)
	go func() {
		r, err := send(t.Context(), one.URL+"/a", strings.NewReader("a"), withKey("k"))
		if err != nil {
			t.Error(err)
		}
		first <- r
	}()
	<-entered
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			server := one
			if i%2 == 0 {
				server = two
			}
			// The host is a part of the request, so both servers must be asked by one name.
			r, err := sendTo(t.Context(), server.URL+"/a", one.Listener.Addr().String(), "a", withKey("k"))
			if err != nil {
				t.Error(err)
				return
			}
			if r.must(t, 409, httpidem.InFlight); r.Header.Get("Retry-After") == "" || r.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("the headers are %v", r.Header)
			}
		})
	}
	running.Wait()
	post(t, one.URL+"/a", "b", withKey("k")).must(t, 422, httpidem.KeyReused)
	close(leave)
	(<-first).must(t, 201, "")
	s.mustHaveRun(t, 1)
}

// sendTo sends a request to a server under another host name.
func sendTo(ctx context.Context, url, host, body string, h header) (*reply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Host = host
	r.Header.Set("Caller", "alice")
	r.Header.Set(h[0], h[1])
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return &reply{resp, data, err}, err
}

func TestAKeptResponseIsReplayedByteForByte(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]http.HandlerFunc{
		"empty":      func(http.ResponseWriter, *http.Request) {},
		"no content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		"gzip": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte("\x1f\x8b\x00\xff"))
		},
		"not UTF-8": func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("\x00\xff\xfe<html>")) },
		"no type": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.Write([]byte("<html>"))
		},
		"links": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Link", "</a>; rel=a")
			w.Header().Add("Link", "</b>; rel=b")
			w.Header().Set("Idempotent-Replayed", "true") // a lie
			w.WriteHeader(500)
		},
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(103)
			w.WriteHeader(201)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, server := range []*httptest.Server{
				front(t, newGuard(t, newStore(t), nil), http.HandlerFunc(handle), nil),
				proxied(t, &service{handle: handle}, httpidem.ProxyOptions{}),
			} {
				h := header{"Accept-Encoding", "gzip", "Idempotency-Key", "k"} // the client must not decode
				first, again := post(t, server.URL, "", h), post(t, server.URL, "", h)
				if first.Header.Get(httpidem.Replayed) != "" || again.Header.Get(httpidem.Replayed) != "true" {
					t.Errorf("the marks are %q and %q", first.Header.Get(httpidem.Replayed), again.Header.Get(httpidem.Replayed))
				}
				if first.StatusCode != again.StatusCode || !bytes.Equal(first.body, again.body) {
					t.Errorf("first %d %q, then %d %q", first.StatusCode, first.body, again.StatusCode, again.body)
				}
				for _, name := range []string{"Content-Type", "Content-Encoding", "Link", "Content-Length"} {
					if fmt.Sprint(first.Header[name]) != fmt.Sprint(again.Header[name]) {
						t.Errorf("%s: first %q, then %q", name, first.Header[name], again.Header[name])
					}
				}
			}
		})
	}
}

func TestARefusalOfTheServiceIsNotKept(t *testing.T) {
	t.Parallel()
	statuses := []int{429, 401, 500}
	s := &service{}
	s.handle = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(statuses[min(int(s.ran.Load())-1, 2)]) }
	server := front(t, newGuard(t, newStore(t), nil), s, nil)
	for _, want := range []int{429, 401, 500, 500} {
		if r := post(t, server.URL, "", withKey("k")); r.StatusCode != want {
			t.Errorf("the status is %d, want %d", r.StatusCode, want)
		}
	}
	s.mustHaveRun(t, 3)
}

func TestTooLargeBodiesAndResponsesAreRefused(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 101)) }}
	server := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{MaxBody: 100, MaxResponse: 100, MaxBuffered: 100 + 16<<10})
	post(t, server.URL, strings.Repeat("x", 101), withKey("k")).must(t, 413, httpidem.BodyTooLarge)
	chunked, err := send(t.Context(), server.URL, io.MultiReader(strings.NewReader(strings.Repeat("x", 101))), withKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	chunked.must(t, 413, httpidem.BodyTooLarge)
	s.mustHaveRun(t, 0)
	if r := post(t, server.URL, strings.Repeat("x", 100), withKey("k")); len(r.body) != 101 {
		t.Errorf("the client got %d bytes, want 101", len(r.body))
	}
	post(t, server.URL, strings.Repeat("x", 100), withKey("k")).must(t, 409, httpidem.ResponseNotKept)
	s.mustHaveRun(t, 1)

	// A body in progress takes the room of all bodies.
	reader, writer := io.Pipe()
	slow := make(chan *reply, 1)
	go func() { // its body is asked for when it has the room
		r, err := send(t.Context(), server.URL, reader, append(withKey("slow"), "Expect", "100-continue"))
		if err != nil {
			t.Error(err)
		}
		slow <- r
	}()
	if _, err := writer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	post(t, server.URL, "y", withKey("other")).must(t, 503, httpidem.Overloaded)
	writer.Close()
	(<-slow).must(t, 200, "")
}

func TestARequestContinuesWithoutItsClient(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		select {
		case <-leave:
			created(w, r)
		case <-r.Context().Done():
		}
	}}
	server := proxied(t, s, httpidem.ProxyOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := send(ctx, server.URL, strings.NewReader("a"), withKey("k"))
		left <- err
	}()
	<-entered
	cancel()
	if err := <-left; err == nil {
		t.Error("the client got an answer")
	}
	close(leave)
	r := post(t, server.URL, "a", withKey("k"))
	for ; r.problem() == string(httpidem.InFlight); r = post(t, server.URL, "a", withKey("k")) {
	}
	if r.StatusCode != 201 || r.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v %s", r.Response, r.body)
	}
	s.mustHaveRun(t, 1)
}

func TestALateAnswerIsKept(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		<-leave
		created(w, r)
	}}
	server := proxied(t, s, httpidem.ProxyOptions{Timeout: 50 * time.Millisecond, Late: time.Minute})
	post(t, server.URL, "a", withKey("k")).must(t, 504, httpidem.OutcomeUnknown)
	post(t, server.URL, "a", withKey("k")).must(t, 409, httpidem.InFlight)
	close(leave)
	r := post(t, server.URL, "a", withKey("k"))
	for ; r.problem() == string(httpidem.InFlight); r = post(t, server.URL, "a", withKey("k")) {
	}
	if r.StatusCode != 201 || r.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v %s", r.Response, r.body)
	}
	s.mustHaveRun(t, 1)
}

func TestNoAnswerLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	leave := make(chan struct{})
	left := sync.OnceFunc(func() { close(leave) })
	// A proxy that stands still may send nothing in time, or notice both times together. Then
	// it gets more time.
	for late := 20 * time.Millisecond; ; late *= 2 {
		s := &service{handle: func(http.ResponseWriter, *http.Request) { <-leave }}
		server := proxied(t, s, httpidem.ProxyOptions{Timeout: late, Late: late})
		t.Cleanup(left)
		first := post(t, server.URL, "a", withKey("k"))
		sent := s.ran.Load() == 1
		r := settled(t, server.URL, "k")
		if (!sent || first.StatusCode != 504) && late < 10*time.Second {
			continue
		}
		first.must(t, 504, httpidem.OutcomeUnknown)
		r.must(t, 409, httpidem.OutcomeUnknown)
		s.mustHaveRun(t, 1)
		return
	}
}

// A server that reads a request on a used connection, and then resets the connection: net/http
// would send the request again, because of its key.
func TestARequestIsNeverSentTwice(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"empty": "", "small": "x", "large": strings.Repeat("x", 1<<20)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran atomic.Int32
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go resetSecond(conn, &ran)
				}
			}()
			server := proxyTo(t, "http://"+listener.Addr().String(), httpidem.ProxyOptions{})
			post(t, server.URL, "", withKey("0")).must(t, 200, "")
			var sent int32
			for sent = 1; sent < 100; sent++ { // a proxy that stood still has closed the used connection
				key := withKey(fmt.Sprint(sent))
				r := post(t, server.URL, body, key)
				if r.StatusCode == 200 {
					continue
				}
				r.must(t, 502, httpidem.OutcomeUnknown)
				post(t, server.URL, body, key).must(t, 409, httpidem.OutcomeUnknown)
				break
			}
			if n := ran.Load(); sent == 100 || n != sent+1 {
				t.Errorf("the service got %d requests, want %d, and one of them on a used connection", n, sent+1)
			}
		})
	}
}

// resetSecond answers the first request of a connection, and resets it after the second.
func resetSecond(conn net.Conn, ran *atomic.Int32) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := 1; ; n++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		ran.Add(1)
		if n == 2 {
			conn.(*net.TCPConn).SetLinger(0)
			return
		}
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}
}

func TestABrokenResponseIsNotKept(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write(make([]byte, 50))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}}
	server := proxied(t, s, httpidem.ProxyOptions{})
	if r, err := send(t.Context(), server.URL, strings.NewReader("a"), withKey("k")); err == nil && r.err == nil {
		t.Errorf("the client got a whole response: %v", r.Response)
	}
	post(t, server.URL, "a", withKey("k")).must(t, 409, httpidem.OutcomeUnknown)
	s.mustHaveRun(t, 1)
}

func TestKeyIsReleasedWhenTheServiceRefusesTheConnection(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t)
	server := proxyTo(t, "http://"+addr, httpidem.ProxyOptions{})
	post(t, server.URL, "a", withKey("k")).must(t, 502, httpidem.UpstreamDown)
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{handle: created}
	upstream := &httptest.Server{Listener: listener, Config: &http.Server{Handler: s}}
	upstream.Start()
	t.Cleanup(upstream.Close)
	post(t, server.URL, "a", withKey("k")).must(t, 201, "")
	s.mustHaveRun(t, 1)
}

func TestAPanicLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }}
	server := front(t, newGuard(t, newStore(t), hold), s, nil)
	if r, err := send(t.Context(), server.URL, strings.NewReader("a"), withKey("k")); err == nil {
		t.Errorf("the answer is %v", r.Response)
	}
	post(t, server.URL, "a", withKey("k")).must(t, 409, httpidem.OutcomeUnknown)
	s.mustHaveRun(t, 1)
}

// failing is a store whose steps fail.
type failing struct {
	semel.Store
	claim, complete atomic.Bool
}

var errDown = fmt.Errorf("the store at 10.0.0.1 is down: %w", semel.ErrStoreUnavailable)

func (f *failing) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if f.claim.Load() {
		return errDown
	}
	return f.Store.Claim(ctx, reqs, answers)
}

func (f *failing) Complete(ctx context.Context, reqs []semel.CompleteRequest, errs []error) error {
	if f.complete.Load() {
		return errDown
	}
	return f.Store.Complete(ctx, reqs, errs)
}

func TestRequestsAreRefusedWhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	store := &failing{Store: newStore(t)}
	s := &service{handle: created}
	server := front(t, newGuard(t, store, hold), s, &httpidem.Options{Go: func(wait func()) { go wait() }})
	store.claim.Store(true)
	r := post(t, server.URL, "a", withKey("k"))
	if r.must(t, 503, httpidem.StoreUnavailable); bytes.Contains(r.body, []byte("10.0.0.1")) {
		t.Errorf("the answer names the store: %s", r.body)
	}
	s.mustHaveRun(t, 0)
	store.claim.Store(false)
	store.complete.Store(true)
	post(t, server.URL, "a", withKey("k")).must(t, 201, "") // the effect is there, and the client knows it
	post(t, server.URL, "a", withKey("k")).must(t, 409, httpidem.InFlight)
	store.complete.Store(false)
	for { // the guard asks the store again until the lease ends
		r := post(t, server.URL, "a", withKey("k"))
		if r.Header.Get("Idempotent-Replayed") == "true" {
			r.must(t, 201, "")
			break
		}
		if r.must(t, 409, httpidem.InFlight); t.Failed() {
			break
		}
	}
	s.mustHaveRun(t, 1)
}

// The process ends while the service works, and another one opens the embedded store.
func TestARestartDoesNotRunARequestAgain(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*semel.GuardOptions{"hold": hold, "retry": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			open := func() *logstore.Store {
				store, err := logstore.Open(dir, &logstore.Options{DurableClaims: true})
				if err != nil {
					t.Fatal(err)
				}
				return store
			}
			entered, leave := make(chan struct{}), make(chan struct{})
			s := &service{handle: func(http.ResponseWriter, *http.Request) {
				close(entered)
				<-leave
			}}
			store := open()
			one := front(t, newGuard(t, store, opts), s, nil)
			t.Cleanup(func() { close(leave) })
			go send(context.Background(), one.URL, strings.NewReader("a"), withKey("k"))
			<-entered
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			store = open()
			t.Cleanup(func() { store.Close() })
			two := front(t, newGuard(t, store, opts), s, nil)
			r, err := sendTo(t.Context(), two.URL, one.Listener.Addr().String(), "a", withKey("k"))
			if err != nil {
				t.Fatal(err)
			}
			r.must(t, 409, httpidem.InFlight) // until the lease ends
			s.mustHaveRun(t, 1)
		})
	}
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, newStore(t), nil)
	for name, opts := range map[string]*httpidem.Options{
		"Scope":       {},
		"Methods":     {Scope: httpidem.AnyCaller, Profile: httpidem.Profile{Methods: []string{"GET"}}},
		"Replay":      {Scope: httpidem.AnyCaller, Replay: []string{"set-cookie"}},
		"MaxBuffered": {Scope: httpidem.AnyCaller, MaxBody: 10, MaxBuffered: 9},
	} {
		if _, err := httpidem.New(guard, http.NotFoundHandler(), opts); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// Clients that offer HTTP/2 send Upgrade: h2c with each request, also with a key.
func TestARequestThatOffersAnUpgradeIsProtected(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := proxied(t, s, httpidem.ProxyOptions{})
	h := header{"Idempotency-Key", "k", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"}
	first, again := post(t, server.URL, "a", h), post(t, server.URL, "a", h)
	if first.StatusCode != 201 || again.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answers are %v and %v", first.Response, again.Response)
	}
	s.mustHaveRun(t, 1)
}
