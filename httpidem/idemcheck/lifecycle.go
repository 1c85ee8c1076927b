package idemcheck

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// The items about bodies, time, and clients that leave.

func (c *check) largeBody(ctx context.Context) {
	if c.MaxBody == 0 {
		c.not = "the longest body is not given"
		return
	}
	r := request{key: c.newKey(), body: strings.Repeat("x", int(c.MaxBody)+1)}
	for _, chunked := range []bool{false, true} {
		r.chunked = chunked
		before := c.count(ctx)
		// The target may close the connection before it has read everything.
		if got := c.send(ctx, r); got.status != 0 && got.status != http.StatusRequestEntityTooLarge {
			c.missf("a body of %d bytes got %s, want 413", len(r.body), got)
		}
		c.ran(ctx, before)
	}
	text := c.head(request{key: r.key}) + fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", c.MaxBody+1)
	if got := c.raw(ctx, text, 1)[0]; got.status != http.StatusRequestEntityTooLarge {
		c.missf("with Expect: 100-continue, a body that is too large got %s, want 413", got)
	}
	c.first(ctx, request{key: r.key, body: "x"})
}

func (c *check) abortedUpload(ctx context.Context) {
	key := c.newKey()
	for _, text := range []string{"Content-Length: 1000\r\n\r\nxxxx", "Transfer-Encoding: chunked\r\n\r\n4\r\nxxxx\r\n"} {
		if err := c.hangUp(ctx, c.head(request{key: key})+text); err != nil {
			c.missf("%v", err)
		}
	}
	c.first(ctx, request{key: key, body: "x"})
	c.ran(ctx, 1)
}

func (c *check) disconnect(ctx context.Context) {
	r := request{key: c.newKey(), body: "x"}
	leave, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &pending{c, make(chan *reply, 1)}
	r.does = "gate"
	go func() { p.done <- c.send(leave, r) }()
	if seen, err := c.ask(ctx, http.MethodGet, "?runs=1"); err != nil || seen.Runs != 1 {
		c.missf("the request did not reach the upstream")
	}
	cancel()
	p.wait(ctx)
	if got := c.settled(ctx, r); !got.ok() || string(got.body) != "run 1" {
		c.missf("after the client had left, a repetition got %s", got)
	}
	c.ran(ctx, 1)
}

func (c *check) timeout(ctx context.Context) {
	if c.Timeout == 0 || c.Timeout > 10*time.Second {
		c.not = "the time-out is not given, or is above 10 s"
		return
	}
	r := request{key: c.newKey(), body: "x", does: "gate"}
	if got := c.send(ctx, r); got.status != http.StatusGatewayTimeout {
		c.missf("after the time-out the client got %s, want 504", got)
	}
	if got := c.send(ctx, r); got.ok() {
		c.missf("after the time-out a repetition got %s", got)
	}
	if _, err := c.ask(ctx, http.MethodPost, ""); err != nil {
		c.missf("the gate of the upstream does not open: %v", err)
	}
	if got := c.settled(ctx, r); !got.ok() || string(got.body) != "run 1" {
		c.missf("after the late answer a repetition got %s", got)
	}
	c.ran(ctx, 1)
}

// shortestLease is the shortest lease to check. A busy machine can be late for a shorter
// one, although the target extends it.
const shortestLease = 500 * time.Millisecond

func (c *check) lease(ctx context.Context) {
	if c.Lease < shortestLease || c.Lease > 10*time.Second {
		c.not = "the lease is not given, or is not between 500 ms and 10 s"
		return
	}
	if c.Timeout > 0 && c.Timeout < 3*c.Lease {
		c.not = "the time-out is shorter than three leases"
		return
	}
	r := request{key: c.newKey(), body: "x"}
	p := c.start(ctx, r)
	r.does = "gate"
	r.soon = true
	var before *reply
	for end := time.Now().Add(c.Lease * 5 / 2); time.Now().Before(end); _ = retry.Sleep(ctx, c.Lease/4) {
		r.target = len(c.Targets) - 1
		got := c.send(ctx, r)
		if got.status != c.Profile.InFlightStatus {
			c.missf("a repetition in flight got %s, want %d", got, c.Profile.InFlightStatus)
			break
		}
		if before == nil {
			before = got
		}
		if got.problem() != before.problem() {
			c.missf("a repetition in flight got %s, and earlier %s: the lease was not extended", got, before)
			break
		}
	}
	c.again(ctx, p.wait(ctx), r)
	c.ran(ctx, 1)
}

func (c *check) window(ctx context.Context) {
	if c.Window == 0 || c.Window > 10*time.Second {
		c.not = "the window is not given, or is above 10 s"
		return
	}
	if c.Timeout > 0 && c.Timeout < 2*c.Window {
		c.not = "the time-out is shorter than two windows"
		return
	}
	r := request{key: c.newKey(), body: "x"}
	p := c.start(ctx, r)
	r.does = "gate"
	_ = retry.Sleep(ctx, c.Window)
	c.again(ctx, p.wait(ctx), r)
	_ = retry.Sleep(ctx, c.Window+time.Second)
	c.first(ctx, r)
}

func (c *check) firstSent(ctx context.Context) {
	if c.Profile.FirstSent == "" {
		c.not = "no header has the time of the first request"
		return
	}
	old := time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC).Format(http.TimeFormat)
	r := request{key: c.newKey(), header: http.Header{c.Profile.FirstSent: {old}}}
	c.refused(ctx, "a request that was sent first long ago", http.StatusPreconditionFailed, r)
}

func (c *check) forwarded(ctx context.Context) {
	key := c.newKey()
	c.first(ctx, request{key: key})
	seen, err := c.ask(ctx, http.MethodGet, "")
	if err != nil || seen.Header.Get(c.keyHeader()) != key {
		c.missf("the service got the key %q, want %q", seen.Header.Get(c.keyHeader()), key)
	}
}

func (c *check) ownRetry(ctx context.Context) {
	for _, body := range []string{"", "x"} {
		// Connections that are open already are those on which libraries repeat.
		for range 3 {
			c.first(ctx, request{key: c.newKey(), body: body})
		}
		before := c.count(ctx)
		r := request{key: c.newKey(), body: body, does: "end=reset"}
		c.send(ctx, r)
		c.send(ctx, r)
		if got := c.count(ctx) - before; got != 1 {
			c.missf("a request with a body of %d bytes, whose connection broke, ran %d times", len(body), got)
		}
	}
}

// hangUpInAnswer sends a request, reads the beginning of the answer, and leaves.
func (c *check) hangUpInAnswer(ctx context.Context, r request) error {
	conn, err := c.dial(ctx, c.Targets[r.target])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // what was read before counts
	if _, err := io.WriteString(conn, c.head(r)+"Content-Length: 0\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 64))
	return err
}
