package httpidem_test

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/memstore"
)

// stalling is a store whose verbs do not answer while it stalls. It has executed them.
type stalling struct {
	semel.Store

	mu   sync.Mutex
	gate chan struct{} // nil while it answers
	late error         // of a caller that waits no longer; defaults to semel.ErrOutcomeUnknown
}

func (s *stalling) Unwrap() semel.Store { return s.Store }

func (s *stalling) stall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan struct{})
}

func (s *stalling) answer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.gate)
	s.gate = nil
}

// wait waits until the store answers.
func (s *stalling) wait(ctx context.Context) error {
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate == nil {
		return nil
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return cmp.Or(s.late, semel.ErrOutcomeUnknown)
	}
}

func (s *stalling) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	own := make([]semel.ClaimAnswer, len(reqs))
	err := s.Store.Claim(ctx, reqs, own)
	if stalled := s.wait(ctx); stalled != nil {
		return stalled
	}
	copy(answers, own)
	return err
}

func (s *stalling) Complete(ctx context.Context, reqs []semel.CompleteRequest, errs []error) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Store.Complete(ctx, reqs, errs)
}

func (s *stalling) Release(ctx context.Context, reqs []semel.ReleaseRequest, errs []error) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	return s.Store.Release(ctx, reqs, errs)
}

// watched is the writer of a client that sees each write immediately.
type watched struct {
	*httptest.ResponseRecorder
	mu  sync.Mutex
	got bytes.Buffer
}

func (w *watched) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.got.Write(data)
	return w.ResponseRecorder.Write(data)
}

func (w *watched) bytes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got.Len()
}

// A client gets the end of its answer when the answer is recorded, and after a second at the
// latest. This is so for every length, and for answers that are not kept.
func TestAnAnswerEndsWhenItIsRecordedOrAfterASecond(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		size    int
		chunked bool
		status  int
		then    int // the status of a repetition
	}{
		"short":             {5, false, 200, 200},
		"long":              {64_000, false, 200, 200},
		"chunked":           {64_000, true, 200, 200},
		"too long to keep":  {3 << 20, false, 200, 409},
		"without a body":    {0, false, 200, 200},
		"without an effect": {64_000, false, 429, 429},
	} {
		for _, stalls := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &stalling{Store: newStore(t)}
					body := strings.Repeat("x", test.size)
					var running sync.WaitGroup
					var ended time.Time
					handler := limited(t, store, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						store.stall()
						if !test.chunked {
							w.Header().Set("Content-Length", strconv.Itoa(test.size))
						}
						w.WriteHeader(test.status)
						for part := range strings.SplitSeq(body, "|") {
							w.Write([]byte(part))
						}
						ended = time.Now()
					}), httpidem.Options{Go: running.Go})
					r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("body"))
					r.Header.Set("Caller", "alice")
					r.Header.Set("Idempotency-Key", "k")
					w := &watched{ResponseRecorder: httptest.NewRecorder()}
					answered := make(chan time.Time, 1)
					go func() {
						handler.ServeHTTP(w, r)
						answered <- time.Now()
					}()
					time.Sleep(500 * time.Millisecond)
					synctest.Wait()
					if !test.chunked && test.size > 0 && w.bytes() != test.size-1 {
						t.Errorf("before the answer is recorded, the client has %d of %d bytes", w.bytes(), test.size)
					}
					if !stalls {
						store.answer()
					}
					at := <-answered
					took, want := at.Sub(ended), time.Second
					if !stalls {
						want = 500 * time.Millisecond
					}
					if took != want || w.bytes() != test.size {
						t.Errorf("the client has %d of %d bytes after %v, want all after %v", w.bytes(), test.size, took, want)
					}
					if stalls {
						time.Sleep(5 * time.Second)
						store.answer()
					}
					running.Wait() // it is recorded although the client had its answer before
					again := asks(t.Context(), handler, "alice", "k", "body")
					if test.status == 429 { // it ran again
						store.answer()
					}
					if again.StatusCode != test.then {
						t.Errorf("a repetition gets %d %s", again.StatusCode, again.body)
					}
				})
			})
		}
	}
}

// A claim without an answer ends after a bounded time: nothing has run, and the key is free
// when the store answers again.
func TestUnansweredClaimTimesOut(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		late error
		open bool
	}{
		{semel.ErrOutcomeUnknown, false}, {semel.ErrOutcomeUnknown, true}, {context.DeadlineExceeded, false}, {context.DeadlineExceeded, true},
	} {
		t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stalling{Store: newStore(t), late: test.late}
				s := &service{handle: created}
				handler := limited(t, store, s, httpidem.Options{FailOpen: test.open})
				store.stall()
				began := time.Now()
				r := asks(t.Context(), handler, "alice", "k", "body")
				if took := time.Since(began); took > 12*time.Second {
					t.Errorf("the answer took %v", took)
				}
				if test.open {
					if r.must(t, 201, ""); r.Header.Get("Idempotency-Status") != "unprotected" {
						t.Errorf("the answer has %v", r.Header)
					}
					store.answer()
					return
				}
				r.must(t, 503, httpidem.StoreUnavailable)
				s.mustHaveRun(t, 0)
				store.answer()
				time.Sleep(time.Minute) // longer than a lease
				asks(t.Context(), handler, "alice", "k", "body").must(t, 201, "")
				s.mustHaveRun(t, 1)
			})
		})
	}
}

// A request whose answer is still to be recorded takes its memory, and counts for its caller.
func TestRequestsCountUntilTheyAreRecorded(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]httpidem.Options{
		"caller": {MaxPerCaller: 1},
		"memory": {MaxBody: 100, MaxBuffered: 20 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stalling{Store: newStore(t)}
				var running sync.WaitGroup
				opts.Go = running.Go
				first := true
				handler := limited(t, store, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if first {
						store.stall()
					}
					first = false
					w.WriteHeader(201)
				}), opts)
				asks(t.Context(), handler, "alice", "k", "body").must(t, 201, "")
				asks(t.Context(), handler, "alice", "other", "body").must(t, 503, httpidem.Overloaded)
				store.answer()
				running.Wait()
				asks(t.Context(), handler, "alice", "other", "body").must(t, 201, "")
			})
		})
	}
}

// unread is the writer of a client that reads nothing until it may.
type unread struct {
	*httptest.ResponseRecorder
	may <-chan struct{}
}

func (w *unread) Write(data []byte) (int, error) {
	<-w.may
	return w.ResponseRecorder.Write(data)
}

// Kept answers take memory until their clients have them.
func TestReplayedResponsesCountTowardsTheMemoryLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		s := &service{handle: func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, size)) }}
		handler := limited(t, nil, s, httpidem.Options{MaxBuffered: 8 * size})
		asks(t.Context(), handler, "alice", "k", "body").must(t, 200, "")
		may := make(chan struct{})
		var clients sync.WaitGroup
		var mu sync.Mutex
		statuses := map[int]int{}
		for range 100 {
			clients.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("body"))
				r.Header.Set("Caller", "alice")
				r.Header.Set("Idempotency-Key", "k")
				w := &unread{httptest.NewRecorder(), may}
				handler.ServeHTTP(w, r)
				mu.Lock()
				defer mu.Unlock()
				if statuses[w.Code]++; w.Code == 503 && w.Result().Header.Get("Retry-After") != "1" {
					t.Errorf("the refusal has %v", w.Result().Header)
				}
				if w.Code == 200 && w.Body.Len() != size {
					t.Errorf("the answer has %d bytes", w.Body.Len())
				}
			})
		}
		synctest.Wait()
		close(may)
		clients.Wait()
		if statuses[200] < 5 || statuses[200] > 9 || statuses[200]+statuses[503] != 100 {
			t.Errorf("the clients got %v", statuses)
		}
		asks(t.Context(), handler, "alice", "k", "body").must(t, 200, "")
		s.mustHaveRun(t, 1)
	})
}

// The longest kept response has room in the store with the longest headers, whatever the
// store keeps.
func TestTheLongestResponseFitsIntoTheStore(t *testing.T) {
	t.Parallel()
	for _, keeps := range []int64{1 << 20, 2 << 20, 100 << 10} {
		store, err := memstore.New(&memstore.Options{MaxResult: keeps})
		if err != nil {
			t.Fatal(err)
		}
		longest := min(1<<20, int(keeps)-68<<10)
		for size, kept := range map[int]bool{longest: true, longest + 1: false} {
			s := &service{handle: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Link", strings.Repeat("x", 60<<10))
				w.Write(make([]byte, size))
			}}
			handler := limited(t, store, s, httpidem.Options{})
			key := strconv.Itoa(size)
			asks(t.Context(), handler, "alice", key, "body").must(t, 200, "")
			if again := asks(t.Context(), handler, "alice", key, "body"); (again.StatusCode == 200) != kept {
				t.Errorf("a store that keeps %d bytes: a repetition of %d bytes gets %d", keeps, size, again.StatusCode)
			}
			s.mustHaveRun(t, 1)
		}
		opts := httpidem.Options{Scope: caller, MaxResponse: keeps - 68<<10 + 1}
		if _, err := httpidem.New(newGuard(t, store, hold), &service{}, &opts); err == nil {
			t.Errorf("a store that keeps %d bytes is accepted for responses of %d", keeps, opts.MaxResponse)
		}
	}
}
