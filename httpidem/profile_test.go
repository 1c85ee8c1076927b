package httpidem_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
)

// named returns the options of a profile.
func named(t *testing.T, name string) *httpidem.Options {
	t.Helper()
	p, ok := httpidem.ProfileNamed(name)
	if !ok {
		t.Fatalf("there is no profile %s", name)
	}
	return &httpidem.Options{Profile: p}
}

func TestProfilesAreValid(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, newStore(t), nil)
	var names []string
	for _, p := range httpidem.Profiles() {
		names = append(names, p.Name)
		if _, err := httpidem.New(guard, http.NotFoundHandler(), &httpidem.Options{Scope: httpidem.AnyCaller, Profile: p}); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		p.Release[0] = "changed"
	}
	if got := strings.Join(names, " "); got != "ietf stripe adyen paypal square oasis acp mcp" {
		t.Errorf("the profiles are %s", got)
	}
	if p, _ := httpidem.ProfileNamed("ietf"); p.Release[0] != "401" {
		t.Errorf("a caller has changed a profile: %v", p)
	}
	if _, ok := httpidem.ProfileNamed("other"); ok {
		t.Error("there is a profile with another name")
	}
}

func TestInvalidProfilesAreRefused(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, newStore(t), nil)
	for name, p := range map[string]httpidem.Profile{
		"Headers":        {Headers: []string{""}},
		"neither":        {Headers: []string{}},
		"X Y":            {Headers: []string{"X Y"}},
		"KeyPointer":     {KeyPointer: "id"},
		"MinKey":         {MinKey: 300},
		"Release":        {Release: []string{"6xx"}},
		"no status":      {Release: []string{"42"}},
		"MismatchStatus": {MismatchStatus: 200},
		"Methods":        {Methods: []string{"GET"}},
	} {
		_, err := httpidem.New(guard, http.NotFoundHandler(), &httpidem.Options{Scope: httpidem.AnyCaller, Profile: p})
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	for _, f := range []httpidem.FingerprintOptions{{Include: []string{"a"}}, {Exclude: []string{"/a~2"}}, {Include: []string{strings.Repeat("/a", 33)}}} {
		if _, err := httpidem.New(guard, http.NotFoundHandler(), &httpidem.Options{Scope: httpidem.AnyCaller, Fingerprint: f}); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%v: the error is %v", f, err)
		}
	}
}

// Each profile's first request, its replay, another request under its key, and a second
// one in flight.
func TestProfilesHaveTheirOwnHeadersAndStatuses(t *testing.T) {
	t.Parallel()
	sent := firstSent(0)
	for name, c := range map[string]struct {
		key                func(key string) header
		mismatch, inFlight int
		method, other      string // a method that takes a key, and one that takes none
		longest            int
		again500           int32 // how often a request runs whose first answer was 500
	}{
		"ietf":   {withKey, 422, 409, "PATCH", "PUT", 255, 1},
		"stripe": {withKey, 422, 409, "POST", "PATCH", 255, 1},
		"adyen":  {withKey, 422, 409, "POST", "PATCH", 64, 1},
		"paypal": {func(key string) header { return header{"PayPal-Request-Id", key} }, 422, 409, "POST", "PATCH", 108, 2},
		"oasis": {func(key string) header {
			return header{"Repeatability-Request-ID", key, "Repeatability-First-Sent", sent}
		}, 400, 409, "DELETE", "", 255, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entered, leave := make(chan struct{}), make(chan struct{})
			s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/slow":
					close(entered)
					<-leave
				case "/500":
					w.WriteHeader(500)
				}
			}}
			server := front(t, newGuard(t, newStore(t), nil), s, named(t, name))
			do := func(method, path, key string) *reply { return request(t, method, server.URL+path, "", c.key(key)) }
			do(c.method, "/a", "a").must(t, 200, "")
			if r := do(c.method, "/a", "a"); r.Header.Get(httpidem.Replayed) != "true" {
				t.Errorf("the second answer has %v", r.Header)
			}
			do(c.method, "/b", "a").must(t, c.mismatch, httpidem.KeyReused)
			s.mustHaveRun(t, 1)
			do(c.method, "/a", strings.Repeat("x", c.longest)).must(t, 200, "")
			do(c.method, "/a", strings.Repeat("x", c.longest+1)).must(t, 400, httpidem.KeyInvalid)
			s.mustHaveRun(t, 2)
			if c.other != "" {
				do(c.other, "/a", "other").must(t, 200, "")
				do(c.other, "/a", "other").must(t, 200, "")
				s.mustHaveRun(t, 4)
			}
			before := s.ran.Load()
			do(c.method, "/500", "500")
			do(c.method, "/500", "500")
			s.mustHaveRun(t, before+c.again500)

			first := make(chan *reply)
			go func() { first <- do(c.method, "/slow", "slow") }()
			<-entered
			r := do(c.method, "/slow", "slow")
			if r.must(t, c.inFlight, httpidem.InFlight); (r.Header.Get("Transient-Error") == "true") != (name == "adyen") {
				t.Errorf("the headers are %v", r.Header)
			}
			close(leave)
			(<-first).must(t, 200, "")
		})
	}
}

// firstSent returns a time as HTTP date.
func firstSent(ago time.Duration) string {
	return time.Now().Add(-ago).UTC().Format(http.TimeFormat)
}

func TestAHandlerSaysThatItsRefusalIsTransient(t *testing.T) {
	t.Parallel()
	s := &service{}
	s.handle = func(w http.ResponseWriter, _ *http.Request) {
		if s.ran.Load() == 1 {
			w.Header().Set("transient-error", "true")
		}
		w.WriteHeader(500)
	}
	server := front(t, newGuard(t, newStore(t), nil), s, named(t, "adyen"))
	for i, want := range []string{"", "", "true"} {
		if r := post(t, server.URL, "", withKey("k")); r.StatusCode != 500 || r.Header.Get(httpidem.Replayed) != want {
			t.Errorf("answer %d is %v", i, r.Response)
		}
	}
	s.mustHaveRun(t, 2)
}

func TestKeyBelowTheMinimumLengthIsRefused(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{Profile: httpidem.Profile{MinKey: 20, Methods: []string{"post"}}})
	post(t, server.URL, "", withKey(strings.Repeat("x", 19))).must(t, 400, httpidem.KeyInvalid)
	post(t, server.URL, "", withKey(strings.Repeat("x", 20))).must(t, 201, "")
}

func TestProfileChoosesWhichStatusesReleaseTheKey(t *testing.T) {
	t.Parallel()
	s := &service{handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }}
	server := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{Profile: httpidem.Profile{Release: []string{}}})
	post(t, server.URL, "", withKey("k"))
	if r := post(t, server.URL, "", withKey("k")); r.StatusCode != 401 || r.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v", r.Response)
	}
	s.mustHaveRun(t, 1)
}

// The key is a member of the body, as at Square.
func TestProfileTakesTheKeyFromTheBody(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	opts := named(t, "square")
	opts.MaxBody = 100
	server := front(t, newGuard(t, newStore(t), nil), s, opts)
	do := func(body, contentType string) *reply {
		return request(t, "PUT", server.URL, body, header{"Content-Type", contentType})
	}
	first := do(`{"idempotency_key": "a\u0062", "n": 1}`, "application/json")
	if first.must(t, 201, ""); string(first.body) != `made of {"idempotency_key": "a\u0062", "n": 1}` {
		t.Errorf("the handler got %q", first.body)
	}
	if r := do(`{"idempotency_key": "a\u0062", "n": 1}`, ""); r.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v %s", r.Response, r.body)
	}
	do(`{"idempotency_key": "ab", "n": 2}`, "application/json").must(t, 400, httpidem.KeyReused)
	s.mustHaveRun(t, 1)
	for _, body := range []string{
		`{"idempotency_key": 1}`, `{"idempotency_key": null}`, `{"idempotency_key": ""}`, `{"idempotency_key": "a", "idempotency_key": "a"}`,
		`{"idempotency_key": "\ud800"}`, `{"idempotency_key": "` + strings.Repeat("x", 46) + `"}`, `{"idempotency_key": "a"`, `{"idempotency_key": "\u0000"}`,
	} {
		do(body, "application/json").must(t, 400, httpidem.KeyInvalid)
	}
	do(strings.Repeat("x", 101), "text/plain").must(t, 413, httpidem.BodyTooLarge)
	s.mustHaveRun(t, 1)
	for _, body := range []string{`{"n": 1}`, `{"below": {"idempotency_key": "a"}}`, `["idempotency_key"]`, `7`} {
		if r := do(body, "application/json"); string(r.body) != "made of "+body {
			t.Errorf("the handler got %q", r.body)
		}
	}
	do(`no JSON`, "text/plain").must(t, 201, "")
	s.mustHaveRun(t, 6)

	opts.Profile.Required, opts.Profile.Headers = true, []string{"Idempotency-Key"}
	server = front(t, newGuard(t, newStore(t), nil), s, opts)
	do(`{"n": 1}`, "application/json").must(t, 400, httpidem.KeyMissing)
	both := header{"Idempotency-Key", `"b"`}
	request(t, "POST", server.URL, `{"idempotency_key": "a"}`, both).must(t, 400, httpidem.KeyInvalid)
	request(t, "POST", server.URL, `{"idempotency_key": "b"}`, both).must(t, 201, "")
	request(t, "POST", server.URL, `{"n": 1}`, header{"Idempotency-Key", "c"}).must(t, 201, "")
	s.mustHaveRun(t, 8)
}

// OASIS Repeatable Requests: a request that is older than the window is not run again.
func TestOASISRequestOlderThanTheWindowIsNotRunAgain(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), &semel.GuardOptions{Window: time.Hour}), s, named(t, "oasis"))
	do := func(id, sent string) *reply {
		h := header{}
		if id != "" {
			h = append(h, "Repeatability-Request-ID", id)
		}
		if sent != "" {
			h = append(h, "Repeatability-First-Sent", sent)
		}
		return request(t, "POST", server.URL, "a", h)
	}
	sent := firstSent(time.Minute)
	for i, c := range []struct {
		id, sent string
		status   int
		problem  httpidem.Problem
		result   string
		ran      int32
	}{
		{"a", sent, 201, "", "accepted", 1},
		{"a", sent, 201, "", "accepted", 1},
		{"a", firstSent(2 * time.Minute), 400, httpidem.KeyReused, "rejected", 1},
		{"b", firstSent(2 * time.Hour), 412, httpidem.KeyExpired, "rejected", 1},
		{"b", firstSent(-time.Hour), 400, httpidem.KeyInvalid, "rejected", 1},
		{"b", firstSent(-time.Minute), 201, "", "accepted", 2},
		{"c", "yesterday", 400, httpidem.KeyInvalid, "rejected", 2},
		{"c", "", 400, httpidem.KeyInvalid, "rejected", 2},
		{"", sent, 400, httpidem.KeyInvalid, "rejected", 2},
		{"", "", 201, "", "", 3},
	} {
		r := do(c.id, c.sent)
		if r.must(t, c.status, c.problem); r.Header.Get("Repeatability-Result") != c.result {
			t.Errorf("request %d: the result is %q, want %q", i, r.Header.Get("Repeatability-Result"), c.result)
		}
		s.mustHaveRun(t, c.ran)
	}
}

// The agentic commerce protocol demands a key on every POST, and says how each refusal looks.
func TestACPRequiresAKeyOnEveryPOST(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(entered)
			<-leave
		}
	}}
	server := front(t, newGuard(t, newStore(t), hold), s, named(t, "acp"))
	post(t, server.URL, "a", nil).must(t, 400, httpidem.KeyMissing)
	s.mustHaveRun(t, 0)
	first := make(chan struct{})
	go func() {
		defer close(first)
		_, _ = send(t.Context(), server.URL+"/slow", strings.NewReader("a"), withKey("slow")) // its answer comes again below
	}()
	<-entered
	busy := post(t, server.URL+"/slow", "a", withKey("slow"))
	if busy.must(t, 409, httpidem.InFlight); busy.Header.Get("Retry-After") == "" {
		t.Error("a request in flight has no Retry-After")
	}
	close(leave)
	<-first
	if again := post(t, server.URL+"/slow", "a", withKey("slow")); again.StatusCode != 200 || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("a repetition gets %v", again.Response)
	}
	post(t, server.URL+"/slow", "b", withKey("slow")).must(t, 422, httpidem.KeyReused)
	s.mustHaveRun(t, 1)
}
