package httpidem_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/httpidem"
)

// settled repeats a request until it is no longer in flight.
func settled(t *testing.T, url, key string) *reply {
	t.Helper()
	r := post(t, url, "a", withKey(key))
	for ; r.problem() == string(httpidem.InFlight); r = post(t, url, "a", withKey(key)) {
		if t.Context().Err() != nil {
			break
		}
	}
	return r
}

func TestAResponseThatStallsEndsWithAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	leave, stalls := make(chan struct{}), make(chan string, 10)
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		stalls <- r.Header.Get("Idempotency-Key")
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush()
		<-leave
	}}
	server := proxied(t, s, httpidem.ProxyOptions{Timeout: 3 * time.Second, Late: 200 * time.Millisecond})
	t.Cleanup(func() { close(leave) })
	key, r := "0", post(t, server.URL, "a", withKey("0"))
	for try := 1; r.StatusCode >= 502 && try < 5; try++ { // the machine stood still before the part came
		key = fmt.Sprint(try)
		r = post(t, server.URL, "a", withKey(key))
	}
	if r.err == nil {
		t.Errorf("the client got a whole answer: %v %q", r.Response, r.body)
	}
	settled(t, server.URL, key).must(t, 409, httpidem.OutcomeUnknown)
	ran := 0
	for len(stalls) > 0 {
		if <-stalls == key {
			ran++
		}
	}
	if ran != 1 {
		t.Errorf("the service ran %d times, want 1", ran)
	}
}

func TestAResponseWithoutEndStopsWhenItsClientLeaves(t *testing.T) {
	t.Parallel()
	piece := strings.Repeat("x", 64<<10)
	endless := func(ended chan<- error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := io.WriteString(w, piece); err != nil {
					ended <- err
					return
				}
			}
		}
	}
	for name, test := range map[string]struct {
		start func(*testing.T, *service) *httptest.Server
		then  httpidem.Problem
	}{
		// A handler may have undone its work because of the error.
		"handler": {func(t *testing.T, s *service) *httptest.Server {
			return front(t, newGuard(t, newStore(t), hold), s, nil)
		}, httpidem.OutcomeUnknown},
		"proxy": {func(t *testing.T, s *service) *httptest.Server {
			return proxied(t, s, httpidem.ProxyOptions{})
		}, httpidem.ResponseNotKept},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			s := &service{handle: endless(ended)}
			server := test.start(t, s)
			ctx, leave := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("a"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Caller", "alice")
			r.Header.Set("Idempotency-Key", "k")
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, len(piece))); err != nil {
				t.Fatal(err)
			}
			leave()
			resp.Body.Close()
			<-ended
			settled(t, server.URL, "k").must(t, 409, test.then)
			s.mustHaveRun(t, 1)
		})
	}
}

// The time-outs are for the header of a response, and for each next part of its body. The
// whole body may take longer.
func TestABodyMayTakeLongerThanTheTimeOut(t *testing.T) {
	t.Parallel()
	cut := make(chan string, 10)
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		next := time.NewTicker(100 * time.Millisecond)
		defer next.Stop()
		for range 45 { // together longer than both time-outs
			io.WriteString(w, "part ")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				cut <- r.Header.Get("Idempotency-Key")
				return
			case <-next.C:
			}
		}
		io.WriteString(w, "end")
	}}
	server := proxied(t, s, httpidem.ProxyOptions{Timeout: 3 * time.Second, Late: time.Second})
	key, first, stalled := "0", (*reply)(nil), true
	for try := 0; stalled && try < 5; try++ { // the parts of a machine that stands still come too late
		key = fmt.Sprint(try)
		first, stalled = pieces(t, server.URL, key)
	}
	ran := s.ran.Load()
	for _, r := range []*reply{first, post(t, server.URL, "a", withKey(key))} {
		if r.StatusCode != 200 || string(r.body) != strings.Repeat("part ", 45)+"end" || r.err != nil {
			t.Errorf("the answer is %v %q, %v", r.Response, r.body, r.err)
		}
	}
	for len(cut) > 0 {
		if <-cut == key {
			t.Error("the proxy has cut the response")
		}
	}
	s.mustHaveRun(t, ran)
}

// pieces sends a request and reads its response piece by piece. stalled says that one of them
// took longer than they do if the machine does not stand still.
func pieces(t *testing.T, url, key string) (_ *reply, stalled bool) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("a"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Caller", "alice")
	r.Header.Set("Idempotency-Key", key)
	last := time.Now()
	came := func() {
		stalled = stalled || time.Since(last) > 2*time.Second
		last = time.Now()
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var body []byte
	for piece := make([]byte, 100); ; {
		came()
		var n int
		n, err = resp.Body.Read(piece)
		if body = append(body, piece[:n]...); err != nil {
			break
		}
	}
	if came(); err == io.EOF {
		err = nil
	}
	return &reply{resp, body, err}, stalled
}
