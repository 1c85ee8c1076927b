package httpidem

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
)

// TransportOptions are the options of NewTransport.
type TransportOptions struct {
	// Header is the name of the header that has the key. Defaults to Idempotency-Key.
	Header string
	// Methods are those whose requests get a key. Defaults to POST and PATCH.
	Methods []string
	// Tries is how often a request is sent. Defaults to 5. With 1, requests only get a key.
	Tries int
	// Budget is how long a request may take with all its tries and pauses. A pause that
	// would exceed it is not begun. A try in progress is not ended: the request's context
	// does that. Defaults to 1 minute.
	Budget time.Duration
}

// NewTransport returns a RoundTripper for clients of services that honour the
// Idempotency-Key header. It gives each request a new random key and sends the request
// again, with the same key, until it has an answer. A key that the caller has set stays.
//
// A request is sent again after a connection failed, and after 408, 425, 429, 502, 503
// and 504, and after 409 with Retry-After, which says that the first try still runs.
// Retry-After is respected. All other answers are returned, and so is a kept answer that
// is marked with [Replayed]. After the problem outcome-unknown, look whether the effect is
// there, or ask the operator: [ProblemOf] tells it from the service's own 409. When tries
// or budget are used up, RoundTrip returns the last answer or error.
//
// A request with a body is sent again only if it has GetBody, which http.NewRequest sets
// for bodies in memory. Requests with other methods pass untouched.
//
// A nil base is http.DefaultTransport. An error names all wrong options and wraps
// semel.ErrInvalidRequest. The RoundTripper is safe for concurrent use.
func NewTransport(base http.RoundTripper, opts *TransportOptions) (http.RoundTripper, error) {
	t := &transport{base: base}
	if base == nil {
		t.base = http.DefaultTransport
	}
	if opts != nil {
		t.opts = *opts
	}
	o := &t.opts
	if o.Header == "" {
		o.Header = "Idempotency-Key"
	}
	if o.Methods = slices.Clone(o.Methods); o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if o.Tries == 0 {
		o.Tries = 5
	}
	if o.Budget == 0 {
		o.Budget = time.Minute
	}
	wrong := invalid.In("httpidem: TransportOptions.")
	if o.Tries < 1 {
		wrong.Add("Tries: %d is below 1", o.Tries)
	}
	if o.Budget < 0 {
		wrong.Add("Budget: %v is negative", o.Budget)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	return t, nil
}

type transport struct {
	base http.RoundTripper
	opts TransportOptions
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !slices.Contains(t.opts.Methods, r.Method) {
		return t.base.RoundTrip(r)
	}
	out := r.Clone(r.Context()) // a RoundTripper does not change the request
	if out.Header.Get(t.opts.Header) == "" {
		out.Header.Set(t.opts.Header, `"`+rand.Text()+`"`)
	}
	tries := t.opts.Tries
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		tries = 1
	}
	end := time.Now().Add(t.opts.Budget)
	for n := 1; ; n++ {
		resp, err := t.base.RoundTrip(out)
		pause, again := t.pause(r.Context(), n, resp, err)
		if !again || n == tries || time.Now().Add(pause).After(end) {
			return resp, err
		}
		next := out.Clone(out.Context())
		if r.GetBody != nil {
			body, failed := r.GetBody()
			if failed != nil {
				return resp, err
			}
			next.Body = body
		}
		if resp != nil {
			_, _ = io.CopyN(io.Discard, resp.Body, mostProblem) // so that the connection can be used again
			resp.Body.Close()
		}
		if failed := retry.Sleep(r.Context(), pause); failed != nil {
			if next.Body != nil {
				next.Body.Close()
			}
			return nil, failed
		}
		out = next
	}
}

// pause says whether the request should be sent again after the n-th try, and when.
func (t *transport) pause(ctx context.Context, n int, resp *http.Response, err error) (time.Duration, bool) {
	most := retry.Backoff(n-1, 100*time.Millisecond, 5*time.Second)
	pause := retry.UpTo(most, 0.5)
	if err != nil {
		return pause, ctx.Err() == nil
	}
	after, asked := retryAfter(resp.Header)
	if asked {
		pause = max(after, most/2)
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return pause, resp.Header.Get(Replayed) == ""
	case http.StatusConflict:
		return pause, resp.Header.Get(Replayed) == "" && asked
	}
	return 0, false
}

// retryAfter reads the header Retry-After: seconds, or a date.
func retryAfter(h http.Header) (time.Duration, bool) {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second, true
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(time.Until(date), 0), true
	}
	return 0, false
}

// mostProblem is the longest problem in bytes that is read.
const mostProblem = 64 << 10

// ProblemOf returns the problem of an answer: the last part of the type in its problem
// details (RFC 9457), or "" if it has none. Compare it with the constants of this package;
// a service may have problems of its own. ProblemOf reads the body of an answer with the
// type application/problem+json. The body can be read from its beginning afterwards.
func ProblemOf(resp *http.Response) Problem {
	if kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/problem+json" {
		return ""
	}
	begin, err := io.ReadAll(io.LimitReader(resp.Body, mostProblem))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin), resp.Body), resp.Body}
	var p struct{ Type string }
	if err != nil || json.Unmarshal(begin, &p) != nil || p.Type == "" {
		return ""
	}
	return Problem(path.Base(p.Type))
}
