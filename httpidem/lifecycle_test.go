package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// A lease is short, so that a crash is noticed soon. It is extended while a request runs,
// and the answer is kept for longer.
func TestARequestMayRunLongerThanALease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(10 * time.Minute)
			created(w, r)
		}}
		handler, err := httpidem.New(newGuard(t, newStore(t), &semel.GuardOptions{Lease: 30 * time.Second}), s, &httpidem.Options{Scope: httpidem.AnyCaller})
		if err != nil {
			t.Fatal(err)
		}
		do := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Idempotency-Key", "k")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		first := make(chan int)
		go func() { first <- do().Code }()
		for range 9 {
			time.Sleep(time.Minute)
			if w := do(); w.Code != 409 {
				t.Errorf("after a lease the answer is %d", w.Code)
			}
		}
		if code := <-first; code != 201 {
			t.Errorf("the first answer is %d", code)
		}
		time.Sleep(semel.DefaultWindow - time.Second)
		if w := do(); w.Code != 201 || w.Header().Get(httpidem.Replayed) != "true" {
			t.Errorf("before the end of the window the answer is %d %v", w.Code, w.Header())
		}
		s.mustHaveRun(t, 1)
		time.Sleep(10 * time.Second) // the window, and the tick of the store
		go func() { first <- do().Code }()
		<-first
		s.mustHaveRun(t, 2)
	})
}

// notExtended is a store that does not answer when a lease is extended.
type notExtended struct{ semel.Store }

func (notExtended) Extend(ctx context.Context, _ []semel.ExtendRequest, _ []semel.ExtendAnswer) error {
	<-ctx.Done()
	return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, ctx.Err())
}

// net/http takes a handler that returns for the end of its response, and one that wrote
// nothing for an empty 200. A handler that returned because its lease was lost has not said
// that: its response is whole only if it says so itself, or began after the loss.
func TestAHandlerThatGivesUpWithItsLeaseHasNotAnswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after func(http.ResponseWriter)
		kept          int // the status that a repetition gets; 0 if the outcome is unknown
	}{
		"nothing":                  {nil, nil, 0},
		"a part":                   {text("part"), nil, 0},
		"a flushed part":           {flushed("part"), nil, 0},
		"a header":                 {flushed(""), nil, 0},
		"parts until the loss":     {flushed("part"), text("another"), 0},
		"a part after the loss":    {nil, flushed("part"), 0},
		"less than its length":     {sized("5", "part"), nil, 0},
		"its length":               {sized("4", "full"), nil, 200},
		"its length in two parts":  {sized("4", "fu"), text("ll"), 200},
		"a status without a body":  {func(w http.ResponseWriter) { w.WriteHeader(204) }, nil, 204},
		"an answer after the loss": {nil, text("answer"), 200},
		"an empty answer after it": {nil, func(w http.ResponseWriter) { w.WriteHeader(201) }, 201},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
					if test.before != nil {
						test.before(w)
					}
					<-r.Context().Done()
					if test.after != nil {
						test.after(w)
					}
				}}
				handler, err := httpidem.New(newGuard(t, notExtended{newStore(t)}, hold), s, &httpidem.Options{Scope: httpidem.AnyCaller})
				if err != nil {
					t.Fatal(err)
				}
				for _, repeated := range []bool{false, true} {
					got, whole := exchange(t, handler)
					switch {
					case test.kept != 0:
						if !whole || got.StatusCode != test.kept || (got.Header.Get(httpidem.Replayed) != "") != repeated {
							t.Errorf("repeated %t: got %d %q %v, want %d", repeated, got.StatusCode, got.body, got.Header, test.kept)
						}
					case !repeated && !whole: // the client sees that its response is broken
					case got.problem() != string(httpidem.OutcomeUnknown):
						t.Errorf("repeated %t: got %d %q, whole %t, want the problem %s", repeated, got.StatusCode, got.body, whole, httpidem.OutcomeUnknown)
					}
				}
				s.mustHaveRun(t, 1)
			})
		})
	}
}

func text(part string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { _, _ = io.WriteString(w, part) }
}

func flushed(part string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		text(part)(w)
		w.(http.Flusher).Flush()
	}
}

func sized(length, part string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", length)
		flushed(part)(w)
	}
}

// exchange sends a request with a key to a handler as net/http does. The response is whole
// unless the handler ended it by a panic.
func exchange(t *testing.T, handler http.Handler) (got *reply, whole bool) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, &http.Server{}))
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
				panic(cause)
			} else {
				whole = cause == nil
			}
		}()
		handler.ServeHTTP(w, r)
	}()
	return &reply{Response: w.Result(), body: w.Body.Bytes()}, whole
}

// A response that its handler gave up has no record as a whole one, whatever made it give up.
// Its client sees that it is broken.
func TestAPartOfAResponseIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]http.HandlerFunc{
		"panic":             func(w http.ResponseWriter, _ *http.Request) { flushed("part")(w); panic("a bug") },
		"abort":             func(w http.ResponseWriter, _ *http.Request) { flushed("part")(w); panic(http.ErrAbortHandler) },
		"a broken length":   func(w http.ResponseWriter, _ *http.Request) { sized("5", "part")(w) },
		"an empty body":     func(w http.ResponseWriter, _ *http.Request) { sized("5", "")(w) },
		"an error after it": func(w http.ResponseWriter, _ *http.Request) { flushed("part")(w); http.Error(w, "no", 500) },
		"a middleware that recovers": func(w http.ResponseWriter, _ *http.Request) {
			defer func() {
				_ = recover()
				w.WriteHeader(500)
			}()
			flushed("part")(w)
			panic("a bug")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &service{handle: handle}
			server := front(t, newGuard(t, newStore(t), hold), s, nil)
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			if r, err := send(t.Context(), server.URL, strings.NewReader("a"), withKey("k")); err == nil && r.err == nil {
				t.Errorf("the client got a whole response: %v %q", r.Response, r.body)
			}
			settled(t, server.URL, "k").must(t, 409, httpidem.OutcomeUnknown)
			s.mustHaveRun(t, 1)
		})
	}
}

// A status without a body may announce the length of another response.
func TestALengthWithoutABodyIsNoBrokenResponse(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(http.StatusNotModified)
	}}
	server := front(t, newGuard(t, newStore(t), hold), s, nil)
	for _, replayed := range []string{"", "true"} {
		r := post(t, server.URL, "a", withKey("k"))
		if r.StatusCode != http.StatusNotModified || r.Header.Get(httpidem.Replayed) != replayed {
			t.Errorf("got %d %v %s", r.StatusCode, r.Header, r.body)
		}
	}
	s.mustHaveRun(t, 1)
}

// httputil takes a response that broke off for a whole one where net/http does not serve.
func TestABrokenResponseIsNoWholeOneBehindAnotherServer(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(w http.ResponseWriter, _ *http.Request) {
		flushed("part")(w)
		panic(http.ErrAbortHandler)
	}}
	upstream := httptest.NewServer(s)
	t.Cleanup(upstream.Close)
	handler, err := httpidem.New(newGuard(t, newStore(t), hold), proxyHandler(t, upstream.URL, httpidem.ProxyOptions{}), &httpidem.Options{Scope: caller, Go: recorded})
	if err != nil {
		t.Fatal(err)
	}
	if r := asks(t.Context(), handler, "alice", "k", "a"); r.StatusCode != 200 || string(r.body) != "part" {
		t.Errorf("the first answer is %d %q", r.StatusCode, r.body)
	}
	asks(t.Context(), handler, "alice", "k", "a").must(t, 409, httpidem.OutcomeUnknown)
	s.mustHaveRun(t, 1)
}

// A key is claimed when the whole body is there.
func TestAnUploadThatBreaksOffLeavesNoRecord(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), hold), s, nil)
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: "+server.Listener.Addr().String()+"\r\nCaller: alice\r\nIdempotency-Key: k\r\nContent-Length: 10\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || len(answer) < 12 || string(answer[9:12]) != "400" {
		t.Errorf("the answer is %q, %v", answer, err)
	}
	s.mustHaveRun(t, 0)
	post(t, server.URL, "whole", withKey("k")).must(t, 201, "")
	s.mustHaveRun(t, 1)
}

// The service may use the key as well, unless that is switched off.
func TestTheServiceGetsTheKey(t *testing.T) {
	t.Parallel()
	answer := func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Idempotency-Key")) }
	for name, server := range both(t, answer, nil) {
		if r := post(t, server.URL, "", withKey(`"k"`)); string(r.body) != `"k"` {
			t.Errorf("%s: the service got %q", name, r.body)
		}
	}
	hidden := front(t, newGuard(t, newStore(t), nil), http.HandlerFunc(answer), &httpidem.Options{HideKey: true})
	if r := post(t, hidden.URL, "", withKey(`"k"`)); string(r.body) != "" || r.StatusCode != http.StatusOK {
		t.Errorf("with HideKey: %d, the service got %q", r.StatusCode, r.body)
	}
}

// Every spelling of a key is one key for the handler too.
func TestTheHandlerGetsTheParsedKey(t *testing.T) {
	t.Parallel()
	for _, value := range []string{`"q-1"`, "q-1", ` "q-1";v=1 `} {
		var got semel.Key
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got, _ = httpidem.KeyOf(r.Context())
		})
		server := front(t, newGuard(t, newStore(t), nil), handler, &httpidem.Options{Route: "orders"})
		post(t, server.URL, "", withKey(value)).must(t, 200, "")
		if want := httpidem.Key("orders", "alice", "q-1"); got != want {
			t.Errorf("%s is %q, want %q", value, got.ID, want.ID)
		}
		if r := post(t, server.URL, "", header{"Accept", "*/*"}); r.StatusCode != 200 || got != (semel.Key{}) {
			t.Errorf("a request without a key: %d, its key is %q", r.StatusCode, got.ID)
		}
	}
}
