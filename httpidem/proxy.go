package httpidem

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

// ProxyOptions are the options of NewProxy. Target is required.
type ProxyOptions struct {
	// Target is the address of the service: scheme, host and perhaps a path, before
	// which the path of each request is put.
	Target *url.URL
	// Timeout is how long a client with a key waits for the header of the response.
	// Then it gets 504, and it is not known whether its request took effect. Defaults
	// to 60 s.
	Timeout time.Duration
	// Late is how much longer the proxy itself waits. A response that comes in that
	// time is kept, and a repetition gets it. It waits as long for each next part of a
	// response. Defaults to 5 minutes.
	Late time.Duration
	// TLS configures connections to a target with https. Defaults to the system's roots.
	TLS *tls.Config
	// Log receives what went wrong with requests, without keys and bodies. Defaults to
	// nothing.
	Log *slog.Logger
}

// NewProxy returns the handler for [New] that passes requests on to a service. It never
// sends a request with a key twice: net/http by itself repeats such a request on a new
// connection, because it takes the key as a promise of the service.
//
// The service gets X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto. If the peer has a
// loopback or private address, it is taken for a proxy in front. Its values of these headers
// and its Forwarded are passed on, with its own address behind them in X-Forwarded-For.
// Those of another peer are dropped, because a client could choose them.
//
// If the service could not be reached and no byte of a request was sent, the client gets
// 502 and may repeat the request, which then runs. If a byte was sent and there is no
// whole response, it is not known whether the request took effect.
func NewProxy(opts *ProxyOptions) (http.Handler, error) {
	var o ProxyOptions
	if opts != nil {
		o = *opts
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Late == 0 {
		o.Late = 5 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Target == nil || o.Target.Scheme != "http" && o.Target.Scheme != "https" || o.Target.Host == "" || o.Timeout < 0 || o.Late < 0 {
		return nil, fmt.Errorf("httpidem: ProxyOptions: want a Target with scheme http or https and a host, and no negative times: %w", semel.ErrInvalidRequest)
	}
	p := &proxy{opts: o}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.TLSClientConfig = nil, o.TLS
	transport.MaxIdleConnsPerHost = 256
	transport.DisableCompression = true // the client's own Accept-Encoding counts
	p.reverse = &httputil.ReverseProxy{
		Rewrite:      p.rewrite,
		Transport:    p,
		ErrorHandler: p.failed,
		ErrorLog:     slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
	p.transport = transport
	return p, nil
}

type proxy struct {
	opts      ProxyOptions
	reverse   *httputil.ReverseProxy
	transport *http.Transport
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := recorderOf(r.Context())
	w = typed{w}
	if c == nil { // without a key
		p.reverse.ServeHTTP(w, r)
		return
	}
	c.separate()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	late := time.AfterFunc(p.opts.Timeout+p.opts.Late, func() { cancel(errLate) })
	defer late.Stop()
	waited := time.AfterFunc(p.opts.Timeout, func() {
		c.leave(&refusal{problem: OutcomeUnknown, status: http.StatusGatewayTimeout, detail: "The service did not answer in time. Repeat the request to get its answer."})
	})
	defer waited.Stop()
	defer func() {
		// A service does not undo its work because its response is of no use.
		cause, cut := recover(), c.wasCutOff() || c.brokeOff()
		if cause != nil && !(cause == http.ErrAbortHandler && cut) {
			panic(cause)
		}
	}()
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(ctx, lateKey{}, late)))
}

var errLate = errors.New("httpidem: the service did not answer in time")

func (p *proxy) rewrite(pr *httputil.ProxyRequest) {
	pr.SetURL(p.opts.Target)
	pr.Out.Host = pr.In.Host
	pr.Out.Trailer = pr.In.Trailer // they come with the end of the body
	if near(pr.In.RemoteAddr) {    // a proxy in front, which has the client's connection
		pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"] // SetXForwarded appends to it
		pr.SetXForwarded()
		for _, name := range []string{"X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"} {
			if values := pr.In.Header[name]; values != nil {
				pr.Out.Header[name] = values
			}
		}
	} else {
		pr.SetXForwarded()
	}
	if recorderOf(pr.In.Context()) != nil {
		// The response must have the same coding for each repetition.
		pr.Out.Header.Set("Accept-Encoding", "identity")
	}
	if recorderOf(pr.In.Context()) != nil || pr.In.Header.Get("Idempotency-Key") != "" || pr.In.Header.Get("X-Idempotency-Key") != "" {
		sendOnce(pr.In, pr.Out)
	}
}

// near reports whether a peer is on this machine or in its private network, where the proxies
// in front of this one are. What another peer says of its own connection is not trusted.
func near(peer string) bool {
	address, err := netip.ParseAddrPort(peer)
	ip := address.Addr().Unmap()
	return err == nil && (ip.IsLoopback() || ip.IsPrivate())
}

// sendOnce tells net/http not to repeat a request. It would, because it takes a header with
// a key for the promise of the service.
func sendOnce(in, out *http.Request) {
	if in.ContentLength != 0 {
		out.Body = unrepeatable{in.Body} // not nil, and without GetBody
		return
	}
	// Any body but NoBody would be sent in chunks, which simple servers do not expect of an
	// empty one. net/http looks for the header under its usual spelling only; on the wire,
	// the names of headers have no case.
	out.Body = http.NoBody
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values := out.Header[name]; values != nil {
			delete(out.Header, name)
			out.Header[strings.TrimSuffix(name, "Key")+"key"] = values
		}
	}
}

// unrepeatable is a body that can be read once.
type unrepeatable struct{ io.ReadCloser }

// typed is the writer of a client that gets no Content-Type which the service has not
// sent: net/http would guess one.
type typed struct{ http.ResponseWriter }

// Unwrap returns the writer below, for http.ResponseController.
func (t typed) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (t typed) WriteHeader(status int) {
	if h := t.Header(); h["Content-Type"] == nil {
		h["Content-Type"] = nil
	}
	t.ResponseWriter.WriteHeader(status)
}

// lateKey is the context key of the *time.Timer that ends a request whose response does
// not come, or stalls.
type lateKey struct{}

// RoundTrip sends a request. An error of a request that was not sent is errUnsent.
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	c := recorderOf(r.Context())
	if c == nil {
		return p.transport.RoundTrip(r)
	}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}
	resp, err := p.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil && !sent.Load() {
		return nil, fmt.Errorf("%w: %w", errUnsent, err)
	}
	if late, ok := r.Context().Value(lateKey{}).(*time.Timer); ok && err == nil {
		resp.Body = &moving{ReadCloser: resp.Body, recorder: c, late: late, most: p.opts.Timeout + p.opts.Late}
	}
	return resp, err
}

// moving is a body that may take long, but not stall. Each read delays the timer, unless the
// client has left a stream of events, which a service may keep alive for ever. A stream ends soon
// after the response of a call, even if the service leaves it open. The recorder gets to know
// how a body ended: outside of net/http, httputil takes a response that broke off for a whole one.
type moving struct {
	io.ReadCloser
	recorder *recorder
	late     *time.Timer
	most     time.Duration
	ending   bool // the client has the response
}

// Read implements io.Reader.
func (m *moving) Read(data []byte) (int, error) {
	switch responded, forsaken := m.recorder.responded(); {
	case forsaken:
	case !responded:
		m.late.Reset(m.most)
	case !m.ending:
		m.ending = true
		m.late.Reset(recordWithin)
	}
	n, err := m.ReadCloser.Read(data)
	if err != nil && m.ending {
		err = io.EOF
	}
	if err != nil {
		m.recorder.upstream(err)
	}
	return n, err
}

var errUnsent = errors.New("nothing was sent")

// failed answers a request that has no response.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if lost := context.Cause(r.Context()); errors.Is(lost, semel.ErrLeaseLost) {
		p.opts.Log.Warn("the lease of a key was lost while the service worked", "method", r.Method, "path", r.URL.Path, "error", lost)
	} else {
		p.opts.Log.Warn("the service gave no response", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	down := &refusal{problem: UpstreamDown, detail: "Nothing was sent to it. Repeat the request.", after: time.Second}
	c := recorderOf(r.Context())
	switch {
	case c == nil:
		down.detail, down.after = "It gave no response.", 0
		down.write(w, nil)
	case errors.Is(err, errUnsent):
		c.refuse(down, released)
	case errors.Is(context.Cause(r.Context()), semel.ErrLeaseLost):
		c.refuse(&refusal{problem: OutcomeUnknown, status: http.StatusBadGateway, detail: "The proxy could not keep the key for this request, because the store did not answer or another proxy has the key, and so it did not wait for the service. Repeat the request to learn its outcome."}, unknown)
	default:
		c.refuse(&refusal{problem: OutcomeUnknown, status: http.StatusBadGateway, detail: "The service broke off. The request does not run again by itself."}, unknown)
	}
}
