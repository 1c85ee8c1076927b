package idemcheck

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The items about what a request under a known key gets.

func (c *check) firstAnswer(ctx context.Context) {
	r := request{key: c.newKey(), body: "x", does: "early&status=201&header=X-Own:+1&header=Set-Cookie:+a%3D1&header=Set-Cookie:+b%3D2"}
	got := c.first(ctx, r)
	if got.err != nil || got.status != http.StatusCreated || string(got.body) != "run 1" || got.header.Get("X-Own") != "1" || len(got.header["Set-Cookie"]) != 2 {
		c.missf("the answer is %s with the headers %v", got, got.header)
	}
}

func (c *check) repetition(ctx context.Context) {
	r := request{key: c.newKey(), body: "x", does: "status=201"}
	first := c.first(ctx, r)
	for i := range 3 {
		r.target = i % len(c.Targets)
		c.again(ctx, first, r)
	}
}

func (c *check) mismatch(ctx context.Context) {
	r := request{key: c.newKey(), body: "x", does: "status=201"}
	first := c.first(ctx, r)
	other := r
	other.body = "y"
	c.refused(ctx, "key-reused", c.Profile.MismatchStatus, other)
	c.again(ctx, first, r)
}

func (c *check) inFlight(ctx context.Context) {
	r := request{key: c.newKey(), body: "x"}
	p := c.start(ctx, r)
	r.does = "gate"
	if c.Wait == 0 {
		again := r
		again.soon = true
		got := c.refused(ctx, "in-flight", c.Profile.InFlightStatus, again)
		if n, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || n < 1 {
			c.missf("the answer has Retry-After %q, want 1 s or more", got.header.Get("Retry-After"))
		}
	}
	c.again(ctx, p.wait(ctx), r) // the refusal itself is not kept
}

func (c *check) mismatchInFlight(ctx context.Context) {
	r := request{key: c.newKey(), body: "x"}
	p := c.start(ctx, r)
	r.does = "gate"
	other := r
	other.body, other.soon = "y", true
	c.refused(ctx, "another body in flight", c.Profile.MismatchStatus, other)
	c.again(ctx, p.wait(ctx), r)
}

func (c *check) waits(ctx context.Context) {
	if c.Wait == 0 {
		c.not = "the target does not wait"
		return
	}
	r := request{key: c.newKey(), body: "x"}
	p := c.start(ctx, r)
	r.does = "gate"
	second := make(chan *reply, 1)
	go func() { second <- c.send(ctx, r) }()
	early := time.NewTimer(min(c.Wait/2, time.Second))
	defer early.Stop()
	select {
	case got := <-second:
		c.missf("the second request got %s before the first had ended", got)
		p.wait(ctx)
	case <-early.C:
		c.same(p.wait(ctx), <-second)
	}
	c.ran(ctx, 1)
}

func (c *check) concurrent(ctx context.Context) {
	r := request{key: c.newKey(), body: "x", does: "gate"}
	replies := make([]*reply, 100)
	var all sync.WaitGroup
	for i := range replies {
		all.Go(func() {
			mine := r
			mine.target = i % len(c.Targets)
			replies[i] = c.send(ctx, mine)
		})
	}
	if _, err := c.ask(ctx, http.MethodGet, "?runs=1"); err != nil {
		c.missf("the upstream does not answer: %v", err)
	}
	if _, err := c.ask(ctx, http.MethodPost, ""); err != nil {
		c.missf("the gate of the upstream does not open: %v", err)
	}
	all.Wait()
	for _, got := range replies {
		if got.status != c.Profile.InFlightStatus && (!got.ok() || string(got.body) != "run 1") {
			c.missf("one of 100 requests got %s", got)
			break
		}
	}
	c.ran(ctx, 1)
	// Twice in one connection, without waiting for the first answer.
	r = request{key: c.newKey()}
	twice := strings.Repeat(c.head(r)+"Content-Length: 0\r\n\r\n", 2)
	c.raw(ctx, twice, 2)
	c.ran(ctx, 2)
}

// problemTypes uses the refusals of the items before.
func (c *check) problemTypes(ctx context.Context) {
	r := request{key: c.newKey(), does: "end=reset"}
	c.send(ctx, r)
	if got := c.send(ctx, r); got.status >= 400 {
		c.refusals["outcome-unknown"] = got
	}
	types := map[string]string{}
	for _, cause := range []string{"in-flight", "key-reused", "key-invalid", "key-missing", "outcome-unknown"} {
		refusal := c.refusals[cause]
		if refusal == nil {
			continue
		}
		kind := refusal.problem()
		if other, ok := types[kind]; ok {
			c.missf("the refusals %s and %s have the same type %q", other, cause, kind)
		}
		types[kind] = cause
	}
	if len(types) < 2 {
		c.missf("there are fewer than two types of refusals")
	}
}

// problemForm uses the refusals of the items before.
func (c *check) problemForm(context.Context) {
	for _, cause := range slices.Sorted(maps.Keys(c.refusals)) {
		got := c.refusals[cause]
		if got.problem() == "" {
			c.missf("%s: %s is not application/problem+json with a type", cause, got)
		} else if !strings.Contains(got.header.Get("Cache-Control"), "no-store") {
			c.missf("%s: the refusal may be cached", cause)
		}
	}
}

func (c *check) compared(ctx context.Context) {
	r := request{key: c.newKey(), body: "x", path: "/idemcheck/a"}
	first := c.first(ctx, r)
	for what, change := range map[string]func(*request){
		"another method":      func(r *request) { r.method = http.MethodPatch },
		"another path":        func(r *request) { r.path = "/idemcheck/b" },
		"a slash at the end":  func(r *request) { r.path = "/idemcheck/a/" },
		"an escaped slash":    func(r *request) { r.path = "/idemcheck%2Fa" },
		"another query":       func(r *request) { r.does = "x=2" },
		"another body":        func(r *request) { r.body = "y" },
		"an empty body":       func(r *request) { r.body = "" },
		"a longer body":       func(r *request) { r.body = "x " },
		"another host header": func(r *request) { r.host = "other.example" },
	} {
		other := r
		change(&other)
		if what == "another host header" {
			if got := c.send(ctx, other); got.status == http.StatusMisdirectedRequest || got.status == http.StatusNotFound {
				continue // it serves only its own host
			}
		}
		c.notAnswered(ctx, what, other)
	}
	c.again(ctx, first, r)
}

func (c *check) chunked(ctx context.Context) {
	r := request{key: c.newKey(), body: strings.Repeat("x", 100), chunked: true}
	first := c.first(ctx, r)
	r.chunked = false
	c.again(ctx, first, r)
	r.chunked, r.body = true, strings.Repeat("x", 99)+"y"
	c.notAnswered(ctx, "another chunked body", r)
}

func (c *check) canonical(ctx context.Context) {
	for _, pair := range [][2]string{
		{`{"a":1}`, `{"a":1.0}`},
		{`{"a":100}`, `{"a":1e2}`},
		{`{"a":9007199254740992}`, `{"a":9007199254740993}`},
		{`{"a":1,"a":2}`, `{"a":2}`},
		{`{"a":"1"}`, `{"a":1}`},
		{`[1,2]`, `[2,1]`},
	} {
		r := request{key: c.newKey(), body: pair[0], header: http.Header{"Content-Type": {"application/json"}}}
		c.first(ctx, r)
		r.body = pair[1]
		c.notAnswered(ctx, pair[1]+" after "+pair[0], r)
	}
}

func (c *check) ignoredMember(ctx context.Context) {
	if c.Ignored == "" {
		c.not = "no member is named that the target ignores"
		return
	}
	body := func(ignored, other string) string {
		return fmt.Sprintf(`{%q:%q,"other":%q}`, c.Ignored, ignored, other)
	}
	r := request{key: c.newKey(), body: body("1", "1"), header: http.Header{"Content-Type": {"application/json"}}}
	first := c.first(ctx, r)
	r.body = body("2", "1")
	c.again(ctx, first, r)
	r.body = body("1", "2")
	c.notAnswered(ctx, "another member", r)
}

func (c *check) multipart(ctx context.Context) {
	form := func(boundary, value string) request {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		_ = w.SetBoundary(boundary)       // it is valid
		_ = w.WriteField("amount", value) // to memory
		_ = w.Close()                     // to memory
		return request{body: body.String(), header: http.Header{"Content-Type": {w.FormDataContentType()}}}
	}
	key := c.newKey()
	one, again, other := form("first-boundary", "10"), form("second-boundary", "10"), form("first-boundary", "11")
	one.key, again.key, other.key = key, key, key
	first := c.first(ctx, one)
	c.again(ctx, first, again)
	c.notAnswered(ctx, "another field", other)
}

func (c *check) otherHeaders(ctx context.Context) {
	r := request{key: c.newKey(), body: "x", header: http.Header{
		"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "User-Agent": {"one"}, "Date": {"Tue, 03 Jun 2025 10:00:00 GMT"},
	}}
	first := c.first(ctx, r)
	r.header = http.Header{"Traceparent": {"00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "User-Agent": {"two"}, "X-Attempt": {"2"}}
	c.again(ctx, first, r)
}

const noCallers = "no credentials of a caller are given"

func (c *check) callers(ctx context.Context) {
	if c.Caller == nil || c.Other == nil {
		c.not = "no credentials of two callers are given"
		return
	}
	r := request{key: c.newKey()}
	first := c.first(ctx, r)
	theirs := r
	theirs.as = c.Other
	second := c.first(ctx, theirs)
	c.again(ctx, first, r)
	c.again(ctx, second, theirs)
	// The other caller learns nothing of a key that only one caller used.
	r = request{key: c.newKey(), body: "x"}
	c.first(ctx, r)
	c.first(ctx, request{key: r.key, body: "y", as: c.Other})
}

func (c *check) authorization(ctx context.Context) {
	if c.Caller == nil {
		c.not = noCallers
		return
	}
	r := request{key: c.newKey()}
	first := c.first(ctx, r)
	c.unauthorized(ctx, r)
	// With another secret it is refused, or it is another caller. It must not learn what the
	// caller got: a scope that reads a name and no secret would tell it.
	r.as = forged(c.Caller)
	before := c.count(ctx)
	if got := c.send(ctx, r); c.count(ctx) == before && (got.status == first.status || got.status < 400) {
		c.missf("a request with the caller's name and another secret got %s", got)
	}
}

// forged returns the headers of a caller with another secret: another password, another
// signature of a token, another last letter.
func forged(caller http.Header) http.Header {
	h := caller.Clone()
	for name, lines := range h {
		for i, line := range lines {
			r := &http.Request{Header: http.Header{"Authorization": {line}}}
			if user, password, ok := r.BasicAuth(); ok {
				r.SetBasicAuth(user, password+"x")
				h[name][i] = r.Header.Get("Authorization")
				continue
			}
			at := max(len(line)-6, len(line)/2) // the last letter of a signature may have unused bits
			letter := "x"
			if strings.HasPrefix(line[at:], letter) {
				letter = "y"
			}
			h[name][i] = line[:at] + letter + line[min(at+1, len(line)):]
		}
	}
	return h
}

func (c *check) anonymous(ctx context.Context) {
	if c.Caller == nil {
		c.not = noCallers
		return
	}
	r := request{key: c.newKey()}
	c.unauthorized(ctx, r)
	c.unauthorized(ctx, r)
}

// unauthorized sends a request without credentials.
func (c *check) unauthorized(ctx context.Context, r request) {
	r.as = http.Header{}
	before := c.count(ctx)
	got := c.send(ctx, r)
	if got.status != http.StatusUnauthorized && got.status != http.StatusForbidden {
		c.missf("a request without credentials got %s, want 401 or 403", got)
	}
	if c.count(ctx) != before {
		c.missf("a request without credentials took effect")
	}
}
