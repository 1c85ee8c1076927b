package httpidem_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// both starts a handler, and a proxy in front of it.
func both(t *testing.T, handle http.HandlerFunc, opts *httpidem.Options) map[string]*httptest.Server {
	t.Helper()
	return map[string]*httptest.Server{
		"handler": front(t, newGuard(t, newStore(t), hold), handle, opts),
		"proxy":   proxied(t, &service{handle: handle}, httpidem.ProxyOptions{}),
	}
}

func TestAReplaySaysWhenItRanAndHowLongItIsKept(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	before := time.Now().Truncate(time.Second)
	for window, want := range map[time.Duration]bool{time.Hour: true, semel.Forever: false} {
		server := front(t, newGuard(t, newStore(t), &semel.GuardOptions{Window: window}), s, nil)
		first, again := post(t, server.URL, "a", withKey("k")), post(t, server.URL, "a", withKey("k"))
		if first.Header.Get(httpidem.Executed) != "" || first.Header.Get(httpidem.Expires) != "" {
			t.Errorf("the first answer has %v", first.Header)
		}
		at, err := http.ParseTime(again.Header.Get(httpidem.Executed))
		if err != nil || at.Before(before) || at.After(time.Now()) {
			t.Errorf("it ran at %v, %v", at, err)
		}
		until, err := http.ParseTime(again.Header.Get(httpidem.Expires))
		if (err == nil) != want || want && !until.Equal(at.Add(window)) {
			t.Errorf("with the window %v it is kept until %v, %v", window, until, err)
		}
	}
}

func TestHandlerCannotSetTheReplayHeaders(t *testing.T) {
	t.Parallel()
	for name, server := range both(t, func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{httpidem.Replayed, httpidem.Executed, httpidem.Expires} {
			w.Header().Set(name, "true")
		}
	}, nil) {
		r := post(t, server.URL, "a", withKey("k"))
		if r.Header.Get(httpidem.Replayed)+r.Header.Get(httpidem.Executed)+r.Header.Get(httpidem.Expires) != "" {
			t.Errorf("%s: the first answer has %v", name, r.Header)
		}
	}
}

// A script of another origin must not read what its browser got for the first one.
func TestReplayIsReadableOnlyByItsCORSOrigin(t *testing.T) {
	t.Parallel()
	cors := func(w http.ResponseWriter, r *http.Request) {
		switch origin := r.Header.Get("Origin"); origin {
		case "":
		case "https://open":
			w.Header().Set("Access-Control-Allow-Origin", "*")
		default:
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Access-Control-Allow-Credentials", "true")
			w.Header().Set("Access-Control-Expose-Headers", "Location")
			w.Header().Set("Vary", "Origin")
		}
	}
	for name, server := range both(t, cors, nil) {
		for i, c := range []struct{ first, again, allowed string }{
			{"https://a", "https://a", "https://a"},
			{"https://a", "https://b", ""},
			{"https://a", "", ""},
			{"", "https://a", ""},
			{"https://open", "https://b", "*"},
		} {
			key := fmt.Sprint(i)
			post(t, server.URL, "", header{"Idempotency-Key", key, "Origin", c.first})
			r := post(t, server.URL, "", header{"Idempotency-Key", key, "Origin", c.again})
			if r.Header.Get(httpidem.Replayed) != "true" || r.Header.Get("Access-Control-Allow-Origin") != c.allowed {
				t.Errorf("%s: first %q, then %q: the headers are %v", name, c.first, c.again, r.Header)
			}
			exposed := strings.Join(r.Header.Values("Access-Control-Expose-Headers"), ", ")
			if strings.Contains(exposed, httpidem.Replayed) != (c.allowed != "") || strings.Contains(exposed, "Location") != (c.allowed == "https://a") {
				t.Errorf("%s: first %q, then %q: exposed are %q", name, c.first, c.again, exposed)
			}
		}
	}
	// A handler in front decides for each request.
	inner, err := httpidem.New(newGuard(t, newStore(t), nil), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), &httpidem.Options{Scope: httpidem.AnyCaller})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	for _, origin := range []string{"https://a", "https://b"} {
		if r := post(t, server.URL, "", header{"Idempotency-Key", "k", "Origin", origin}); r.Header.Get("Access-Control-Allow-Origin") != origin {
			t.Errorf("%s: the headers are %v", origin, r.Header)
		}
	}
}

func TestRetryAfterOfAReplay(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"past": time.Now().Add(-time.Minute).UTC().Format(http.TimeFormat), "soon": time.Now().Add(time.Minute).UTC().Format(http.TimeFormat),
		"seconds": "60", "none": "0", "wrong": "later",
	}
	server := front(t, newGuard(t, newStore(t), nil), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", values[r.Header.Get("Idempotency-Key")])
		w.WriteHeader(503)
	}), nil)
	for key := range values {
		post(t, server.URL, "", withKey(key))
		r := post(t, server.URL, "", withKey(key))
		got := r.Header.Get("Retry-After")
		var seconds int
		if _, err := fmt.Sscan(got, &seconds); (err == nil) != (key == "soon" || key == "seconds") || seconds > 60 || err == nil && seconds < 50 {
			t.Errorf("%s: Retry-After is %q", key, got)
		}
	}
}

// Trailers may have the status of a call, as in gRPC.
func TestTrailersReachTheClientAndAreNotReplayed(t *testing.T) {
	t.Parallel()
	for name, server := range both(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "declared" {
			w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		}
		io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		if r.Header.Get("Idempotency-Key") == "declared" {
			w.Header().Set("Grpc-Status", "13")
		} else {
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "13")
		}
	}, nil) {
		for _, key := range []string{"declared", "late"} {
			if r := post(t, server.URL, "", withKey(key)); r.Trailer.Get("Grpc-Status") != "13" || string(r.body) != "body" {
				t.Errorf("%s, %s: the trailers are %v, the body %q", name, key, r.Trailer, r.body)
			}
			post(t, server.URL, "", withKey(key)).must(t, 409, httpidem.ResponseNotKept)
		}
	}
}

// A stream of events may have no end. It ends with its client, and its request took effect.
func TestAResponseThatIsNotKeptEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for name, header := range map[string][2]string{
		"a stream of events":  {"Content-Type", "text/event-stream"},
		"a response too long": {"Content-Length", strconv.Itoa(1 << 40)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testCutOff(t, header)
		})
	}
}

// testCutOff has a client that leaves within a response that is not kept. The service notices,
// and the request took effect.
func testCutOff(t *testing.T, header [2]string) {
	ended := make(chan struct{}, 1)
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(header[0], header[1])
		w.WriteHeader(201)
		for {
			select {
			case <-r.Context().Done():
				ended <- struct{}{}
				return
			default:
				io.WriteString(w, "data: x\n\n")
				w.(http.Flusher).Flush()
			}
		}
	}}
	server := proxied(t, s, httpidem.ProxyOptions{})
	r, err := http.NewRequest(http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Caller": {"alice"}, "Idempotency-Key": {"k"}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 20)); err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	<-ended
	again := post(t, server.URL, "", withKey("k"))
	for ; again.problem() == string(httpidem.InFlight); again = post(t, server.URL, "", withKey("k")) {
	}
	if again.must(t, 409, httpidem.ResponseNotKept); !strings.Contains(string(again.body), "201") {
		t.Errorf("the problem does not name the status: %s", again.body)
	}
	s.mustHaveRun(t, 1)
}

func TestResponseReportsAnIgnoredKey(t *testing.T) {
	t.Parallel()
	for name, server := range both(t, func(http.ResponseWriter, *http.Request) {}, nil) {
		for method, want := range map[string]string{"GET": "ignored", "OPTIONS": "ignored", "PUT": "ignored", "POST": ""} {
			r, err := http.NewRequest(method, server.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header = http.Header{"Caller": {"alice"}, "Idempotency-Key": {"k"}}
			for range 2 {
				resp, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if got := resp.Header.Get("Idempotency-Status"); got != want || (resp.Header.Get(httpidem.Replayed) != "") && want != "" {
					t.Errorf("%s, %s: the headers are %v", name, method, resp.Header)
				}
				if r.Header.Del("Idempotency-Key"); method == "POST" {
					break
				}
				want = ""
			}
		}
	}
}

func TestABrokenResponseOfAHandlerIsNotKept(t *testing.T) {
	t.Parallel()
	for length, then := range map[string]httpidem.Problem{"5": httpidem.OutcomeUnknown, "3": httpidem.ResponseNotKept} {
		s := &service{handle: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", length)
			io.WriteString(w, "four")
		}}
		server := front(t, newGuard(t, newStore(t), hold), s, nil)
		if r, err := send(t.Context(), server.URL, nil, withKey("k")); err == nil && r.err == nil && string(r.body) == "four" {
			t.Errorf("the client got %v", r.Response)
		}
		post(t, server.URL, "", withKey("k")).must(t, 409, then)
		s.mustHaveRun(t, 1)
	}
}

// Headers of the connection and of its client are for the first client alone.
func TestReplayOmitsConnectionAndClientHeaders(t *testing.T) {
	t.Parallel()
	first := http.Header{
		"Etag": {`"1"`}, "Location": {"/a"}, "Link": {"</a>", "</b>"}, "Last-Modified": {"Mon, 01 Jan 2024 00:00:00 GMT"}, "X-Extra": {"1", "2"}, "Date": {"Mon, 01 Jan 2024 00:00:00 GMT"},
	}
	never := http.Header{"Set-Cookie": {"a=b"}, "Connection": {"X-Secret, keep-alive"}, "X-Secret": {"1"}, "Proxy-Authenticate": {"Basic"}, "Alt-Svc": {"h3"}, "X-Other": {"1"}}
	server := front(t, newGuard(t, newStore(t), nil), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range []http.Header{first, never} {
			for name, values := range h {
				w.Header()[name] = values
			}
		}
		w.WriteHeader(201)
	}), &httpidem.Options{Replay: []string{"x-extra", "X-Secret"}})
	post(t, server.URL, "", withKey("k"))
	r := post(t, server.URL, "", withKey("k"))
	for name, values := range first {
		if same := fmt.Sprint(r.Header[name]) == fmt.Sprint(values); same != (name != "Date") {
			t.Errorf("%s is %q, at first %q", name, r.Header[name], values)
		}
	}
	for name := range never {
		if r.Header[name] != nil {
			t.Errorf("%s was replayed", name)
		}
	}
}

func TestKeptAnswersMayBeEncrypted(t *testing.T) {
	t.Parallel()
	guard, s := newGuard(t, newStore(t), nil), &service{handle: created}
	with := func(secret string) http.Handler {
		block, err := aes.NewCipher([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		encryption, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			t.Fatal(err)
		}
		handler, err := httpidem.New(guard, s, &httpidem.Options{Scope: caller, Encryption: encryption, Go: recorded})
		if err != nil {
			t.Fatal(err)
		}
		return handler
	}
	right, wrong := with("0123456789abcdef"), with("fedcba9876543210")
	first := asks(t.Context(), right, "alice", "k", "a")
	record, err := guard.Look(t.Context(), httpidem.Key("http", "alice", "k"))
	if err != nil {
		t.Fatal(err)
	}
	if data := record.Result.Data; len(data) == 0 || bytes.Contains(data, first.body) || bytes.Contains(data, []byte("Location")) {
		t.Errorf("the store has %q", data)
	}
	if again := asks(t.Context(), right, "alice", "k", "a"); string(again.body) != string(first.body) || again.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the repetition: %d %q", again.StatusCode, again.body)
	}
	asks(t.Context(), wrong, "alice", "k", "a").must(t, 409, httpidem.ResponseNotKept)
	s.mustHaveRun(t, 1)
}
