package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/pipeline"
)

// Options are the options of New. URL is required.
type Options struct {
	// URL is the target, with http or https. It is required.
	URL string
	// Method is the method of the requests. Defaults to POST.
	Method string
	// Headers are sent with each request. A Host header sets the host.
	Headers http.Header
	// Forward names headers of the message to send on. The trace context, in
	// traceparent and tracestate, is always sent on.
	Forward []string
	// Timeout bounds a request, from connecting to the end of the answer.
	// Defaults to 10 s.
	Timeout time.Duration
	// Success and Retry are additional statuses that mean delivered and retry.
	// 2xx always means delivered, and 403, 408, 409, 425, 429 and 5xx mean
	// retry. 401, 407, 502, 503, 504, and 429 with Retry-After say that the target
	// accepts nothing now, and so do a cut connection and silence. The sink is
	// unavailable then: see pipeline.Unavailable. All other statuses are permanent errors.
	Success, Retry []int
	// AllowPrivate permits all addresses, and Allowed those in its prefixes. By
	// default the sink connects only to public addresses.
	AllowPrivate bool
	Allowed      []netip.Prefix
	// TLS configures https. Its minimal version is raised to 1.2. Defaults to
	// the roots of the system.
	TLS *tls.Config
	// Parallel is the number of concurrent requests. Defaults to 16.
	Parallel int
	// Redact removes secrets from the text of an answer before it is shortened for
	// an error. It is called concurrently. Defaults to the text as it is.
	Redact func(text string) string
	// Pipeline is the value of the header Semel-Pipeline. Defaults to "": no
	// header.
	Pipeline string
}

// maxResult is the size in bytes of the longest answer that becomes the key's result. A
// longer answer is not kept, and the result says so.
const maxResult = 64 << 10

// Sink sends messages. It is safe for concurrent use. New makes it.
type Sink struct {
	opts   Options
	client *http.Client
	target string
}

var (
	_ pipeline.Sink   = (*Sink)(nil)
	_ pipeline.Waiter = (*Sink)(nil)
)

// New returns a sink. It connects to nothing. One error names all invalid
// options, and wraps semel.ErrInvalidRequest.
func New(opts *Options) (*Sink, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Method == "" {
		o.Method = http.MethodPost
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Parallel == 0 {
		o.Parallel = 16
	}
	if o.Redact == nil {
		o.Redact = strings.Clone
	}
	target, err := o.validate()
	if err != nil {
		return nil, err
	}
	config := o.TLS.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS12)
	g := &guard{all: o.AllowPrivate, allowed: o.Allowed}
	dialer := &net.Dialer{Timeout: o.Timeout, Control: g.control}
	return &Sink{
		opts: o, target: target,
		client: &http.Client{
			Transport: &http.Transport{
				DialContext:         dialer.DialContext,
				TLSClientConfig:     config,
				ForceAttemptHTTP2:   true,
				MaxIdleConnsPerHost: o.Parallel,
				IdleConnTimeout:     90 * time.Second,

				MaxResponseHeaderBytes: 256 << 10,
				// A proxy would resolve names itself and bypass the guard.
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func (o *Options) validate() (target string, err error) {
	wrong := invalid.In("webhook: Options.")
	u, err := url.Parse(o.URL)
	switch {
	case err != nil:
		wrong.Add("URL is not a valid URL") // the parser's error may contain a password
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		wrong.Add("URL: write http://host or https://host")
	default:
		target = shown(u)
	}
	if _, err := http.NewRequest(o.Method, "http://host", nil); err != nil {
		wrong.Add("Method: %q is not a valid method", o.Method)
	}
	for name, values := range o.Headers {
		if len(values) == 0 || slices.ContainsFunc(values, func(v string) bool { return !printable(v) }) {
			wrong.Add("Headers: the value of %q is missing, or is not visible ASCII", name)
		}
	}
	for _, name := range slices.Concat(o.Forward, slices.Sorted(maps.Keys(o.Headers))) {
		if !token(name) || slices.Contains(ofConnection, textproto.CanonicalMIMEHeaderKey(name)) {
			wrong.Add("Headers, Forward: %q is not a valid header name, or is a header of the connection", name)
		}
	}
	if o.Pipeline != "" && !printable(o.Pipeline) {
		wrong.Add("Pipeline: %q is not visible ASCII", o.Pipeline)
	}
	if o.Timeout < 0 {
		wrong.Add("Timeout: %v is negative", o.Timeout)
	}
	if o.Parallel < 0 {
		wrong.Add("Parallel: %d is negative", o.Parallel)
	}
	for _, status := range slices.Concat(o.Success, o.Retry) {
		if status < 200 || status > 599 {
			wrong.Add("Success, Retry: %d is not a valid status", status)
		}
	}
	return target, wrong.Err()
}

// shown returns an address without password and query, because either may be a
// secret. Errors are logged, and kept with parked messages.
func shown(u *url.URL) string {
	short := *u
	short.User, short.RawQuery, short.ForceQuery, short.Fragment, short.RawFragment = nil, "", false, "", ""
	text := short.String()
	if _, ok := u.User.Password(); ok {
		text = strings.Replace(text, "://", "://"+url.User(u.User.Username()).String()+":[hidden]@", 1)
	} else if u.User != nil {
		text = strings.Replace(text, "://", "://"+u.User.String()+"@", 1)
	}
	if u.RawQuery != "" {
		text += "?[hidden]"
	}
	return text
}

// Traits implements pipeline.Sink.
func (s *Sink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{MaxBatch: 1, Parallel: s.opts.Parallel}
}

// Close implements pipeline.Sink.
func (s *Sink) Close(context.Context) error {
	s.client.CloseIdleConnections()
	return nil
}

// WaitsFor implements pipeline.Waiter. It names the target.
func (s *Sink) WaitsFor(context.Context) (what string, ends bool) {
	return "an answer from " + s.target + ": is the service up?", false
}

// Deliver implements pipeline.Sink.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Result, it.Err = s.send(ctx, it)
	}
}

// send sends one request.
func (s *Sink) send(ctx context.Context, it *pipeline.Item) (semel.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	var on progress
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:          func(httptrace.GotConnInfo) { on.connected.Store(true) },
		WroteHeaderField: func(string, []string) { on.wrote.Store(true) }, // called before the first byte
	})
	req, err := http.NewRequestWithContext(ctx, s.opts.Method, s.opts.URL, bytes.NewReader(it.Message.Body))
	if err != nil {
		return semel.Result{}, semel.Permanent(fmt.Errorf("webhook %s: %w", s.target, err))
	}
	s.setHeaders(req, it)
	resp, err := s.client.Do(req)
	if err != nil {
		return semel.Result{}, s.failure(ctx, err, &on)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResult+1))
	if delivered := s.status(resp, body); delivered != nil {
		return semel.Result{}, delivered
	}
	if err != nil || len(body) > maxResult { // the message is delivered nevertheless
		return semel.Result{Kind: semel.NotKept}, nil
	}
	return semel.Result{Kind: semel.Value, Data: body}, nil
}

// progress is how far a request got. The HTTP client writes in its own
// goroutine, which may continue for a moment after the request was given up.
type progress struct{ connected, wrote atomic.Bool }

// failure classifies an error of the HTTP client.
func (s *Sink) failure(ctx context.Context, err error, on *progress) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err // the URL may contain a password
	}
	err = fmt.Errorf("webhook %s: %w", s.target, err)
	var private *PrivateAddressError
	switch {
	case errors.As(err, &private):
		return pipeline.Unavailable(err, 0)
	case on.wrote.Load(), on.connected.Load() && ctx.Err() != nil:
		err = fmt.Errorf("%w: the request was sent and not answered: %w", semel.ErrOutcomeUnknown, err)
		if errors.Is(ctx.Err(), context.Canceled) {
			return err
		}
	case errors.Is(ctx.Err(), context.Canceled):
		return err // this says nothing about the target
	}
	return pipeline.Unavailable(err, 0)
}

// StatusError says that the target answered with a status that does not mean delivered.
type StatusError struct {
	Code int

	target, excerpt string
}

// Error implements error. The text has the start of the answer.
func (e *StatusError) Error() string {
	return e.Public() + e.excerpt
}

// Public returns the text without the answer, which may have parts of a message.
func (e *StatusError) Public() string {
	return strings.TrimSpace(fmt.Sprintf("webhook %s answered %d %s", e.target, e.Code, http.StatusText(e.Code)))
}

// status classifies the status of an answer. Nil means delivered.
func (s *Sink) status(resp *http.Response, body []byte) error {
	code := resp.StatusCode
	var err error = &StatusError{Code: code, target: s.target, excerpt: s.excerpt(body)}
	after := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	switch {
	case slices.Contains(s.opts.Success, code):
		return nil
	case slices.Contains(s.opts.Retry, code):
		return pipeline.Retry(err, after)
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusServiceUnavailable, code == http.StatusTooManyRequests && after > 0,
		code == http.StatusUnauthorized, code == http.StatusProxyAuthRequired:
		// The target accepts nothing now, or does not know the sender. That is
		// no fault of the message. A target that forbids this message (403) may
		// accept others.
		return pipeline.Unavailable(err, after)
	case code == http.StatusBadGateway, code == http.StatusGatewayTimeout:
		return pipeline.Unavailable(fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err), after) // from a proxy before the target
	case code >= 500, code == http.StatusForbidden, code == http.StatusRequestTimeout, code == http.StatusConflict, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		return pipeline.Retry(err, after)
	case code >= 300 && code < 400:
		return semel.Permanent(fmt.Errorf("%w: redirects are not followed: configure the new address", err))
	}
	return semel.Permanent(err)
}

// longest is the highest number of bytes of an answer in an error.
const longest = 512

// excerpt returns the start of an answer that is text, without secrets.
func (s *Sink) excerpt(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	line = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\ufffd' {
			return -1
		}
		return r
	}, line)
	if line = s.opts.Redact(line); len(line) > longest {
		line = strings.ToValidUTF8(line[:longest], "") + "…"
	}
	if line == "" {
		return ""
	}
	return ": " + line
}

// retryAfter parses a Retry-After header, which has seconds or a date. It
// returns 0 for none, and at most an hour.
func retryAfter(value string, now time.Time) time.Duration {
	if value == "" {
		return 0
	}
	var d time.Duration
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		d = time.Duration(min(seconds, 3600)) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), time.Hour)
}
