package idemcheck

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// patience bounds a request of the checks.
const patience = 30 * time.Second

// runner is what the checks of a run share.
type runner struct {
	*Options
	client   *http.Client
	refusals map[string]*reply // the refusals that were seen, by their cause
	strict   bool              // the target takes only keys in quotes
	began    time.Time
}

func newRunner(o *Options) *runner {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.TLSClientConfig, transport.DisableCompression = nil, o.TLS, true
	transport.MaxIdleConnsPerHost = 100
	return &runner{Options: o, refusals: map[string]*reply{}, began: time.Now(), client: &http.Client{
		Transport:     transport,
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// keyHeader returns the name of the header with the key.
func (o *Options) keyHeader() string { return o.Profile.Headers[0] }

// meet finds out whether the Upstream answers, whether it is behind the targets, and
// whether the targets are strict.
func (r *runner) meet(ctx context.Context) error {
	for i, target := range r.Targets {
		c := &check{runner: r, id: newID()}
		hello := request{target: i, key: c.id}
		if r.Profile.MCP {
			hello = call{id: "0", key: c.id, target: i}.request()
		}
		got := c.send(ctx, hello)
		seen, err := c.ask(ctx, http.MethodGet, "")
		if err != nil {
			return fmt.Errorf("idemcheck: ask the upstream at %s: %w", r.Probe, err)
		}
		switch {
		case got.err != nil:
			return fmt.Errorf("idemcheck: %s does not answer: %w", target, got.err)
		case seen.Runs == 1:
		case got.status == http.StatusBadRequest:
			r.strict = true
			if again := c.send(ctx, request{target: i, key: quote(c.id)}); c.count(ctx) != 1 {
				return fmt.Errorf("idemcheck: %s answers %s to a first request, raw and in quotes", target, again)
			}
		default:
			return fmt.Errorf("idemcheck: %s answers %s to a first request, and the upstream at %s has not seen it: is it behind the target, and do the requests have the credentials that the target wants?", target, got, r.Probe)
		}
	}
	return nil
}

// check is the check of one item. What is not as it should be goes into missed.
type check struct {
	*runner
	id     string
	keys   int
	missed []string
	not    string // why the item does not apply
}

// newID returns a name that no check had.
func newID() string { return strings.ToLower(rand.Text()) }

func (c *check) missf(format string, args ...any) {
	c.missed = append(c.missed, fmt.Sprintf(format, args...))
}

// newKey returns a key that no request had, in quotes.
func (c *check) newKey() string {
	c.keys++
	return quote(c.id + "-" + strconv.Itoa(c.keys))
}

// quote returns a key as a string of RFC 9651.
func quote(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// request is a request to the target.
type request struct {
	target int
	method string // POST
	path   string // /idemcheck
	host   string
	// does is the query that tells the Upstream what to do.
	does   string
	key    string // the header line with the key; empty for none
	header http.Header
	body   string
	// chunked sends the body without its length.
	chunked bool
	// soon: the answer must come within two seconds and Wait, although the first request
	// has none. A machine that stands still is asked up to three times.
	soon bool
	// as replaces the headers of the caller.
	as http.Header
}

// reply is the answer to a request.
type reply struct {
	err     error // there is no answer; or it ended early, if status is set
	status  int
	header  http.Header
	trailer http.Header
	body    []byte
}

// String describes a reply in a few words.
func (r *reply) String() string {
	switch {
	case r.status == 0:
		return fmt.Sprintf("no answer (%v)", r.err)
	case r.err != nil:
		return fmt.Sprintf("%d, cut short", r.status)
	case r.problem() != "":
		return fmt.Sprintf("%d %s", r.status, r.problem())
	}
	return fmt.Sprintf("%d %.40q", r.status, r.body)
}

// ok reports whether the reply is a whole answer of the Upstream with success.
func (r *reply) ok() bool { return r.err == nil && r.status/100 == 2 }

// problem returns the type of problem details, or "".
func (r *reply) problem() string {
	var p struct{ Type string }
	if !strings.HasPrefix(r.header.Get("Content-Type"), "application/problem+json") || json.Unmarshal(r.body, &p) != nil {
		return ""
	}
	return p.Type
}

// query returns the query of a request: the check, and the behaviour of the Upstream.
func (c *check) query(does string) string {
	query := "check=" + c.id
	if does != "" {
		query += "&" + does
	}
	return query
}

// headers returns the headers of a request: of the caller, its own, and the key.
func (c *check) headers(r request) http.Header {
	h := http.Header{}
	caller := c.Caller
	if r.as != nil {
		caller = r.as
	}
	for _, more := range []http.Header{caller, r.header} {
		for name, lines := range more {
			h[http.CanonicalHeaderKey(name)] = append([]string(nil), lines...)
		}
	}
	if c.Profile.FirstSent != "" && h[http.CanonicalHeaderKey(c.Profile.FirstSent)] == nil {
		h.Set(c.Profile.FirstSent, c.began.UTC().Format(http.TimeFormat))
	}
	if r.key != "" {
		h[http.CanonicalHeaderKey(c.keyHeader())] = []string{r.key}
	}
	return h
}

// send sends a request and reads the answer. One whose answer must come soon is sent up to
// three times if it does not.
func (c *check) send(ctx context.Context, r request) *reply {
	if !r.soon {
		return c.sendOnce(ctx, r)
	}
	for try := 1; ; try++ {
		soon, cancel := context.WithTimeout(ctx, c.Wait+2*time.Second)
		got := c.sendOnce(soon, r)
		late := got.err != nil && soon.Err() != nil && ctx.Err() == nil
		cancel()
		if !late || try == 3 {
			return got
		}
	}
}

// sendOnce sends a request, and returns the answer when it was read to its end.
func (c *check) sendOnce(ctx context.Context, r request) *reply {
	answer, err := c.open(ctx, r)
	if err != nil {
		return &reply{err: err}
	}
	return read(answer)
}

// open sends a request once, and returns the answer when its header is there.
func (c *check) open(ctx context.Context, r request) (*http.Response, error) {
	target := *c.Targets[r.target]
	path := strings.TrimSuffix(target.EscapedPath(), "/") + cmp.Or(r.path, "/idemcheck")
	address := target.Scheme + "://" + target.Host + path + "?" + c.query(r.does)
	// A body without GetBody cannot be sent twice by the client itself.
	out, err := http.NewRequestWithContext(ctx, cmp.Or(r.method, http.MethodPost), address, struct{ io.Reader }{strings.NewReader(r.body)})
	if err != nil {
		return nil, err
	}
	if out.ContentLength = int64(len(r.body)); r.chunked {
		out.ContentLength = -1
	}
	out.Header = c.headers(r)
	out.Host = cmp.Or(r.host, c.Targets[0].Host) // the same at each target
	return c.client.Do(out)
}

// read reads an answer to its end.
func read(answer *http.Response) *reply {
	defer func() { _ = answer.Body.Close() }() // it was read
	body, err := io.ReadAll(answer.Body)
	return &reply{err: err, status: answer.StatusCode, header: answer.Header, trailer: answer.Trailer, body: body}
}

// pending is a request whose answer has not come.
type pending struct {
	c    *check
	done chan *reply
}

// start sends a request whose answer the gate holds back, and waits until it takes
// effect. wait must be called.
func (c *check) start(ctx context.Context, r request) *pending {
	p := &pending{c, make(chan *reply, 1)}
	before := c.count(ctx)
	r.does = join("gate", r.does)
	go func() { p.done <- c.send(ctx, r) }()
	if seen, err := c.ask(ctx, http.MethodGet, "?runs="+strconv.Itoa(before+1)); err != nil || seen.Runs != before+1 {
		c.missf("the first request did not reach the upstream")
	}
	return p
}

// wait opens the gate and returns the answer.
func (p *pending) wait(ctx context.Context) *reply {
	if _, err := p.c.ask(ctx, http.MethodPost, ""); err != nil {
		p.c.missf("the gate of the upstream does not open: %v", err)
	}
	return <-p.done
}

func join(words ...string) string {
	return strings.Trim(strings.Join(words, "&"), "&")
}

// ask asks the Upstream what it saw.
func (c *check) ask(ctx context.Context, method, query string) (*Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Probe.String(), "/")+probePath+c.id+query, nil)
	if err != nil {
		return nil, err
	}
	answer, err := c.client.Do(out)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	seen := &Seen{}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", answer.Status)
	}
	return seen, json.NewDecoder(answer.Body).Decode(seen)
}

// count returns how often the check took effect.
func (c *check) count(ctx context.Context) int {
	seen, err := c.ask(ctx, http.MethodGet, "")
	if err != nil {
		c.missf("the upstream does not answer: %v", err)
		return 0
	}
	return seen.Runs
}

// ran notes if the check did not take effect so often.
func (c *check) ran(ctx context.Context, want int) {
	if got := c.count(ctx); got != want {
		c.missf("the upstream ran %d times, want %d", got, want)
	}
}

// first sends a request that must take effect.
func (c *check) first(ctx context.Context, r request) *reply {
	before := c.count(ctx)
	got := c.send(ctx, r)
	if got.status == 0 || c.count(ctx) != before+1 {
		c.missf("a first request with the key %s got %s, and did not take effect once", r.key, got)
	}
	return got
}

// again repeats a request, which must get the first answer and not take effect.
func (c *check) again(ctx context.Context, first *reply, r request) *reply {
	before := c.count(ctx)
	got := c.send(ctx, r)
	if got.inFlight(c.Profile.InFlightStatus) && got.status != first.status {
		got = c.settled(ctx, r) // the first answer came before a slow store had it
	}
	c.same(first, got)
	if after := c.count(ctx); after != before {
		c.missf("a repeated request took effect")
	}
	return got
}

// inFlight reports whether the target asks for a repetition, because the first request runs.
func (r *reply) inFlight(status int) bool {
	return r.status == status && r.header.Get("Retry-After") != ""
}

// same notes if a replay is not the first answer.
func (c *check) same(first, got *reply) {
	if got.err != nil || got.status != first.status || !bytes.Equal(got.body, first.body) {
		c.missf("a repeated request got %s, and the first one %s", got, first)
	}
}

// refused sends a request that must be refused with the status, and must not take effect.
// The cause names the refusal for the items about refusals.
func (c *check) refused(ctx context.Context, cause string, status int, r request) *reply {
	before := c.count(ctx)
	got := c.send(ctx, r)
	if got.status != status {
		c.missf("%s got %s, want %d", cause, got, status)
	} else if c.refusals[cause] == nil {
		c.refusals[cause] = got
	}
	if c.count(ctx) != before {
		c.missf("%s took effect", cause)
	}
	return got
}

// notAnswered sends another request under the key of an earlier one. It must not get its
// answer: it is refused, or it is a request of its own. The item about mismatches checks
// with which status.
func (c *check) notAnswered(ctx context.Context, what string, r request) {
	before := c.count(ctx)
	got := c.send(ctx, r)
	if c.count(ctx) != before+1 && got.status/100 != 4 {
		c.missf("%s under the same key got %s, want a refusal such as %d", what, got, c.Profile.MismatchStatus)
	}
}

// settled repeats a request until it is no longer in flight, for ten seconds at most.
func (c *check) settled(ctx context.Context, r request) *reply {
	end := time.Now().Add(10 * time.Second)
	for {
		got := c.send(ctx, r)
		if got.status != c.Profile.InFlightStatus && got.status != http.StatusGatewayTimeout || time.Now().After(end) {
			return got
		}
		_ = retry.Sleep(ctx, 50*time.Millisecond)
	}
}

// dial connects to a target.
func (c *check) dial(ctx context.Context, target *url.URL) (net.Conn, error) {
	port := cmp.Or(target.Port(), map[string]string{"http": "80", "https": "443"}[target.Scheme])
	address := net.JoinHostPort(target.Hostname(), port)
	var conn net.Conn
	var err error
	if target.Scheme == "https" {
		// HTTP/1.1 is what the raw requests speak.
		conn, err = (&tls.Dialer{Config: c.TLS}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

// head returns the head of a request as it goes over the connection, without the empty
// line. Values are not checked.
func (c *check) head(r request) string {
	target := c.Targets[r.target]
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s%s?%s HTTP/1.1\r\nHost: %s\r\n", cmp.Or(r.method, http.MethodPost), strings.TrimSuffix(target.EscapedPath(), "/"), cmp.Or(r.path, "/idemcheck"), c.query(r.does), target.Host)
	for name, lines := range c.headers(r) {
		for _, line := range lines {
			fmt.Fprintf(&b, "%s: %s\r\n", name, line)
		}
	}
	return b.String()
}

// raw sends text over one connection, and reads so many answers.
func (c *check) raw(ctx context.Context, text string, answers int) []*reply {
	conn, err := c.dial(ctx, c.Targets[0])
	if err != nil {
		return []*reply{{err: err}}
	}
	defer func() { _ = conn.Close() }() // what was read before counts
	// The target may answer before it has read everything, and then close the connection:
	// an error of writing says nothing, and the answers are what counts.
	var sending sync.WaitGroup
	sending.Go(func() { _, _ = io.WriteString(conn, text) })
	defer sending.Wait()
	var list []*reply
	for in := bufio.NewReader(conn); len(list) < answers; {
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			list = append(list, &reply{err: err})
			break
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			list = append(list, readRaw(answer))
		}
	}
	_ = conn.Close() // ends the sending
	return list
}

// readRaw reads the answer of a raw request. After 101 the connection has no end.
func readRaw(answer *http.Response) *reply {
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return &reply{status: answer.StatusCode, header: answer.Header}
	}
	return read(answer)
}

// errNotSent is the error of a raw request that could not be sent.
var errNotSent = errors.New("the request could not be sent")

// hangUp sends text over one connection, and closes it without reading an answer.
func (c *check) hangUp(ctx context.Context, text string) error {
	conn, err := c.dial(ctx, c.Targets[0])
	if err != nil {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	defer func() { _ = conn.Close() }() // what was read before counts
	if _, err := io.WriteString(conn, text); err != nil {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return nil
}
