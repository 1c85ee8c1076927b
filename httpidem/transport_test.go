package httpidem_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// line is a connection that gives one answer after the other. An answer is a status with
// headers, "broken" for a connection that breaks after the request was read, or "slow"
// for one that gives no answer before the request ends.
type line struct {
	answers []string
	keys    []string        // of the requests
	bodies  []string        // of the requests
	at      []time.Duration // since the first
	began   time.Time
	open    int // bodies of answers that were not closed
}

func (l *line) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.began.IsZero() {
		l.began = time.Now()
	}
	l.keys = append(l.keys, r.Header.Get("Idempotency-Key"))
	l.at = append(l.at, time.Since(l.began))
	body := ""
	if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		body = string(data)
	}
	l.bodies = append(l.bodies, body)
	answer := l.answers[min(len(l.keys), len(l.answers))-1]
	switch answer {
	case "broken":
		return nil, errors.New("the connection broke")
	case "slow":
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	text, header, _ := strings.Cut(answer, " ")
	status, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Request: r}
	if name, value, ok := strings.Cut(header, ": "); ok {
		resp.Header.Set(name, value)
	}
	l.open++
	resp.Body = &closing{strings.NewReader("answer"), &l.open}
	return resp, nil
}

type closing struct {
	io.Reader
	open *int
}

func (c *closing) Close() error { *c.open--; return nil }

func newClient(t *testing.T, base http.RoundTripper, opts *httpidem.TransportOptions) *http.Client {
	t.Helper()
	transport, err := httpidem.NewTransport(base, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: transport}
}

func TestTheClientSendsARequestAgainUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []string
		opts    httpidem.TransportOptions
		status  int // 0: an error
		least   time.Duration
		most    time.Duration
		sent    int
	}{
		"answered":            {answers: []string{"201"}, status: 201, sent: 1},
		"an error of its own": {answers: []string{"500"}, status: 500, sent: 1},
		"broken":              {answers: []string{"broken", "broken", "201"}, status: 201, sent: 3, least: 150 * time.Millisecond, most: 300 * time.Millisecond},
		"in flight":           {answers: []string{"409 Retry-After: 7", "201"}, status: 201, sent: 2, least: 7 * time.Second, most: 7 * time.Second},
		"unknown":             {answers: []string{"409"}, status: 409, sent: 1},
		"too many":            {answers: []string{"429 Retry-After: 2", "503 Retry-After: 3", "502", "504", "201"}, status: 201, sent: 5, least: 5 * time.Second, most: 7 * time.Second},
		"kept":                {answers: []string{"503", "503 Idempotent-Replayed: true"}, status: 503, sent: 2, most: 100 * time.Millisecond},
		"too often":           {answers: []string{"broken"}, opts: httpidem.TransportOptions{Tries: 3}, sent: 3, most: time.Second},
		"too often, answered": {answers: []string{"503"}, opts: httpidem.TransportOptions{Tries: 2}, status: 503, sent: 2, most: time.Second},
		"too late":            {answers: []string{"503 Retry-After: 61"}, status: 503, sent: 1},
		"by a date":           {answers: []string{"503 Retry-After: Sat, 01 Jan 2000 00:00:05 GMT", "201"}, status: 201, sent: 2, least: 5 * time.Second, most: 5 * time.Second},
		"no pause above 5 s":  {answers: []string{"broken"}, opts: httpidem.TransportOptions{Tries: 12}, sent: 12, least: 15650 * time.Millisecond, most: 31300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := &line{answers: c.answers}
				resp, err := newClient(t, l, &c.opts).Post("http://api.example/orders", "text/plain", strings.NewReader("order"))
				if (err != nil) != (c.status == 0) || err == nil && resp.StatusCode != c.status {
					t.Fatalf("the answer is %v, %v; want %d", resp, err, c.status)
				}
				if err == nil {
					if body, err := io.ReadAll(resp.Body); string(body) != "answer" || err != nil {
						t.Errorf("the body is %q, %v", body, err)
					}
					resp.Body.Close()
				}
				if l.open != 0 {
					t.Errorf("%d answers were not closed", l.open)
				}
				if len(l.keys) != c.sent || l.at[c.sent-1] < c.least || l.at[c.sent-1] > c.most {
					t.Errorf("requests were sent at %v; want %d, the last after %v to %v", l.at, c.sent, c.least, c.most)
				}
				for i, key := range l.keys {
					if key != l.keys[0] || len(key) < 20 || key[0] != '"' || l.bodies[i] != "order" {
						t.Errorf("request %d has the key %q and the body %q", i, key, l.bodies[i])
					}
				}
			})
		})
	}
}

func TestClientProtectsRequestsByMethodAndHeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		do := func(r *http.Request) *line {
			t.Helper()
			l := &line{answers: []string{"503", "201"}}
			resp, err := newClient(t, l, nil).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return l
		}
		request := func(method string, body io.Reader) *http.Request {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://api.example/", body)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if l := do(request(http.MethodGet, nil)); len(l.keys) != 1 || l.keys[0] != "" {
			t.Errorf("GET was sent with the keys %q", l.keys)
		}
		if l := do(request(http.MethodPost, nil)); len(l.keys) != 2 {
			t.Errorf("a request without a body was sent %d times", len(l.keys))
		}
		if l := do(request(http.MethodPost, io.MultiReader(strings.NewReader("stream")))); len(l.keys) != 1 || l.keys[0] == "" {
			t.Errorf("a stream was sent with the keys %q", l.keys)
		}
		own := request(http.MethodPatch, strings.NewReader("a"))
		own.Header.Set("Idempotency-Key", "mine")
		if l := do(own); !slices.Equal(l.keys, []string{"mine", "mine"}) {
			t.Errorf("the caller's own key became %q", l.keys)
		}
		plain := request(http.MethodPost, nil)
		if a, b := do(plain), do(plain); a.keys[0] == b.keys[0] || plain.Header.Get("Idempotency-Key") != "" {
			t.Errorf("two requests have the keys %q and %q, and the caller's %q", a.keys, b.keys, plain.Header)
		}
	})
}

func TestTheClientStopsWithItsCaller(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"503 Retry-After: 30", "slow"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.example/", strings.NewReader("a"))
			if err != nil {
				t.Fatal(err)
			}
			l, began := &line{answers: []string{answer}}, time.Now()
			if _, err := newClient(t, l, nil).Do(r); !errors.Is(err, context.DeadlineExceeded) || len(l.keys) != 1 || time.Since(began) != time.Second || l.open != 0 {
				t.Errorf("%s: %v after %d requests and %v, with %d open answers", answer, err, len(l.keys), time.Since(began), l.open)
			}
		})
	}
}

func TestInvalidTransportOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*httpidem.TransportOptions{"Tries": {Tries: -1}, "Budget": {Budget: -1}} {
		if _, err := httpidem.NewTransport(nil, opts); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

// A service that breaks connections after it has done the work: the client gets the
// answer of the first try.
func TestClientGetsTheFirstResponseAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	handler, err := httpidem.New(newGuard(t, newStore(t), hold), s, &httpidem.Options{Scope: httpidem.AnyCaller, Go: recorded})
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) < 3 {
			handler.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	resp, err := newClient(t, &http.Transport{}, nil).Post(server.URL, "text/plain", strings.NewReader("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "made of a" || resp.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v %q, %v", resp, body, err)
	}
	s.mustHaveRun(t, 1)
}

func TestProblemOfAResponseIsParsed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind, body string
		want       httpidem.Problem
	}{
		{"application/problem+json", `{"type":"https://example.org/problems/outcome-unknown"}`, httpidem.OutcomeUnknown},
		{"application/problem+json; charset=utf-8", `{"type":"in-flight"}`, httpidem.InFlight},
		{"application/problem+json", `{"title":"no type"}`, ""},
		{"application/problem+json", `{`, ""},
		{"application/json", `{"type":"in-flight"}`, ""},
	} {
		closed := 1
		resp := &http.Response{Header: http.Header{"Content-Type": {c.kind}}, Body: &closing{strings.NewReader(c.body), &closed}}
		if got := httpidem.ProblemOf(resp); got != c.want {
			t.Errorf("%s %s: the problem is %q, want %q", c.kind, c.body, got, c.want)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != c.body || err != nil {
			t.Errorf("the body is %q, %v", body, err)
		}
		if resp.Body.Close(); closed != 0 {
			t.Error("the body was not closed")
		}
	}
}
