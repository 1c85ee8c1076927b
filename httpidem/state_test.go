package httpidem_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// states returns a handler that says what is known of the keys of a guard.
func states(t *testing.T, guard *semel.Guard) http.Handler {
	t.Helper()
	handler, err := httpidem.NewState(guard, &httpidem.Options{Scope: caller})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(httpidem.StatePattern, handler)
	return mux
}

func ask(handler http.Handler, method, caller, key string) *reply {
	r := httptest.NewRequest(method, strings.Replace(httpidem.StatePattern, "{key}", url.PathEscape(key), 1), nil)
	r.Header.Set("Caller", caller)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return &reply{Response: w.Result(), body: w.Body.Bytes()}
}

func mustBe(t *testing.T, handler http.Handler, caller, key string, want httpidem.KeyState) {
	t.Helper()
	var got httpidem.KeyState
	r := ask(handler, http.MethodGet, caller, key)
	if err := json.Unmarshal(r.body, &got); err != nil || r.StatusCode != 200 || r.Header.Get("Cache-Control") != "no-store" || got != want {
		t.Errorf("%s of %s: %d %s, %v; want %+v", key, caller, r.StatusCode, r.body, err, want)
	}
}

func TestStateEndpointReportsEachKeyState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		guard := newGuard(t, newStore(t), hold)
		s := slow(201)
		handler, err := httpidem.New(guard, s, &httpidem.Options{Scope: caller, MaxResponse: 8})
		if err != nil {
			t.Fatal(err)
		}
		state, began := states(t, guard), time.Now().UTC()
		mustBe(t, state, "alice", "k", httpidem.KeyState{State: "absent"})
		var running sync.WaitGroup
		running.Go(func() { asks(t.Context(), handler, "alice", `"k"`, "a") })
		synctest.Wait()
		mustBe(t, state, "alice", "k", httpidem.KeyState{State: "in-flight", FirstSeen: began, LeaseEnd: began.Add(30 * time.Second)})
		mustBe(t, state, "bob", "k", httpidem.KeyState{State: "absent"})
		running.Wait()
		ended := began.Add(time.Second)
		done := httpidem.KeyState{State: "done", Status: 201, FirstSeen: began, Executed: ended, Expires: ended.Add(24 * time.Hour)}
		mustBe(t, state, "alice", "k", done)
		mustBe(t, state, "alice", `"k"`, done) // as in the header
		mustBe(t, state, "bob", "k", httpidem.KeyState{State: "absent"})
		if r := ask(state, http.MethodHead, "alice", "k"); r.StatusCode != 200 {
			t.Errorf("HEAD gets %d", r.StatusCode)
		}

		s.handle = func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "longer than 8 bytes") }
		asks(t.Context(), handler, "alice", "a/b c", "a").must(t, 200, "")
		mustBe(t, state, "alice", "a/b c", httpidem.KeyState{State: "response-not-kept", Status: 200, FirstSeen: ended, Executed: ended, Expires: ended.Add(24 * time.Hour)})

		s.handle = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		func() {
			defer func() { recover() }()
			asks(t.Context(), handler, "alice", "lost", "a")
		}()
		var lost httpidem.KeyState
		if err := json.Unmarshal(ask(state, http.MethodGet, "alice", "lost").body, &lost); err != nil || lost.State != "unknown" || lost.Status != 0 {
			t.Errorf("the state is %+v, %v", lost, err)
		}
		s.mustHaveRun(t, 3)
	})
}

// unreadable is a store that cannot look keys up now.
type unreadable struct{ semel.Store }

func (u unreadable) Unwrap() semel.Store { return u.Store }

func (unreadable) Look(context.Context, []semel.Key, []semel.Record) error { return errDown }

func (u unreadable) Count(ctx context.Context) (semel.Counts, error) {
	return u.Store.(semel.Inspector).Count(ctx)
}

func (u unreadable) List(ctx context.Context, opts semel.ListOptions) iter.Seq2[semel.Record, error] {
	return u.Store.(semel.Inspector).List(ctx, opts)
}

func TestKeyStateRefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	state := states(t, newGuard(t, newStore(t), nil))
	ask(state, http.MethodGet, "", "k").must(t, 401, httpidem.ScopeMissing)
	ask(state, http.MethodGet, "alice", strings.Repeat("x", 256)).must(t, 400, httpidem.KeyInvalid)
	ask(state, http.MethodGet, "alice", `"k`).must(t, 400, httpidem.KeyInvalid)
	if r := ask(state, http.MethodPost, "alice", "k"); r.StatusCode != 405 || r.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST gets %d with %v", r.StatusCode, r.Header)
	}
	r := ask(states(t, newGuard(t, unreadable{newStore(t)}, nil)), http.MethodGet, "alice", "k")
	if r.must(t, 503, httpidem.StoreUnavailable); strings.Contains(string(r.body), "10.0.0.1") {
		t.Errorf("the answer names the store: %s", r.body)
	}
	for name, guard := range map[string]*semel.Guard{"none": nil, "Scope": newGuard(t, newStore(t), nil)} {
		if _, err := httpidem.NewState(guard, nil); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if _, err := httpidem.NewState(newGuard(t, struct{ semel.Store }{newStore(t)}, nil), &httpidem.Options{Scope: httpidem.AnyCaller}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("a store that cannot look keys up: the error is %v", err)
	}
}
