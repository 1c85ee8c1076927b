package serve_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/serve"
	"github.com/semel-dev/semel/store/httpstore"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/memstore"
)

// server is a server of a test, and a client whose exchanges are checked.
type server struct {
	*testing.T
	*serve.Server
	url      string
	client   *http.Client
	contract *contract
	stop     func() // begins the drain
	ended    chan error
}

// start starts a server over a store.
func start(t *testing.T, store semel.Store, opts serve.Options) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	opts.Listener, opts.Log = listener, slog.New(slog.DiscardHandler)
	if opts.Drain == 0 {
		opts.Drain = time.Millisecond
	}
	s := &server{T: t, Server: serve.New(opts), url: "http://" + listener.Addr().String(), contract: newContract(t), ended: make(chan error, 1)}
	s.client = &http.Client{Transport: &checked{t, s.contract, &http.Transport{}}}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	if store != nil {
		if err := s.Open(store, semel.ObserverFunc(func(semel.Event) {})); err != nil {
			t.Fatal(err)
		}
	}
	go func() { s.ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func memory(t *testing.T) semel.Store {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// answer is an answer that was read.
type answer struct {
	status int
	header http.Header
	body   map[string]any
}

// send sends a request. headers are names and values.
func (s *server) send(method, path, body string, headers ...string) answer {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if r.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	response, err := s.client.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	a := answer{status: response.StatusCode, header: response.Header}
	if err := json.NewDecoder(response.Body).Decode(&a.body); err != nil {
		s.Fatal(err)
	}
	return a
}

func (s *server) post(verb, body string, headers ...string) answer {
	s.Helper()
	return s.send(http.MethodPost, "/v1/"+verb, body, headers...)
}

// want checks members of an answer with status 200.
func (a answer) want(t *testing.T, members ...string) answer {
	t.Helper()
	if a.status != http.StatusOK {
		t.Errorf("%d %v", a.status, a.body)
	}
	for i := 0; i < len(members); i += 2 {
		if got := fmt.Sprint(a.body[members[i]]); got != members[i+1] {
			t.Errorf("%s is %s, want %s: %v", members[i], got, members[i+1], a.body)
		}
	}
	return a
}

// refused checks the status and the kind of a problem, and a part of its detail.
func (a answer) refused(t *testing.T, status int, kind, detail string) answer {
	t.Helper()
	if name := fmt.Sprint(a.body["type"]); a.status != status || !strings.HasSuffix(name, "/"+kind) || !strings.Contains(fmt.Sprint(a.body["detail"]), detail) {
		t.Errorf("%d %v, want %d /%s with %q", a.status, a.body, status, kind, detail)
	}
	return a
}

func (a answer) items(t *testing.T) (list []map[string]any) {
	t.Helper()
	items, _ := a.body["items"].([]any)
	for _, item := range items {
		list = append(list, item.(map[string]any))
	}
	return list
}

// The life of a key, with every decision, over every path.
func TestProgramsUseTheStoreOverHTTP(t *testing.T) {
	t.Parallel()
	store, err := logstore.Open(t.TempDir(), &logstore.Options{DurableClaims: true, KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := start(t, store, serve.Options{KeepOrigin: true, Hold: true})

	const first = `{"scope":"p","id":"o-7","claim_id":"a","holder":"w-1","origin":"cron","request_id":"r-1","fingerprint":"00000000000000000000000000000001"}`
	claimed := s.post("claim", first).want(t, "decision", "fresh", "attempt", "1", "lease_ms", "30000", "claim_id", "a")
	token := fmt.Sprint(claimed.body["token"])
	if claimed.header.Get("Semel-Decision") != "fresh" || claimed.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", claimed.header)
	}
	s.post("claim", first).want(t, "decision", "fresh", "token", token)
	busy := s.post("claim", `{"scope":"p","id":"o-7","claim_id":"b"}`).want(t, "decision", "in_flight", "holder", "w-1", "origin", "cron", "request_id", "r-1", "holder_token", token, "retry_after_ms", "2000")
	if busy.header.Get("Retry-After") != "2" {
		t.Errorf("%v", busy.header)
	}
	s.post("claim", `{"scope":"p","id":"o-7","fingerprint":"00000000000000010000000000000002"}`).want(t, "decision", "mismatch")
	s.post("extend", `{"items":[{"scope":"p","id":"o-7","token":"`+token+`"},{"scope":"p","id":"o-7","token":"1"}],"lease":"90s"}`).want(t)
	s.post("release", `{"scope":"p","id":"o-7","token":"1"}`).refused(t, 409, "stale-token", "").want2(t, "state", "claimed", "holder", "w-1", "class", "permanent", "retry", "no")
	for range 2 { // its repetition succeeds
		s.post("complete", `{"scope":"p","id":"o-7","token":"`+token+`","result":{"json":{"paid": 1e2}}}`).want(t, "state", "done")
	}
	s.post("claim", `{"scope":"p","id":"o-7"}`).want(t, "decision", "duplicate", "holder", "w-1", "origin", "cron", "request_id", "r-1", "result", `map[kind:value text:{"paid": 1e2}]`)
	s.post("claim", `{"scope":"p","id":"late","window":"1h","time":"2020-01-01T00:00:00Z"}`).want(t, "decision", "late")

	// A number is not the text with its digits, and bytes are base64.
	batch := s.post("batch", `{"items":[{"claim":{"scope":"p","id":42}},{"claim":{"scope":"p","id":"42"}},{"claim":{"scope_base64":"/w==","id_base64":"/w=="}},
		{"claim":{"scope":"p","id":12345678901234567890,"done":true}},{"complete":{"scope":"p","id":"x","token":"7"}},{"claim":{"scope":"p","id":""}},{"claim":{"scope":"p","id":"w","wait":"1s"}}]}`).want(t).items(t)
	for i, want := range []string{"fresh", "fresh", "fresh", "fresh"} {
		if batch[i]["decision"] != want {
			t.Errorf("item %d: %v", i, batch[i])
		}
	}
	for i, want := range map[int]string{4: "stale-token", 5: "key-invalid", 6: "invalid-request"} {
		if refused, _ := batch[i]["error"].(map[string]any); !strings.HasSuffix(fmt.Sprint(refused["type"]), "/"+want) {
			t.Errorf("item %d: %v", i, batch[i])
		}
	}
	s.post("release", `{"scope":"p","id":"42","token":"`+fmt.Sprint(batch[1]["token"])+`"}`).want(t, "state", "absent")
	// A key may come with several verbs, which are done in order.
	unknown := s.post("batch", `{"items":[{"release":{"scope":"p","id":42,"token":"`+fmt.Sprint(batch[0]["token"])+`","unknown":true}},{"claim":{"scope":"p","id":42}}]}`).want(t).items(t)
	if unknown[0]["state"] != "unknown" || unknown[1]["decision"] != "unknown" {
		t.Errorf("%v", unknown)
	}
	records := s.post("lookup", `{"items":[{"scope":"p","id":"o-7"},{"scope":"p","id":"none"},{"scope":"p","id":42}]}`).want(t).items(t)
	if records[0]["state"] != "done" || records[0]["result_text"] != `{"paid": 1e2}` || records[1]["state"] != "absent" || records[2]["state"] != "unknown" {
		t.Errorf("%v", records)
	}

	// Pages have every record once.
	var ids []string
	for cursor := ""; ; {
		page := s.post("list", `{"limit":2,"counts":true`+cursor+`}`).want(t)
		for _, r := range page.items(t) {
			ids = append(ids, fmt.Sprint(r["id"], r["id_base64"]))
		}
		next, more := page.body["cursor"].(string)
		if !more {
			break
		}
		cursor = `,"cursor":"` + next + `"`
	}
	if len(ids) != 4 {
		t.Errorf("%q", ids)
	}
	only := s.post("list", `{"scope":"p","state":"unknown"}`).want(t).items(t)
	if len(only) != 1 {
		t.Fatalf("%v", only)
	}
	digest := fmt.Sprint(only[0]["digest"])
	s.post("resolve", `{"digest":"`+digest+`","as":"done"}`).refused(t, 400, "invalid-request", "reason is missing")
	s.post("resolve", `{"digest":"`+digest+`","as":"done","reason":"paid","expect":{"state":"claimed"}}`).refused(t, 409, "changed", "")
	s.post("resolve", `{"digest":"`+digest+`","as":"done","reason":"paid","result":{"text":"by hand"},"expect":{"state":"unknown"}}`).want(t, "state", "done")
	s.post("resolve", `{"scope":"p","id":42,"as":"done","reason":"again"}`).refused(t, 409, "not-unknown", "")
	s.post("claim", `{"scope":"p","id":42}`).want(t, "decision", "duplicate")
	s.post("remove", `{"scope_base64":"/w==","id_base64":"/w==","reason":"test","expect":{"token":"0"}}`).refused(t, 409, "changed", "")
	s.post("remove", `{"scope":"p","id":42,"reason":"test","expect":{"state":"done"}}`).want(t, "removed", "true")
	s.post("remove", `{"scope":"p","id":42,"reason":"test","expect":{"state":"done"}}`).refused(t, 409, "changed", "")
	s.post("remove", `{"scope":"p","id":42,"reason":"test"}`).want(t, "removed", "false")
	s.send("GET", "/v1/limits", "").want(t, "max_batch", "1000", "on_lease_expired", "hold")
	s.send("GET", "/v1/whoami", "").want(t, "role", "operator", "auth", "none")
	s.send("GET", "/v1/openapi.json", "").want(t, "openapi", "3.1.0")
	for path := range s.contract.Paths {
		if s.contract.seen[path+" true"] == 0 {
			t.Errorf("no test uses %s", path)
		}
	}
}

// want2 checks members of a problem.
func (a answer) want2(t *testing.T, members ...string) {
	t.Helper()
	for i := 0; i < len(members); i += 2 {
		if got := fmt.Sprint(a.body[members[i]]); got != members[i+1] {
			t.Errorf("%s is %s, want %s: %v", members[i], got, members[i+1], a.body)
		}
	}
}

// A body that is not understood changes nothing, and says what to correct.
func TestWrongRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{MaxBody: 4096, MaxBatch: 2, MaxResult: 8, MaxID: 8})
	for _, c := range []struct {
		verb, body   string
		status       int
		kind, detail string
	}{
		{"claim", ``, 400, "invalid-request", "the body is empty"},
		{"claim", `{`, 400, "invalid-request", "not JSON"},
		{"claim", `[]`, 400, "invalid-request", "expected an object, got a list"},
		{"claim", "{\"scope\":\"\xff\"}", 400, "invalid-request", "not UTF-8"},
		{"claim", `{"scope":"p","id":"a","widow":"7d"}`, 400, "invalid-request", `unknown member "widow": did you mean window?`},
		{"claim", `{"scope":"p","id":"a","scope":"q"}`, 400, "invalid-request", "there twice"},
		{"claim", `{"scope":"p","id":"a","\u0069d":"b"}`, 400, "invalid-request", "there twice"},
		{"claim", `{"id":"a"}`, 400, "invalid-request", "scope is missing"},
		{"claim", `{"scope":"p"}`, 400, "key-invalid", "id is missing"},
		{"claim", `{"scope":"p","id":""}`, 400, "key-invalid", "empty"},
		{"claim", `{"scope":"p","id":{}}`, 400, "key-invalid", "it is an object"},
		{"claim", `{"scope":"p","id":"123456789"}`, 400, "key-invalid", "9 bytes"},
		{"claim", `{"scope":"\ud800","id":"a"}`, 400, "invalid-request", "surrogate"},
		{"claim", `{"scope":"p","id":"a","id_base64":"YQ=="}`, 400, "invalid-request", "exclude"},
		{"claim", `{"scope":"p","id":"a","lease":"0s"}`, 400, "invalid-request", "lease"},
		{"claim", `{"scope":"p","id":"a","lease":60}`, 400, "invalid-request", "lease: expected a text, got a number"},
		{"claim", `{"scope":"p","id":"a","wait":"31s"}`, 400, "invalid-request", "wait: at most 30s"},
		{"claim", `{"scope":"p","id":"a","on_lease_expired":"rety"}`, 400, "invalid-request", "did you mean retry?"},
		{"claim", `{"scope":"p","id":"a","fingerprint":"abc"}`, 400, "invalid-request", "32 digits"},
		{"claim", `{"scope":"p","id":"a","done":1}`, 400, "invalid-request", "expected true or false"},
		{"claim", `{"scope":"p","id":"a","time":"now"}`, 400, "invalid-request", "not a time"},
		{"complete", `{"scope":"p","id":"a"}`, 400, "invalid-request", "token is missing"},
		{"complete", `{"scope":"p","id":"a","token":7}`, 400, "invalid-request", "expected a text, got a number"},
		{"complete", `{"scope":"p","id":"a","token":"7","result":{"text":"a","failed":"b"}}`, 400, "invalid-request", "write one of"},
		{"complete", `{"scope":"p","id":"a","token":"7","result":{"text":"123456789"}}`, 413, "result-too-large", "9 bytes"},
		{"batch", `{"items":[{},{},{}]}`, 400, "invalid-request", "at most 2 items"},
		{"batch", `{}`, 400, "invalid-request", "items is missing"},
		{"lookup", `{"items":{}}`, 400, "invalid-request", "expected a list"},
		{"list", `{"limit":0}`, 400, "invalid-request", "from 1 to 2"},
		{"resolve", `{"scope":"p","id":"a","reason":"x"}`, 400, "invalid-request", "as is missing"},
		{"claim", strings.Repeat(" ", 4097), 413, "body-too-large", "serve.max_body"},
		{"clam", `{}`, 404, "not-found", "/v1/openapi.json"},
	} {
		s.post(c.verb, c.body).refused(t, c.status, c.kind, c.detail)
	}
	s.send("GET", "/v1/claim", "").refused(t, 405, "method-not-allowed", "POST")
	s.post("claim", `{}`, "Content-Type", "text/plain").refused(t, 415, "unsupported-media-type", "application/json")
	s.post("claim", `{}`, "Content-Encoding", "gzip").refused(t, 415, "unsupported-media-type", "Content-Encoding")
	if n := len(s.post("list", `{"limit":2}`).want(t).items(t)); n != 0 {
		t.Errorf("%d records", n)
	}
}

func token(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

// Every route is tried by every role.
func TestCallersMayDoWhatTheirRoleAllows(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{Callers: []*serve.Caller{
		{Name: "orders", Tokens: [][sha256.Size]byte{token("w1"), token("w2")}, Role: serve.Worker, Scopes: []string{"pay/*"}},
		{Name: "eyes", Tokens: [][sha256.Size]byte{token("v")}, Role: serve.Viewer, Scopes: []string{"pay/*"}},
		{Name: "boss", Tokens: [][sha256.Size]byte{token("o")}, Role: serve.Operator, Scopes: []string{"*"}},
		{Name: "old", Tokens: [][sha256.Size]byte{token("e")}, Role: serve.Operator, Scopes: []string{"*"}, Expires: time.Now().Add(-time.Hour)},
	}})
	s.post("claim", `{"scope":"pay/eu","id":"a"}`).refused(t, 401, "unauthenticated", "Bearer")
	s.post("claim", `{"scope":"pay/eu","id":"a"}`, "Authorization", "Bearer x").refused(t, 401, "unauthenticated", "not known")
	s.post("claim", `{"scope":"pay/eu","id":"a"}`, "Authorization", "Bearer e").refused(t, 401, "unauthenticated", "expired")
	as := func(token, verb, body string) answer {
		t.Helper()
		return s.post(verb, body, "Authorization", "Bearer "+token)
	}
	as("w1", "claim", `{"scope":"pay/eu","id":"a","claim_id":"1","holder":"w-3"}`).want(t, "decision", "fresh")
	as("w2", "claim", `{"scope":"pay/eu","id":"a","claim_id":"1","holder":"w-3"}`).want(t, "decision", "fresh") // the same caller
	as("o", "claim", `{"scope":"pay/eu","id":"a","claim_id":"1","holder":"w-3"}`).want(t, "decision", "in_flight", "holder", "orders/w-3")
	as("w1", "claim", `{"scope":"mail","id":"a"}`).refused(t, 403, "forbidden", "mail")
	if refused := as("w1", "batch", `{"items":[{"claim":{"scope":"mail","id":"a"}},{"claim":{"scope":"pay/us","id":"a"}}]}`).want(t).items(t); refused[0]["error"] == nil || refused[1]["decision"] != "fresh" {
		t.Errorf("%v", refused)
	}
	as("o", "claim", `{"scope":"mail","id":"b"}`).want(t, "decision", "fresh")
	paid := as("w1", "claim", `{"scope":"pay/eu","id":"paid"}`).want(t, "decision", "fresh").body["token"]
	as("w1", "complete", fmt.Sprintf(`{"scope":"pay/eu","id":"paid","token":"%v","result":{"text":"secret"}}`, paid)).want(t, "state", "done")
	for caller, sees := range map[string]bool{"v": false, "w1": true} {
		item := as(caller, "lookup", `{"items":[{"scope":"pay/eu","id":"paid"}]}`).want(t).items(t)[0]
		if text, shown := item["result_text"]; shown != sees || sees && text != "secret" || item["result_size"] != 6.0 {
			t.Errorf("%s sees %v", caller, item)
		}
	}
	bodies := map[string]string{"claim": `{"scope":"pay/1","id":"z"}`, "complete": "", "release": "", "extend": "", "batch": `{"items":[]}`, "lookup": `{"items":[]}`, "list": `{}`, "resolve": "", "remove": ""}
	for caller, allowed := range map[string]string{"w1": "claim complete release extend batch lookup", "v": "lookup list", "o": "claim complete release extend batch lookup list resolve remove"} {
		for verb, body := range bodies {
			if body == "" {
				body = `{}`
			}
			got := as(caller, verb, body)
			if may := strings.Contains(" "+allowed+" ", " "+verb+" "); may == (got.status == http.StatusForbidden) {
				t.Errorf("%s uses %s: %d", caller, verb, got.status)
			}
		}
	}
	for _, r := range as("v", "list", `{}`).want(t).items(t) {
		if !strings.HasPrefix(fmt.Sprint(r["scope"]), "pay/") {
			t.Errorf("%v", r)
		}
	}
	s.SetCallers([]*serve.Caller{{Name: "new", Tokens: [][sha256.Size]byte{token("n")}, Role: serve.Viewer, Scopes: []string{"*"}}})
	as("w1", "claim", `{"scope":"pay/eu","id":"a"}`).refused(t, 401, "unauthenticated", "")
	s.send("GET", "/v1/whoami", "", "Authorization", "Bearer n").want(t, "name", "new", "role", "viewer", "auth", "token")
	for range 20 {
		s.post("claim", `{}`, "Authorization", "Bearer guess")
	}
	s.post("claim", `{}`, "Authorization", "Bearer guess").refused(t, 429, "rate-limited", "")
}

// A web page that lets its name point to this machine is refused by a server without
// credentials.
func TestForeignHostsAreRefusedWithoutCredentials(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{Host: func(r *http.Request) bool { return r.Host != "evil.example" }})
	s.post("claim", `{"scope":"p","id":"a"}`, "Host", "evil.example").refused(t, 421, "misdirected", "evil.example")
	s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
}

func TestNewKeysOfACallerAreLimited(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{MaxKeysPerCaller: 2})
	for _, id := range []string{"a", "b"} {
		s.post("claim", `{"scope":"p","id":"`+id+`"}`).want(t, "decision", "fresh")
	}
	s.post("claim", `{"scope":"p","id":"c"}`).refused(t, 429, "quota", "max_keys_per_caller")
	s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "in_flight")
	s = start(t, memory(t), serve.Options{MaxKeysPerCaller: 2})
	for range 3 { // the same claim is the same key
		s.post("claim", `{"scope":"p","id":"a","claim_id":"1"}`).want(t, "decision", "fresh")
	}
	got := map[string]int{}
	for _, item := range s.post("batch", `{"items":[{"claim":{"scope":"p","id":"a"}},{"claim":{"scope":"p","id":"b"}},{"claim":{"scope":"p","id":"c"}},{"claim":{"scope":"p","id":"b"}},{"claim":{"scope":"p","id":"d"}}]}`).want(t).items(t) {
		got[fmt.Sprint(item["decision"])]++
	}
	if got["fresh"] != 1 || got["in_flight"] != 2 || got["<nil>"] != 2 {
		t.Errorf("%v", got)
	}
}

// Two calls that use the same id of a request are two claims all the same, unless they have
// the same claim_id.
func TestAClaimWithoutAnIDIsNotAnsweredFromMemory(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{})
	const claim = `{"scope":"p","id":"a"}`
	s.post("claim", claim, "Semel-Request", "1").want(t, "decision", "fresh")
	s.post("claim", claim, "Semel-Request", "1").want(t, "decision", "in_flight")
	const batch = `{"items":[{"claim":{"scope":"p","id":"b"}}]}`
	for _, want := range []string{"fresh", "in_flight"} {
		if got := s.post("batch", batch, "Semel-Request", "1").want(t).items(t); got[0]["decision"] != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	const named = `{"items":[{"claim":{"scope":"p","id":"c","claim_id":"1","lease":"1h"}}]}`
	first := s.post("batch", named, "Semel-Request", "1").want(t).items(t)[0]
	for left := 3600_000.0; left >= 3600_000; { // until a millisecond has passed
		again := s.post("batch", named, "Semel-Request", "1").want(t).items(t)[0]
		if left, _ = again["lease_ms"].(float64); left == 0 || again["token"] != first["token"] {
			t.Fatalf("%v, and then %v", first, again)
		}
	}
}

// Results for which an answer has no room are left out of it, and nothing else is. The store
// over the server asks for them again.
func TestResultsThatDoNotFitAreAskedForAgain(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{MaxMemory: 1 << 20})
	var items, keys []string
	for i := range 6 {
		key := fmt.Sprintf(`"scope":"p","id":"%d"`, i)
		token := s.post("claim", "{"+key+"}").want(t, "decision", "fresh").body["token"]
		s.post("complete", fmt.Sprintf(`{%s,"token":"%v","result":{"text":"%s"}}`, key, token, strings.Repeat("x", 300<<10))).want(t)
		items, keys = append(items, `{"claim":{`+key+`}}`), append(keys, "{"+key+"}")
	}
	got := s.post("batch", `{"items":[`+strings.Join(items, ",")+`,{"claim":{"scope":"p","id":"new"}}]}`).want(t).items(t)
	for i, item := range got {
		refused, _ := item["error"].(map[string]any)
		switch {
		case i < 3 && item["decision"] == "duplicate" && item["result"] != nil:
		case 3 <= i && i < 6 && strings.Contains(fmt.Sprint(refused["detail"]), "Nothing was changed"):
		case i == 6 && item["token"] != nil:
		default:
			t.Errorf("item %d: %.200v", i, item)
		}
	}
	if got := s.post("lookup", `{"items":[`+strings.Join(keys, ",")+`]}`).want(t).items(t); got[2]["state"] != "done" || got[3]["error"] == nil {
		t.Errorf("%.200v", got[2:])
	}
	store, err := httpstore.Open(t.Context(), s.url, &httpstore.Options{Client: s.client})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	claims, answers := make([]semel.ClaimRequest, 6), make([]semel.ClaimAnswer, 6)
	asked, records := make([]semel.Key, 6), make([]semel.Record, 6)
	for i := range claims {
		asked[i] = semel.Key{Scope: "p", ID: fmt.Sprint(i)}
		claims[i] = semel.ClaimRequest{Key: asked[i], Owner: semel.Owner{Nonce: uint64(i) + 1}, Lease: time.Minute, Window: time.Hour}
	}
	if err := store.Claim(t.Context(), claims, answers); err != nil {
		t.Fatal(err)
	}
	if err := store.Look(t.Context(), asked, records); err != nil {
		t.Fatal(err)
	}
	for i := range claims {
		if answers[i].Err != nil || len(answers[i].Result.Data) != 300<<10 || len(records[i].Result.Data) != 300<<10 {
			t.Errorf("%d: %v %d %d", i, answers[i].Err, len(answers[i].Result.Data), len(records[i].Result.Data))
		}
	}
}

// A digest of another caller's scope gets the answer of one that is not there.
func TestDigestsDoNotSayWhatIsThere(t *testing.T) {
	t.Parallel()
	store, err := logstore.Open(t.TempDir(), &logstore.Options{KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := start(t, store, serve.Options{Callers: []*serve.Caller{
		{Name: "boss", Tokens: [][sha256.Size]byte{token("o")}, Role: serve.Operator, Scopes: []string{"*"}},
		{Name: "eu", Tokens: [][sha256.Size]byte{token("e")}, Role: serve.Operator, Scopes: []string{"eu"}},
	}})
	as := func(token, verb, body string) answer {
		t.Helper()
		return s.post(verb, body, "Authorization", "Bearer "+token)
	}
	digests := map[string]string{}
	for _, scope := range []string{"eu", "us"} {
		as("o", "claim", `{"scope":"`+scope+`","id":"a","done":true}`).want(t)
		digests[scope] = fmt.Sprint(as("o", "list", `{"scope":"`+scope+`"}`).want(t).items(t)[0]["digest"])
	}
	if own := as("e", "lookup", `{"items":[{"digest":"`+digests["eu"]+`"}]}`).want(t).items(t); own[0]["state"] != "done" {
		t.Errorf("%v", own)
	}
	for _, verb := range []string{"lookup", "remove"} {
		var said []string
		for _, digest := range []string{digests["us"], strings.Repeat("1", 32)} {
			body := `{"digest":"` + digest + `","reason":"test"}`
			if verb == "lookup" {
				body = `{"items":[{"digest":"` + digest + `"}]}`
			}
			a := as("e", verb, body)
			said = append(said, fmt.Sprint(a.status, a.body))
		}
		if said[0] != said[1] || !strings.Contains(said[0], "forbidden") {
			t.Errorf("%s: %q", verb, said)
		}
	}
}

// A claim that waits gets the decision of the moment when the key is free, or the wait ends.
func TestClaimsWaitForTheHolder(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{})
	held := s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
	s.post("claim", `{"scope":"p","id":"a","wait":"10ms"}`).want(t, "decision", "in_flight")
	waited := make(chan answer, 1)
	go func() { waited <- s.post("claim", `{"scope":"p","id":"a","wait":"30s"}`) }()
	s.post("complete", `{"scope":"p","id":"a","token":"`+fmt.Sprint(held.body["token"])+`","result":{"text":"ok"}}`).want(t)
	(<-waited).want(t, "decision", "duplicate")
}

// During a drain no claim is granted, and holders complete theirs over new connections.
func TestADrainLetsHoldersComplete(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{Drain: time.Minute})
	held := s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
	s.stop()
	for s.Ready(t.Context()) == nil {
		runtime.Gosched()
	}
	s.client.CloseIdleConnections()
	s.post("claim", `{"scope":"p","id":"b"}`).refused(t, 503, "draining", "").want2(t, "class", "retryable", "retry", "later")
	if list := s.post("batch", `{"items":[{"claim":{"scope":"p","id":"b"}}]}`).want(t).items(t); list[0]["error"] == nil {
		t.Errorf("%v", list)
	}
	s.post("complete", `{"scope":"p","id":"a","token":"`+fmt.Sprint(held.body["token"])+`"}`).want(t, "state", "done")
	err := <-s.ended
	if s.ended <- err; err != nil {
		t.Error(err)
	}
}

// A request that is sent again with its id gets the answer of the first, also after another
// call took the key.
func TestARequestWithAnIDRecognisesItself(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{})
	held := s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
	release := `{"scope":"p","id":"a","token":"` + fmt.Sprint(held.body["token"]) + `"}`
	s.post("release", release, "Semel-Request", "1").want(t, "state", "absent")
	s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
	s.post("release", release, "Semel-Request", "1").want(t, "state", "absent")
	s.post("release", release, "Semel-Request", "2").refused(t, 409, "stale-token", "")
	s.post("release", release).refused(t, 409, "stale-token", "")
	s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "in_flight")
}

// A slow client costs a connection: the server holds the bytes that came, and not those that
// were announced, and ends the request after a while.
func TestASlowClientCostsAConnection(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{MaxMemory: 64 << 10, MaxConnections: 40, BodyTimeout: 6 * time.Second})
	var slow []net.Conn
	for range 32 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "POST /v1/claim HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{")
		slow = append(slow, conn)
	}
	s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
	response, err := http.ReadResponse(bufio.NewReader(slow[0]), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusServiceUnavailable || !bytes.Contains(text, []byte("cut off")) || !bytes.Contains(text, []byte(`"retry":"later"`)) {
		t.Errorf("%s %s", response.Status, text)
	}
}

// Small calls have room while others hold all memory, such as answers that their clients read
// slowly.
func TestSmallCallsNeedNoMemoryOfOthers(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{MaxMemory: 1})
	s.post("claim", `{"scope":"p","id":"a"}`).want(t, "decision", "fresh")
	s.post("claim", `{"scope":"p","id":"b","origin":"`+strings.Repeat("x", 17<<10)+`"}`).refused(t, 503, "overloaded", "max_memory")
}

// All exchanges of the store that is a client of the server are those of the document.
func TestTheStoreSendsWhatTheDocumentSays(t *testing.T) {
	t.Parallel()
	s := start(t, memory(t), serve.Options{KeepOrigin: true})
	store, err := httpstore.Open(t.Context(), s.url, &httpstore.Options{Client: s.client})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := semel.Key{Scope: "p\xff", ID: "\x00n7"}
	for range 2 {
		result, err := guard.Do(t.Context(), key, func(context.Context, semel.Claim) ([]byte, error) { return []byte("\xff"), nil })
		if err != nil || string(result.Result.Data) != "\xff" {
			t.Errorf("%+v %v", result, err)
		}
	}
	if counts, err := store.Count(t.Context()); err != nil || counts.Done != 1 {
		t.Errorf("%+v %v", counts, err)
	}
	if removed, err := store.Remove(t.Context(), key); err != nil || !removed {
		t.Errorf("%t %v", removed, err)
	}
}

// The keys of a batch share events, so a large one costs its observers little. What people look
// into has an event for its key.
func TestKeysOfABatchShareEvents(t *testing.T) {
	t.Parallel()
	s := start(t, nil, serve.Options{})
	var mu sync.Mutex
	var got []string
	if err := s.Open(memory(t), semel.ObserverFunc(func(e semel.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %d %s", e.Kind, e.Decision, e.Count, e.Key.ID)))
	})); err != nil {
		t.Fatal(err)
	}
	want := func(all ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(got, all) {
			t.Errorf("observed %q, want %q", got, all)
		}
		got = nil
	}
	claim := func(id, claimID string) string {
		return fmt.Sprintf(`{"claim":{"scope":"p","id":%q,"claim_id":%q}}`, id, claimID)
	}
	answers := s.post("batch", `{"items":[`+claim("a", "1")+","+claim("b", "2")+","+claim("a", "3")+`]}`).body["items"].([]any)
	want("decided in_flight 0 a", "decided fresh 2")
	complete := func(i int, id string) string {
		return fmt.Sprintf(`{"complete":{"scope":"p","id":%q,"token":%q}}`, id, answers[i].(map[string]any)["token"])
	}
	s.post("batch", `{"items":[`+complete(0, "a")+","+complete(1, "b")+","+claim("c", "4")+`]}`)
	want("decided fresh 0 c", "completed undecided 2")
}

// meeting is a store in which the first claim and the first completion wait for each other.
type meeting struct {
	semel.Store
	claimed, completed chan struct{}
}

func (m *meeting) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if reqs[0].Key.ID == "later" {
		if err := meet(m.claimed, m.completed); err != nil {
			return err
		}
	}
	return m.Store.Claim(ctx, reqs, answers)
}

func (m *meeting) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if err := meet(m.completed, m.claimed); err != nil {
		return err
	}
	return m.Store.Complete(ctx, reqs, answers)
}

func meet(here, there chan struct{}) error {
	close(here)
	select {
	case <-there:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the other verb of the request was not asked for meanwhile: %w", semel.ErrInvalidRequest)
	}
}

// A batch waits for the disk once: its claims and its completions are asked for at the same time.
func TestVerbsOfABatchShareTheWait(t *testing.T) {
	t.Parallel()
	s := start(t, &meeting{memory(t), make(chan struct{}), make(chan struct{})}, serve.Options{})
	token := s.post("claim", `{"scope":"p","id":"first","claim_id":"1"}`).want(t, "decision", "fresh").body["token"]
	got := s.post("batch", fmt.Sprintf(`{"items":[{"claim":{"scope":"p","id":"later","claim_id":"2"}},{"complete":{"scope":"p","id":"first","token":%q}}]}`, token)).items(t)
	if len(got) != 2 || got[0]["decision"] != "fresh" || got[1]["state"] != "done" {
		t.Errorf("%v", got)
	}
}
