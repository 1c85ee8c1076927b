package httpidem_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/httpidem"
)

func TestRepeatedRequestThatDiffersIsAMismatch(t *testing.T) {
	t.Parallel()
	none, canonical := httpidem.FingerprintOptions{}, httpidem.FingerprintOptions{CanonicalJSON: true}
	exclude := httpidem.FingerprintOptions{Exclude: []string{"/jti", "/data/sent", "/list/1", "/a~1b"}}
	include := httpidem.FingerprintOptions{Include: []string{"/data", "/deep/er/x", "/list/0"}}
	for i, c := range []struct {
		opts         httpidem.FingerprintOptions
		first, again string
		same         bool
	}{
		{none, `{"a":1}`, `{"a":1}`, true},
		{none, `{"a":1}`, `{"a": 1}`, false},
		{canonical, `{"a":1,"b":[1,{"c":2,"d":"x"}]}`, " {\n\"b\": [ 1, {\"d\":\"x\" , \"c\": 2}],\t\"a\" : 1 }\r\n", true},
		{canonical, `{"a":1}`, `{"a":1.0}`, false},
		{canonical, `100`, `1e2`, false},
		{canonical, `9007199254740992`, `9007199254740993`, false},
		{canonical, `{"a":1,"a":2}`, `{"a":2}`, false},
		{canonical, `{"a":1,"a":2}`, `{"a":2,"a":1}`, false},
		{canonical, `{"a":1,"\u0061":2}`, `{"\u0061":2,"a":1}`, false},
		{canonical, `{"a":[]}`, `{"a":{}}`, false},
		{canonical, `[1,2]`, `[2,1]`, false},
		{canonical, `[[1],2]`, `[[1,2]]`, false},
		{canonical, `["a,b"]`, `["a","b"]`, false},
		{canonical, `"\ud800"`, `"\ud801"`, false},
		{canonical, `{"a":"]}"}`, `{"a":"]}" }`, true},
		{canonical, "\ufeff{\"a\":1}", `{"a":1}`, false}, // not JSON
		{canonical, `{"a":1`, `{"a":1 `, false},
		{canonical, strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40), strings.Repeat(`{"a":`, 40) + "1 " + strings.Repeat("}", 40), false},
		{exclude, `{"data":{"n":1,"sent":2},"jti":3,"list":[4,5],"a/b":6}`, `{"jti":[0],"list":[4,0],"data":{"n":1}}`, true},
		{exclude, `{"data":{"n":1}}`, `{"data":{"n":2}}`, false},
		{exclude, `{"jti":1,"jti":2}`, `{"jti":3}`, true},
		{exclude, `{"\u006ati":1}`, `{}`, true},
		{include, `{"data":{"n":1},"deep":{"er":{"x":1,"y":1},"z":1},"list":[1,2],"at":1}`, `{"data":{"n":1},"deep":{"er":{"x":1,"y":2},"z":2},"list":[1,3],"at":2}`, true},
		{include, `{"data":1,"at":1}`, `{"data":2,"at":1}`, false},
		{include, `{"data":1,"deep":{"er":{"x":1}}}`, `{"data":1,"deep":{"er":{"x":2}}}`, false},
		{include, `{"data":1}`, `{"data":1,"data":2}`, false},
		{include, `{"other":1}`, `{"other":2}`, false},
		{include, `{"data":1}`, `{}`, false},
	} {
		s := &service{handle: created}
		server := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{Fingerprint: c.opts})
		post(t, server.URL, c.first, withKey("k"))
		r := post(t, server.URL, c.again, withKey("k"))
		if same := r.Header.Get(httpidem.Replayed) != ""; same != c.same {
			t.Errorf("%d: %s and then %s: the same is %t, want %t", i, c.first, c.again, same, c.same)
		}
		s.mustHaveRun(t, 1)
	}
}

// A client chooses a new boundary for each request.
func TestPartsOfAMultipartBody(t *testing.T) {
	t.Parallel()
	form := func(boundary string, fields ...string) (body, contentType string) {
		var b strings.Builder
		w := multipart.NewWriter(&b)
		if err := w.SetBoundary(boundary); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(fields); i += 2 {
			if err := w.WriteField(fields[i], fields[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.String(), w.FormDataContentType()
	}
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), nil), s, nil)
	do := func(body, contentType string) *reply {
		return post(t, server.URL, body, header{"Idempotency-Key", "k", "Content-Type", contentType})
	}
	do(form("one", "a", "1", "b", "2")).must(t, 201, "")
	if r := do(form("two", "a", "1", "b", "2")); r.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v %s", r.Response, r.body)
	}
	for _, fields := range [][]string{{"a", "1"}, {"a", "1", "b", "3"}, {"b", "2", "a", "1"}, {"a", "1", "b", "2", "c", ""}, {"a", "1\r\nb: 2"}} {
		do(form("two", fields...)).must(t, 422, httpidem.KeyReused)
	}
	body, contentType := form("two", "a", "1", "b", "2")
	do(strings.TrimSuffix(body, "--\r\n"), contentType).must(t, 422, httpidem.KeyReused)
	do(body, "text/plain").must(t, 422, httpidem.KeyReused)
	do(body, "multipart/mixed; boundary=two").must(t, 422, httpidem.KeyReused)
	s.mustHaveRun(t, 1)
}

// What a client or a proxy may change between two tries.
func TestRepeatedRequestMayDifferInIgnoredParts(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), nil), s, nil)
	for i := range 3 {
		var body io.Reader = strings.NewReader("a")
		if i == 1 {
			body = io.MultiReader(body) // without Content-Length
		}
		n := fmt.Sprint(i)
		r, err := send(t.Context(), server.URL, body, header{"Idempotency-Key", "k", "Authorization", "Bearer " + n, "Traceparent", n, "Date", n, "User-Agent", n})
		if err != nil {
			t.Fatal(err)
		}
		r.must(t, 201, "")
	}
	changed, err := send(t.Context(), server.URL, io.MultiReader(strings.NewReader("b")), withKey("k"))
	if err != nil {
		t.Fatal(err)
	}
	changed.must(t, 422, httpidem.KeyReused)
	s.mustHaveRun(t, 1)
}

func TestDifferentRequestsHaveDifferentFingerprints(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	handler, err := httpidem.New(newGuard(t, newStore(t), nil), s, &httpidem.Options{Scope: httpidem.AnyCaller, Go: recorded})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		method, url string
		same        bool
	}{
		{"POST", "http://example.com/a?x=1&y=2", true},
		{"POST", "http://EXAMPLE.com:80/a?x=1&y=2", true},
		{"PATCH", "http://example.com/a?x=1&y=2", false},
		{"POST", "http://example.org/a?x=1&y=2", false},
		{"POST", "http://example.com:81/a?x=1&y=2", false},
		{"POST", "http://example.com/a/?x=1&y=2", false},
		{"POST", "http://example.com/%61?x=1&y=2", false},
		{"POST", "http://example.com/a?y=2&x=1", false},
		{"POST", "http://example.com/a", false},
	} {
		r := httptest.NewRequest(c.method, c.url, strings.NewReader("body"))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); (w.Code == 201) != c.same {
			t.Errorf("%d: %s %s gets %d", i, c.method, c.url, w.Code)
		}
		s.mustHaveRun(t, 1)
	}
}

// Texts of caller and key cannot be moved from one to the other.
func TestCallersShareNoKeys(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), nil), s, nil)
	for i, c := range [][2]string{{"a", "b"}, {"a:b", "c"}, {"a", "b:c"}, {"a:", "b"}, {"a", ":b"}, {"1:a", "b"}, {"a:1", ":a:b"}, {"A", "b"}, {"a", "B"}, {"a", "b%20c"}, {"a", "b c"}} {
		post(t, server.URL, "", header{"Caller", c[0], "Idempotency-Key", c[1]}).must(t, 201, "")
		s.mustHaveRun(t, int32(i)+1)
	}
}

// pack returns a text that was compressed at a time.
func pack(t *testing.T, text string, at time.Time) string {
	t.Helper()
	var b strings.Builder
	w := gzip.NewWriter(&b)
	w.ModTime = at
	if _, err := io.WriteString(w, text); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A client that compresses its body again may get other bytes, for instance with the time in
// them.
func TestCompressedBodyHasTheFingerprintOfTheUncompressedOne(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	server := front(t, newGuard(t, newStore(t), nil), s, nil)
	do := func(body, coding string) *reply {
		return post(t, server.URL, body, header{"Idempotency-Key", "k", "Content-Encoding", coding})
	}
	do(pack(t, "a", time.Unix(1, 0)), "gzip").must(t, 201, "")
	for _, again := range []*reply{do(pack(t, "a", time.Unix(2, 0)), "gzip"), do("a", "identity"), do(pack(t, "a", time.Unix(3, 0)), "x-gzip")} {
		if again.Header.Get(httpidem.Replayed) != "true" {
			t.Errorf("the answer is %v %s", again.Response, again.body)
		}
	}
	do(pack(t, "b", time.Unix(1, 0)), "gzip").must(t, 422, httpidem.KeyReused)
	do(pack(t, "a", time.Unix(1, 0)), "br").must(t, 422, httpidem.KeyReused)
	s.mustHaveRun(t, 1)
}

// A decompressed body takes its memory from all requests. Without room, nothing runs.
func TestDecompressedBodyCountsTowardsTheMemoryLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		s := &service{handle: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Content-Encoding") == "" {
				w.Write(make([]byte, size))
			}
		}}
		handler := limited(t, nil, s, httpidem.Options{MaxBody: size, MaxResponse: size, MaxBuffered: size + 64<<10})
		asks(t.Context(), handler, "alice", "answer", "body").must(t, 200, "")
		// Two clients do not read their kept answers: one has the room, and one exceeds it.
		replays := [2]chan struct{}{}
		var clients sync.WaitGroup
		for i := range replays {
			replays[i] = make(chan struct{})
			clients.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader("body"))
				r.Header.Set("Caller", "alice")
				r.Header.Set("Idempotency-Key", "answer")
				handler.ServeHTTP(&unread{httptest.NewRecorder(), replays[i]}, r)
			})
			synctest.Wait()
			if i == 1 {
				close(replays[0])
				synctest.Wait()
			}
		}
		packed := pack(t, strings.Repeat("x", size), time.Unix(1, 0))
		compressed := func(key string) *reply {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", strings.NewReader(packed))
			r.Header.Set("Caller", "alice")
			r.Header.Set("Content-Encoding", "gzip")
			r.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return &reply{Response: w.Result(), body: w.Body.Bytes()}
		}
		refused := compressed("k")
		if refused.must(t, 503, httpidem.Overloaded); refused.Header.Get("Retry-After") != "1" {
			t.Errorf("the refusal has %v", refused.Header)
		}
		s.mustHaveRun(t, 1)
		close(replays[1])
		clients.Wait()
		for i := range 4 { // each gives its memory back
			compressed("k"+strconv.Itoa(i)).must(t, 200, "")
		}
		asks(t.Context(), handler, "alice", "answer", "body").must(t, 200, "")
		s.mustHaveRun(t, 5)
	})
}
