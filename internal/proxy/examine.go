package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/httpidem/caller"
	"github.com/semel-dev/semel/internal/config"
)

// Examine checks what a proxy needs besides its store: its certificate, its services, and
// the places that say who a caller is. It sends a HEAD request to each service, and a GET
// request without credentials to the service of forward_auth. It blocks until they have
// answered, for each at most the patience.
func Examine(ctx context.Context, f *config.File, patience time.Duration) *config.Examination {
	e := &examiner{Examination: &config.Examination{File: f, Proxy: f.Proxy}, patience: patience}
	p := f.Proxy
	if p.TLS != nil {
		secure, err := p.TLS.Config()
		if err != nil {
			e.Note(doctor.Broken, "proxy.tls", f.Redact(err.Error()), "the proxy does not start", "correct the files")
		} else {
			e.Certificate("proxy.tls", secure.Certificates[0].Leaf, "clients cannot connect")
		}
	}
	e.service(ctx, "proxy", &p.Route)
	seen := []*config.Route{&p.Route}
	for _, r := range p.Routes {
		if !slices.ContainsFunc(seen, func(s *config.Route) bool { return s.Upstream == r.Upstream && s.UpstreamTLS == r.UpstreamTLS }) {
			e.service(ctx, "proxy.routes."+r.Name, r)
			seen = append(seen, r)
		}
	}
	e.callers(ctx)
	return e.Examination
}

type examiner struct {
	*config.Examination
	patience time.Duration
}

// service checks the service of a route.
func (e *examiner) service(ctx context.Context, path string, r *config.Route) {
	const lost = "no request reaches the service, and clients get 502 /upstream-down"
	secure, err := r.UpstreamTLS.Config()
	if err != nil {
		e.Note(doctor.Broken, path+".upstream_tls", e.File.Redact(err.Error()), "the proxy does not start", "correct the files")
		return
	}
	subject := path + ".upstream"
	resp, err := e.ask(ctx, http.MethodHead, r.Upstream, secure)
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		e.Note(doctor.Broken, subject, r.Upstream+": "+untrusted.Error(), lost, "name the authority of its certificate in upstream_tls.ca, or its name in upstream_tls.server_name")
		return
	}
	if err != nil {
		e.Fail(subject, err)
		return
	}
	found := fmt.Sprintf("%s answers HEAD with %s", r.Upstream, resp.Status)
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Note(doctor.Warning, subject, found, "it may answer requests in the same way, and such answers are kept unless release names the status", "look why the service is not ready")
	default:
		e.Note(doctor.Fine, subject, found, "", "")
	}
	if resp.TLS != nil {
		e.Certificate(subject, resp.TLS.PeerCertificates[0], lost)
	}
}

// callers checks the places that say who a caller is.
func (e *examiner) callers(ctx context.Context) {
	i := &e.File.Proxy.Identity
	ctx, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	const cost = "requests with a key get 503 /scope-unavailable"
	if i.JWTKeys != "" {
		n, err := caller.CountKeys(ctx, i.JWTKeys)
		if err != nil {
			e.Note(doctor.Broken, "proxy.jwt_keys", e.File.Redact(err.Error()), cost, "correct the address or the file")
		} else {
			e.Note(doctor.Fine, "proxy.jwt_keys", fmt.Sprintf("%s has %d public keys", i.JWTKeys, n), "", "")
		}
	}
	if i.ForwardAuth == "" {
		return
	}
	const subject = "proxy.forward_auth"
	resp, err := e.ask(ctx, http.MethodGet, i.ForwardAuth, nil)
	untrusted, bad := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case bad:
		e.Note(doctor.Broken, subject, untrusted.Error(), cost, "use a certificate of an authority that this machine trusts")
	case err != nil:
		e.Fail(subject, err)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		e.Note(doctor.Fine, subject, fmt.Sprintf("a request without credentials gets %s", resp.Status), "", "")
	case resp.StatusCode < 300 && resp.Header.Get(e.File.Proxy.Caller.Name) != "":
		e.Note(doctor.Warning, subject, "it names a caller for a request without credentials", "all callers without credentials share their keys and answers", "let it answer with 401")
	case resp.StatusCode < 300: // without a name, the proxy refuses the request
		e.Note(doctor.Fine, subject, fmt.Sprintf("a request without credentials gets %s and no caller", resp.Status), "", "")
	default:
		e.Note(doctor.Warning, subject, fmt.Sprintf("a request without credentials gets %s", resp.Status), cost, "let it answer with 401 or 403")
	}
}

// ask sends a request and returns the response without its body.
func (e *examiner) ask(ctx context.Context, method, address string, secure *tls.Config) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "semel-doctor")
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // only the header counts
	return resp, resp.Body.Close()
}
