package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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
		handler, err := httpidem.New(newGuard(t, newStore(t), &semel.GuardOptions{Lease: 30 * time.Second}), s, &httpidem.Options{Scope: httpidem.Global})
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

// net/http takes a handler that writes nothing for an empty 200. A handler that returned
// because its lease was lost has not said that.
func TestAHandlerThatGivesUpWithItsLeaseHasNotAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &service{handle: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }}
		handler, err := httpidem.New(newGuard(t, notExtended{newStore(t)}, hold), s, &httpidem.Options{Scope: httpidem.Global})
		if err != nil {
			t.Fatal(err)
		}
		for _, which := range []string{"first", "repeated"} {
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Idempotency-Key", "k")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			got := &reply{Response: w.Result(), body: w.Body.Bytes()}
			if got.StatusCode == 200 || got.problem() != string(httpidem.OutcomeUnknown) {
				t.Errorf("the %s request got %d %q, want the problem %s", which, got.StatusCode, got.body, httpidem.OutcomeUnknown)
			}
		}
		s.mustHaveRun(t, 1)
	})
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
