package caller

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/invalid"
)

// Forward asks a service who sends a request, and whether the caller may send it. It
// sends GET to the address, with the headers of the request and with
// X-Forwarded-Method, -Proto, -Host, -Uri and -For, and without the body. The services
// for forward-auth of other proxies understand this.
//
// If the answer has a status of 2xx, its header names the caller. The request then has
// this header of the answer instead of its own, so that the handler can trust it. A
// request without a key is not asked about, and keeps what its client sent. 401 and 403
// reach the client, with WWW-Authenticate. After any other answer, or none, the client
// gets 503. Redirects are not followed.
//
// Each request with a key makes one request to the service, and waits for it. This also
// holds for repetitions: a caller whose access ended gets no kept answer. A nil client
// is one with a time-out of 5 s. An error names all wrong arguments and wraps
// semel.ErrInvalidRequest.
func Forward(address, header string, client *http.Client) (func(*http.Request) (string, error), error) {
	wrong := invalid.In("caller: Forward: ")
	header = textproto.CanonicalMIMEHeaderKey(header)
	if header == "" {
		wrong.Add("the name of the header that names the caller is empty")
	}
	target, err := url.Parse(address)
	if err != nil || target.Host == "" || target.Scheme != "http" && target.Scheme != "https" {
		wrong.Add("the address %q has no host, or a scheme other than http and https", address)
	}
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	f := &forwarder{address: target.String(), header: header, client: http.Client{Timeout: 5 * time.Second}}
	if client != nil {
		f.client = *client
	} else {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy, transport.MaxIdleConnsPerHost = nil, 64
		f.client.Transport = transport
	}
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return f.caller, nil
}

type forwarder struct {
	address string
	header  string
	client  http.Client
}

func (f *forwarder) caller(r *http.Request) (string, error) {
	unavailable := func(err error) error {
		return &httpidem.Denied{Status: http.StatusServiceUnavailable, Err: fmt.Errorf("caller: ask %s: %w", f.address, err)}
	}
	ask, err := f.question(r.Context(), r)
	if err != nil {
		return "", unavailable(err)
	}
	resp, err := f.client.Do(ask)
	if err != nil {
		return "", unavailable(err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return "", &httpidem.Denied{Status: resp.StatusCode, Challenge: resp.Header.Get("Www-Authenticate")}
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return "", unavailable(fmt.Errorf("the answer is %s", resp.Status))
	}
	name, err := single(resp.Header, f.header)
	if err != nil {
		return "", &httpidem.Denied{Detail: "The caller has no name.", Err: fmt.Errorf("caller: the answer of %s: %w", f.address, err)}
	}
	r.Header.Set(f.header, name)
	return name, nil
}

// question returns the request to the service.
func (f *forwarder) question(ctx context.Context, r *http.Request) (*http.Request, error) {
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, f.address, nil)
	if err != nil {
		return nil, err
	}
	hops := strings.Split(strings.ToLower(strings.ReplaceAll(strings.Join(r.Header["Connection"], ","), " ", "")), ",")
	for name, values := range r.Header {
		if name != f.header && !ofConnection(name) && !slices.Contains(hops, strings.ToLower(name)) {
			ask.Header[name] = values
		}
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	ask.Header.Set("X-Forwarded-Method", r.Method)
	ask.Header.Set("X-Forwarded-Proto", scheme)
	ask.Header.Set("X-Forwarded-Host", r.Host)
	ask.Header.Set("X-Forwarded-Uri", r.URL.RequestURI())
	ask.Header.Set("X-Forwarded-For", host)
	return ask, nil
}

// ofConnection reports whether a header describes the connection or the body of a
// request, and not the request.
func ofConnection(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect":
		return true
	}
	return strings.HasPrefix(name, "Content-") || strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "If-") || name == "Range" || name == "Accept-Encoding"
}
