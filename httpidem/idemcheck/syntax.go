package idemcheck

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// The items about keys, methods and routes.

func (c *check) quotedKey(ctx context.Context) {
	r := request{key: c.newKey()}
	c.again(ctx, c.first(ctx, r), r)
	r.key = `"` + c.id + `\"\\"`
	c.again(ctx, c.first(ctx, r), r)
	for _, key := range []string{`"` + c.id, `"` + c.id + `\x"`, `"` + c.id + `"x`} {
		c.refused(ctx, "the key "+key, http.StatusBadRequest, request{key: key})
	}
}

func (c *check) strictKey(ctx context.Context) {
	if !c.strict {
		c.not = "the target takes raw keys"
		return
	}
	for _, key := range []string{c.id, "123e4567-e89b-12d3-a456-426614174000", "12", ":" + c.id + ":", "'" + c.id + "'", "?1"} {
		c.refused(ctx, "key-invalid", http.StatusBadRequest, request{key: key})
	}
}

func (c *check) rawKey(ctx context.Context) {
	if c.strict {
		c.not = "the target takes only keys in quotes"
		return
	}
	first := c.first(ctx, request{key: c.id})
	c.again(ctx, first, request{key: quote(c.id)})
	c.again(ctx, first, request{key: " " + c.id + "\t"})
}

func (c *check) parameters(ctx context.Context) {
	key := c.newKey()
	first := c.first(ctx, request{key: key + `;v=1;x="a;b"`})
	c.again(ctx, first, request{key: key})
}

func (c *check) twoKeys(ctx context.Context) {
	one, two := c.newKey(), c.newKey()
	c.refused(ctx, "key-invalid", http.StatusBadRequest, request{key: one + ", " + two})
	before := c.count(ctx)
	for _, second := range []string{one, two} {
		lines := c.head(request{key: one}) + c.keyHeader() + ": " + second + "\r\nContent-Length: 0\r\n\r\n"
		if got := c.raw(ctx, lines, 1)[0]; got.status != http.StatusBadRequest {
			c.missf("two header lines with the keys %s and %s got %s, want 400", one, second, got)
		}
	}
	if c.count(ctx) != before {
		c.missf("a request with two keys took effect")
	}
}

func (c *check) emptyKey(ctx context.Context) {
	c.refused(ctx, "key-invalid", http.StatusBadRequest, request{key: `""`})
	c.refused(ctx, "a key of spaces", http.StatusBadRequest, request{key: `"  "`})
	// An empty header line.
	c.refused(ctx, "an empty header", http.StatusBadRequest, request{header: http.Header{c.keyHeader(): {""}}})
}

func (c *check) keyLength(ctx context.Context) {
	// 26 bytes of the check's name make the key one that was never used.
	for _, n := range []int{1, c.Profile.MaxKey} {
		key := c.id[:1]
		if n > len(c.id) {
			key = c.id + strings.Repeat("x", n-len(c.id))
		}
		if got := c.send(ctx, request{key: quote(key)}); !got.ok() && got.status != c.Profile.MismatchStatus {
			c.missf("a key of %d bytes got %s", n, got)
		}
	}
	c.refused(ctx, fmt.Sprintf("a key of %d bytes", c.Profile.MaxKey+1), http.StatusBadRequest, request{key: quote(strings.Repeat("y", c.Profile.MaxKey+1))})
}

func (c *check) keyBytes(ctx context.Context) {
	before := c.count(ctx)
	for _, b := range []string{"\x00", "\x01", "\x1f", "\x7f"} {
		text := c.head(request{}) + c.keyHeader() + `: "` + c.id + b + "\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
		if got := c.raw(ctx, text, 1)[0]; got.err == nil && got.status != http.StatusBadRequest {
			c.missf("a key with the byte %q got %s, want 400", b, got)
		}
	}
	if c.count(ctx) != before {
		c.missf("a key with a control byte took effect")
	}
	// Keys that a store could confuse if it joined or decoded them.
	for _, pair := range [][2]string{{"a b", "a%20b"}, {"a:b", "a::b"}, {"a/b", "a%2Fb"}, {"A", "a"}, {"*", "?"}, {"a", "a "}} {
		one := c.send(ctx, request{key: quote(c.id + pair[0])})
		before := c.count(ctx)
		two := c.send(ctx, request{key: quote(c.id + pair[1])})
		if one.ok() && two.ok() && c.count(ctx) == before {
			c.missf("the keys %q and %q are one", pair[0], pair[1])
		}
	}
	if one := c.send(ctx, request{key: quote(c.id + "\u00e9")}); one.ok() { // refused is right too
		before := c.count(ctx)
		if two := c.send(ctx, request{key: quote(c.id + "e\u0301")}); two.ok() && c.count(ctx) == before {
			c.missf("the composed and the decomposed form of a letter are one key")
		}
	}
}

func (c *check) methods(ctx context.Context) {
	for _, method := range c.Profile.Methods {
		r := request{method: method, key: c.newKey(), body: "x"}
		c.again(ctx, c.first(ctx, r), r)
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
		r := request{method: method, key: c.newKey()}
		c.first(ctx, r)
		if got := c.first(ctx, r); got.status != http.StatusOK {
			c.missf("%s with a key got %s", method, got)
		}
	}
}

func (c *check) missingKey(ctx context.Context) {
	before := c.count(ctx)
	one := c.send(ctx, request{})
	if one.status == http.StatusBadRequest {
		c.refusals["key-missing"] = one
		if one.problem() == "" && !strings.Contains(one.header.Get("Link"), "describedby") {
			c.missf("the refusal is neither a problem nor has it a link that describes it")
		}
		c.ran(ctx, before)
		return
	}
	two := c.send(ctx, request{})
	if !one.ok() || !two.ok() {
		c.missf("requests without a key got %s and %s", one, two)
	}
	c.ran(ctx, before+2)
}

func (c *check) ignoredKey(ctx context.Context) {
	got := c.first(ctx, request{method: http.MethodGet, key: c.newKey()})
	if !strings.Contains(got.header.Get("Idempotency-Status"), "ignored") {
		c.missf("the answer does not say Idempotency-Status: ignored")
	}
}

func (c *check) upgrades(ctx context.Context) {
	preflight := request{method: http.MethodOptions, key: c.newKey(), header: http.Header{
		"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"POST"},
	}}
	for range 2 {
		if got := c.send(ctx, preflight); got.err != nil || got.status >= 400 {
			c.missf("a preflight got %s", got)
		}
	}
	text := c.head(request{method: http.MethodGet, does: "upgrade", key: c.newKey()}) +
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	for range 2 {
		if got := c.raw(ctx, text, 1)[0]; got.status != http.StatusSwitchingProtocols {
			c.missf("an upgrade got %s, want 101", got)
		}
	}
}
