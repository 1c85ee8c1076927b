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
