package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// counted is a store that counts the claims that it is asked for.
type counted struct {
	semel.Store
	claims atomic.Int32
}

func (c *counted) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	c.claims.Add(int32(len(reqs)))
	return c.Store.Claim(ctx, reqs, answers)
}

// slow is a handler that takes a second, with these statuses, the last one for all that
// come later.
func slow(statuses ...int) *service {
	s := &service{}
	s.handle = func(w http.ResponseWriter, r *http.Request) {
		n := int(s.ran.Load())
		<-time.After(time.Second) // in a bubble
		w.WriteHeader(statuses[min(n, len(statuses))-1])
		fmt.Fprintf(w, "answer %d", n)
	}
	return s
}

// asks sends a request to a handler, without a network.
func asks(ctx context.Context, handler http.Handler, caller, key, body string) *reply {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(body))
	r.Header.Set("Caller", caller)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return &reply{Response: w.Result(), body: w.Body.Bytes()}
}

// limited returns a handler around next with a store of its own, or with this one.
func limited(t *testing.T, store semel.Store, next http.Handler, opts httpidem.Options) http.Handler {
	t.Helper()
	if store == nil {
		store = newStore(t)
	}
	opts.Scope = caller
	if opts.Go == nil {
		opts.Go = recorded
	}
	handler, err := httpidem.New(newGuard(t, store, hold), next, &opts)
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

// twice returns the handler of a first request and that of its repetitions. They are the
// same, or those of two processes with one store.
func twice(t *testing.T, store semel.Store, next http.Handler, opts httpidem.Options, elsewhere bool) (first, second http.Handler) {
	t.Helper()
	first = limited(t, store, next, opts)
	if !elsewhere {
		return first, first
	}
	return first, limited(t, store, next, opts)
}

// Many requests that wait for one key get its answer, and do not ask the store for it.
func TestWaitersGetTheFirstAnswer(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "in another process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const waiters = 2000
				store, s := &counted{Store: newStore(t)}, slow(201)
				opts := httpidem.Options{Wait: time.Minute, MaxWaiters: waiters, MaxWaitersPerKey: waiters}
				first, second := twice(t, store, s, opts, elsewhere)
				var running sync.WaitGroup
				running.Go(func() { asks(t.Context(), first, "alice", "k", "a").must(t, 201, "") })
				synctest.Wait()
				began := time.Now()
				for range waiters {
					running.Go(func() {
						if r := asks(t.Context(), second, "alice", "k", "a"); string(r.body) != "answer 1" || r.Header.Get(httpidem.Replayed) != "true" {
							t.Errorf("the answer is %v %s", r.Response, r.body)
						}
					})
				}
				synctest.Wait()
				asks(t.Context(), second, "alice", "k", "b").must(t, 422, httpidem.KeyReused) // it need not wait
				if took := time.Since(began); took != 0 {
					t.Errorf("another request was answered after %v", took)
				}
				running.Wait()
				s.mustHaveRun(t, 1)
				claims, most := store.claims.Load(), int32(1)
				if elsewhere { // one of them asks after 1 ms, 2 ms, 4 ms and so on
					most = 20
				}
				if claims > most {
					t.Errorf("the store was asked for %d claims, want %d at most", claims, most)
				}
			})
		})
	}
}

func TestWaitForAConcurrentRequestTimesOut(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "in another process": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store, s := newStore(t), slow(201)
				opts := httpidem.Options{Wait: 500 * time.Millisecond}
				first, second := twice(t, store, s, opts, elsewhere)
				var running sync.WaitGroup
				running.Go(func() { asks(t.Context(), first, "alice", "k", "a").must(t, 201, "") })
				synctest.Wait()
				began := time.Now()
				for range 3 { // the request that asks the store, and those that wait
					running.Go(func() {
						r := asks(t.Context(), second, "alice", "k", "a")
						if r.must(t, 409, httpidem.InFlight); time.Since(began) != 500*time.Millisecond || r.Header.Get("Retry-After") != "10" {
							t.Errorf("after %v the answer has %v", time.Since(began), r.Header)
						}
					})
				}
				gone, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer leave()
				running.Go(func() {
					asks(gone, second, "alice", "k", "a").must(t, 409, httpidem.InFlight)
					if took := time.Since(began); took != 100*time.Millisecond {
						t.Errorf("a client that left after 100 ms was waited for %v", took)
					}
				})
				running.Wait()
			})
		})
	}
}

func TestTheNumberOfWaitersIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := limited(t, nil, slow(201), httpidem.Options{Wait: time.Minute, MaxWaiters: 3, MaxWaitersPerKey: 2})
		var running sync.WaitGroup
		answered := make(chan int, 20)
		for _, key := range []string{"one", "two"} {
			running.Go(func() { asks(t.Context(), handler, "alice", key, "a").must(t, 201, "") })
			synctest.Wait()
			for range 5 {
				running.Go(func() { answered <- asks(t.Context(), handler, "alice", key, "a").StatusCode })
				synctest.Wait()
			}
		}
		if len(answered) != 3+4 { // two wait for the first key, and one for the second
			t.Errorf("%d requests were answered immediately, want 7", len(answered))
		}
		for range len(answered) {
			if status := <-answered; status != 409 {
				t.Errorf("the status is %d, want 409", status)
			}
		}
		running.Wait()
		for range 3 {
			if status := <-answered; status != 201 {
				t.Errorf("a request that waited got %d", status)
			}
		}
		// The room is free again.
		running.Go(func() { asks(t.Context(), handler, "alice", "three", "a").must(t, 201, "") })
		synctest.Wait()
		asks(t.Context(), handler, "alice", "three", "a").must(t, 201, "")
		running.Wait()
	})
}

// The first request took no effect, or it is not known whether it did.
func TestWaitingClientsContinueWhenTheFirstRequestHasNoResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := slow(429, 201)
		handler := limited(t, nil, s, httpidem.Options{Wait: time.Minute})
		var running sync.WaitGroup
		statuses := make(chan int, 5)
		for range 5 {
			running.Go(func() { statuses <- asks(t.Context(), handler, "alice", "k", "a").StatusCode })
		}
		running.Wait()
		s.mustHaveRun(t, 2)
		counts := map[int]int{}
		for range 5 {
			counts[<-statuses]++
		}
		if counts[429] != 1 || counts[201] != 4 {
			t.Errorf("the statuses are %v", counts)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &service{handle: func(http.ResponseWriter, *http.Request) {
			time.Sleep(time.Second)
			panic(http.ErrAbortHandler)
		}}
		handler := limited(t, nil, s, httpidem.Options{Wait: time.Minute})
		var running sync.WaitGroup
		running.Go(func() {
			defer func() { recover() }()
			asks(t.Context(), handler, "alice", "k", "a")
			t.Error("the handler did not panic")
		})
		synctest.Wait()
		for range 5 {
			running.Go(func() { asks(t.Context(), handler, "alice", "k", "a").must(t, 409, httpidem.OutcomeUnknown) })
		}
		running.Wait()
		s.mustHaveRun(t, 1)
	})
}

func TestACallerHasALimitOfRequestsInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := limited(t, nil, slow(201), httpidem.Options{MaxPerCaller: 2})
		var running sync.WaitGroup
		for i := range 2 {
			running.Go(func() { asks(t.Context(), handler, "alice", fmt.Sprint(i), "a").must(t, 201, "") })
		}
		synctest.Wait()
		if r := asks(t.Context(), handler, "alice", "more", "a"); r.Header.Get("Retry-After") != "1" {
			t.Errorf("the headers are %v", r.Header)
		} else {
			r.must(t, 503, httpidem.Overloaded)
		}
		asks(t.Context(), handler, "bob", "0", "a").must(t, 201, "")
		running.Wait()
		asks(t.Context(), handler, "alice", "more", "a").must(t, 201, "")
	})
}

// Responses take their part of MaxBuffered while requests are in progress.
func TestResponsesInProgressCountTowardsTheMemoryLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const kib = 1 << 10
		long := func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				t.Error(err)
			}
			w.Write(make([]byte, n*kib)) // a body of so many bytes asks for so many KiB
			time.Sleep(time.Second)
		}
		handler := limited(t, nil, http.HandlerFunc(long), httpidem.Options{MaxBody: 100, MaxBuffered: 100 * kib})
		asks(t.Context(), handler, "alice", "alone", strings.Repeat("x", 90)).must(t, 200, "")
		asks(t.Context(), handler, "alice", "alone", strings.Repeat("x", 90)).must(t, 200, "")
		var running sync.WaitGroup
		running.Go(func() { asks(t.Context(), handler, "alice", "first", strings.Repeat("x", 80)).must(t, 200, "") })
		synctest.Wait()
		running.Go(func() {
			if r := asks(t.Context(), handler, "alice", "second", strings.Repeat("x", 21)); len(r.body) != 21*kib {
				t.Errorf("the client got %d bytes", len(r.body))
			}
		})
		synctest.Wait()
		asks(t.Context(), handler, "alice", "third", "").must(t, 503, httpidem.Overloaded)
		running.Wait()
		asks(t.Context(), handler, "alice", "first", strings.Repeat("x", 80)).must(t, 200, "")
		asks(t.Context(), handler, "alice", "second", strings.Repeat("x", 21)).must(t, 409, httpidem.ResponseNotKept)
		asks(t.Context(), handler, "alice", "third", "").must(t, 200, "")
	})
}

func TestACallerHasAQuotaOfNewKeysPerHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, s := newStore(t), &service{handle: created}
		handler := limited(t, store, s, httpidem.Options{MaxKeysPerCaller: 2})
		for _, key := range []string{"one", "two", "one", "two"} {
			asks(t.Context(), handler, "alice", key, "a").must(t, 201, "")
		}
		for range 2 {
			if r := asks(t.Context(), handler, "alice", "three", "a"); r.Header.Get("Retry-After") != "3600" {
				t.Errorf("the headers are %v", r.Header)
			} else {
				r.must(t, 503, httpidem.Overloaded)
			}
		}
		if r := asks(t.Context(), handler, "alice", "one", "a"); r.Header.Get(httpidem.Replayed) != "true" {
			t.Errorf("a repetition gets %v %s", r.Response, r.body)
		}
		asks(t.Context(), handler, "bob", "three", "a").must(t, 201, "")
		s.mustHaveRun(t, 3)
		time.Sleep(time.Hour)
		asks(t.Context(), handler, "alice", "three", "a").must(t, 201, "")
		s.mustHaveRun(t, 4)
	})
}
