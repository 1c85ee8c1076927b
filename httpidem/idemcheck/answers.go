package idemcheck

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The items about what is kept and replayed.

// headerQuery returns the query with header lines of the answer.
func headerQuery(headers ...string) string {
	var words []string
	for _, line := range headers {
		words = append(words, "header="+url.QueryEscape(line))
	}
	return strings.Join(words, "&")
}

func (c *check) kept4xx(ctx context.Context) {
	for _, status := range []int{302, 400, 404, 409, 410, 422} {
		r := request{key: c.newKey(), does: "status=" + strconv.Itoa(status)}
		c.again(ctx, c.first(ctx, r), r)
	}
	for _, status := range []int{401, 403, 408, 425, 429} {
		before := c.count(ctx)
		// "first" counts the runs of a check, so each status has its own.
		own := &check{runner: c.runner, id: newID()}
		r := request{key: own.newKey(), does: "first&status=" + strconv.Itoa(status)}
		one, two := own.send(ctx, r), own.send(ctx, r)
		if one.status != status || own.count(ctx) != 2 || !two.ok() {
			c.missf("after %d a repetition got %s", status, two)
		}
		c.ran(ctx, before)
	}
}

func (c *check) kept5xx(ctx context.Context) {
	for _, status := range []int{500, 503} {
		own := &check{runner: c.runner, id: newID()}
		r := request{key: own.newKey(), does: "first&status=" + strconv.Itoa(status)}
		one, two := own.send(ctx, r), own.send(ctx, r)
		kept := own.count(ctx) == 1 && two.status == status
		released := own.count(ctx) == 2 && two.ok()
		if one.status != status || !kept && !released {
			c.missf("after %d a repetition got %s", status, two)
		}
	}
}

func (c *check) ownErrors(ctx context.Context) {
	r := request{key: c.newKey(), does: "end=reset"}
	one, two := c.send(ctx, r), c.send(ctx, r)
	if one.status != 0 && one.status < 500 {
		c.missf("a broken connection got %s", one)
	}
	if c.marked(two) {
		c.missf("the error %s is replayed as the answer of the service", two)
	}
}

// marked reports whether a reply has the header of replays.
func (c *check) marked(r *reply) bool { return r.header.Get(c.Profile.Marker) == "true" }

func (c *check) brokenAnswer(ctx context.Context) {
	large := 1 << 20
	if c.MaxBody > 0 {
		large = min(large, int(c.MaxBody))
	}
	for _, end := range []string{"reset", "half", "short"} {
		for _, size := range []int{0, 16, large} {
			own := &check{runner: c.runner, id: newID()}
			r := request{key: own.newKey(), body: strings.Repeat("x", size), does: "bytes=100&end=" + end}
			one, two := own.send(ctx, r), own.send(ctx, r)
			what := fmt.Sprintf("a body of %d bytes and an answer that ends with %s", size, end)
			if one.ok() {
				c.missf("%s got %s", what, one)
			}
			if two.ok() || two.status == 0 {
				c.missf("%s: a repetition got %s", what, two)
			}
			if got := own.count(ctx); got != 1 {
				c.missf("%s: the upstream ran %d times, want 1", what, got)
			}
		}
	}
}

func (c *check) marker(ctx context.Context) {
	const origin = "https://a.example"
	r := request{
		key: c.newKey(), header: http.Header{"Origin": {origin}, c.Profile.Marker: {"true"}},
		does: headerQuery(c.Profile.Marker+": true", "Access-Control-Allow-Origin: "+origin),
	}
	first := c.first(ctx, r)
	if c.marked(first) {
		c.missf("a first answer has %s: true", c.Profile.Marker)
	}
	again := c.again(ctx, first, r)
	if !c.marked(again) {
		c.missf("a replay has no %s: true", c.Profile.Marker)
	}
	if again.header.Get("Access-Control-Allow-Origin") != "" && !listed(again.header, "Access-Control-Expose-Headers", c.Profile.Marker) {
		c.missf("Access-Control-Expose-Headers of a replay does not name %s", c.Profile.Marker)
	}
}

// listed reports whether a header with a list has the name.
func listed(h http.Header, header, name string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(h[header], ","), ","), func(part string) bool {
		return strings.EqualFold(strings.TrimSpace(part), name)
	})
}

func (c *check) firstTime(ctx context.Context) {
	r := request{key: c.newKey()}
	first := c.first(ctx, r)
	again := c.again(ctx, first, r)
	for name, lines := range again.header {
		if first.header[name] != nil {
			continue
		}
		for _, layout := range []string{http.TimeFormat, time.RFC3339, time.RFC3339Nano} {
			if _, err := time.Parse(layout, lines[0]); err == nil {
				return
			}
		}
		if n, ok := strings.CutPrefix(lines[0], "@"); ok { // a date of RFC 9651
			if _, err := strconv.ParseInt(n, 10, 64); err == nil {
				return
			}
		}
	}
	c.missf("no header of a replay has a time")
}

func (c *check) contentHeaders(ctx context.Context) {
	want := map[string][]string{
		"Content-Type": {"text/plain; charset=utf-8"}, "Content-Language": {"de"}, "Location": {"/orders/1"}, "Etag": {`"v1"`},
		"Link": {"</a>; rel=next", "</b>; rel=prev"},
	}
	var lines []string
	for name, values := range want {
		for _, value := range values {
			if name != "Content-Type" {
				lines = append(lines, name+": "+value)
			}
		}
	}
	old := time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC)
	lines = append(lines, "Date: "+old.Format(http.TimeFormat))
	r := request{key: c.newKey(), does: "status=201&" + headerQuery(lines...)}
	again := c.again(ctx, c.first(ctx, r), r)
	for name, values := range want {
		if !slices.Equal(again.header[name], values) {
			c.missf("a replay has %s %q, want %q", name, again.header[name], values)
		}
	}
	if date, err := http.ParseTime(again.header.Get("Date")); err == nil && date.Equal(old) {
		c.missf("a replay has the Date of the first answer")
	}
}

func (c *check) sessionHeaders(ctx context.Context) {
	r := request{key: c.newKey(), does: headerQuery(
		"Set-Cookie: session=secret", "Connection: X-Secret", "X-Secret: 1", `Alt-Svc: h3=":443"`, "Keep-Alive: timeout=5", "Proxy-Authenticate: Basic",
	)}
	again := c.again(ctx, c.first(ctx, r), r)
	for _, name := range []string{"Set-Cookie", "X-Secret", "Alt-Svc", "Proxy-Authenticate"} {
		if lines := again.header[name]; lines != nil {
			c.missf("a replay has %s %q", name, lines)
		}
	}
}

func (c *check) origins(ctx context.Context) {
	const one, two = "https://a.example", "https://b.example"
	r := request{key: c.newKey(), header: http.Header{"Origin": {one}}, does: headerQuery("Access-Control-Allow-Origin: "+one, "Access-Control-Allow-Credentials: true")}
	first := c.first(ctx, r)
	r.header = http.Header{"Origin": {two}}
	if again := c.again(ctx, first, r); again.header.Get("Access-Control-Allow-Origin") == one {
		c.missf("a replay to the origin %s allows %s", two, one)
	}
}

func (c *check) bodies(ctx context.Context) {
	size := func(n int64) string {
		if c.MaxResponse > 0 {
			n = min(n, c.MaxResponse/2) // what is kept has headers too
		}
		return "bytes=" + strconv.FormatInt(n, 10)
	}
	for _, words := range []string{"kind=gzip", "kind=latin", "kind=nul", "kind=empty", "kind=untyped&" + size(700), "status=204", size(64 << 10)} {
		own := &check{runner: c.runner, id: newID()}
		r := request{key: own.newKey(), does: words, header: http.Header{"Accept-Encoding": {"gzip"}}}
		first := own.first(ctx, r)
		if first.err == nil && !sent(words, first) {
			own.missf("the first answer is not the one that the service sent: Content-Encoding %q, %d bytes", first.header.Get("Content-Encoding"), len(first.body))
		}
		again := own.send(ctx, r)
		own.ran(ctx, 1)
		if c.MaxResponse == 0 && (again.status == http.StatusConflict || again.status == http.StatusGone) && words == size(64<<10) {
			continue // longer than the target keeps, which no flag says
		}
		own.same(first, again)
		for _, text := range own.missed {
			c.missf("%s: %s", words, text)
		}
		for _, name := range []string{"Content-Encoding", "Content-Type"} {
			if one, two := first.header.Get(name), again.header.Get(name); one != two {
				c.missf("%s: a replay has %s %q, and the first answer %q", words, name, two, one)
			}
		}
		if n := again.header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(again.body)) {
			c.missf("%s: a replay of %d bytes has Content-Length %s", words, len(again.body), n)
		}
	}
}

// sent reports whether an answer has the body of the Upstream, byte for byte.
func sent(words string, got *reply) bool {
	did, err := url.ParseQuery(words)
	if err != nil || did.Get("status") == "204" {
		return len(got.body) == 0
	}
	header := http.Header{}
	body := content(header, did.Get("kind"), did.Get("bytes"), 1)
	return bytes.Equal(body, got.body) && header.Get("Content-Encoding") == got.header.Get("Content-Encoding")
}

func (c *check) trailers(ctx context.Context) {
	r := request{key: c.newKey(), does: "trailer"}
	first := c.first(ctx, r)
	if first.trailer.Get("Check-Sum") == "" {
		c.missf("the first answer has lost its trailer")
	}
	again := c.send(ctx, r)
	if again.ok() && again.trailer.Get("Check-Sum") != first.trailer.Get("Check-Sum") {
		c.missf("a replay has lost the trailer")
	}
	c.keptOrGone(ctx, first, again)
}

// keptOrGone notes if a repetition got neither the first answer nor the refusal that
// says that the answer is not kept, or if it took effect.
func (c *check) keptOrGone(ctx context.Context, first, again *reply) {
	if again.status != http.StatusConflict && again.status != http.StatusGone {
		c.same(first, again)
	} else if c.refusals["response-not-kept"] == nil {
		c.refusals["response-not-kept"] = again
	}
	c.ran(ctx, 1)
}

func (c *check) largeAnswer(ctx context.Context) {
	words := []string{"flush", "flush&header=Content-Type:+text/event-stream"}
	if c.MaxResponse > 0 {
		words = append(words, "bytes="+strconv.FormatInt(c.MaxResponse+1, 10))
	}
	for _, w := range words {
		own := &check{runner: c.runner, id: newID()}
		r := request{key: own.newKey(), does: w}
		first := own.first(ctx, r)
		if !first.ok() {
			own.missf("the first answer is %s", first)
		}
		own.keptOrGone(ctx, first, own.send(ctx, r))
		for _, text := range own.missed {
			c.missf("%s: %s", w, text)
		}
	}
	c.endless(ctx)
}

// endless checks an answer without an end, whose client leaves: the key must come to an
// end, and the request must not take effect again.
func (c *check) endless(ctx context.Context) {
	own := &check{runner: c.runner, id: newID()}
	r := request{key: own.newKey(), does: "end=stream"}
	if err := own.hangUpInAnswer(ctx, r); err != nil {
		c.missf("an answer without an end: %v", err)
	}
	r.soon = true
	if got := own.send(ctx, r); got.status/100 == 2 {
		c.missf("an answer without an end: a repetition got %s", got)
	}
	if got := own.count(ctx); got != 1 {
		c.missf("an answer without an end: the upstream ran %d times, want 1", got)
	}
}
