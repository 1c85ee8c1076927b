package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// Lint implements config.Sink.
func (s *Sink) Lint(l *config.Linter) {
	s.lintAddress(l)
	s.lintKeys(l)
	for _, name := range s.Forward {
		l.Value("sink.webhook.forward", "header:"+name, "nothing is forwarded")
	}
	p, timeout := l.Pipeline, l.At("sink.webhook.timeout")
	if p.Lease < s.Timeout {
		then := "another process sends it again"
		if p.OnLeaseExpired == "hold" {
			then = "the key is unknown until a person resolves it"
		}
		l.Add(doctor.Warning, config.Repeat, l.At("lease"),
			fmt.Sprintf("%s, but one request may take %s", schema.Duration(p.Lease), schema.Duration(s.Timeout)),
			"a process that hangs, or cannot reach the store, loses the key during its request, and "+then,
			fmt.Sprintf("write lease: %s or more, or a shorter timeout", schema.Duration(2*s.Timeout)))
	}
	if l.File.Shutdown < s.Timeout {
		l.Add(doctor.Warning, config.Repeat, timeout,
			fmt.Sprintf("%s, but shutdown is %s", schema.Duration(s.Timeout), schema.Duration(l.File.Shutdown)),
			"a request that still runs at the end of a drain is cut off, and its outcome is unknown",
			fmt.Sprintf("write shutdown: %s or more, or a shorter timeout", schema.Duration(s.Timeout+5*time.Second)))
	}
}

// lintKeys looks for other pipelines whose requests to the host of this one may have the
// same Idempotency-Key, which is the id alone.
func (s *Sink) lintKeys(l *config.Linter) {
	mine, err := url.Parse(s.URL.Reveal())
	if err != nil {
		return // the URL was valid when it was read
	}
	for _, other := range l.File.Pipelines {
		sink, ok := other.Sink.(*Sink)
		if !ok || other == l.Pipeline {
			continue
		}
		its, err := url.Parse(sink.URL.Reveal())
		if err != nil || !strings.EqualFold(its.Host, mine.Host) {
			continue
		}
		if other.Key.Scope == l.Pipeline.Key.Scope && *its == *mine && s.Method == sink.Method {
			continue // the same key means the same message
		}
		l.Add(doctor.Warning, config.Loss, l.At("sink.webhook.url"), mine.Host+", to which "+other.Name+" sends too",
			"a message of each with one id have one Idempotency-Key: a service that keeps keys for all paths and clients together takes the second for a repetition, and answers as if it had done it",
			"nothing if the service tells requests apart by path, or by the header Semel-Scope; otherwise give the ids of one pipeline another form, such as { template: \""+l.Pipeline.Name+"-{.id}\" }")
		return
	}
}

// lintAddress checks a target's address. It does not resolve host names.
func (s *Sink) lintAddress(l *config.Linter) {
	u, err := url.Parse(s.URL.Reveal())
	if err != nil {
		return // the URL was valid when it was read
	}
	path := l.At("sink.webhook.url")
	host := u.Hostname()
	if u.Scheme == "http" && !config.IsLoopback(host) {
		l.Add(doctor.Warning, config.NoRisk, path, "http://", "an attacker on the way can read and change messages, and answer for the target", "use https://")
	}
	address, err := netip.ParseAddr(host)
	if config.IsLoopback(host) && err != nil {
		address, err = netip.MustParseAddr("127.0.0.1"), nil
	}
	address = address.Unmap().WithZone("") // in the form that the sink compares
	switch {
	case err == nil && !isPublic(address) && !slices.ContainsFunc(s.AllowPrivate, func(p netip.Prefix) bool { return p.Contains(address) }):
		l.Add(doctor.Broken, config.NoRisk, path, host+" is a private address", "the sink refuses to connect there, because messages must not reach internal services", "write allow_private: ["+netip.PrefixFrom(address, address.BitLen()).String()+"]")
	case err != nil && len(s.AllowPrivate) == 0 && (!strings.Contains(host, ".") || slices.ContainsFunc([]string{".internal", ".local", ".lan", ".home.arpa", ".svc"}, func(end string) bool { return strings.HasSuffix(host, end) })):
		l.Notice(path, host+" is the name of an internal service", "if it has a private address, the sink refuses to connect there", "set allow_private to the network, such as [10.0.0.0/8]")
	}
}

// isPublic reports whether an address is public, so that any target may have it.
func isPublic(address netip.Addr) bool {
	address = address.Unmap()
	shared := netip.MustParsePrefix("100.64.0.0/10")
	return address.IsGlobalUnicast() && !address.IsPrivate() && !shared.Contains(address)
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) {
	err := s.reach(ctx)
	x.Fail("sink", err)
	if err == nil {
		x.Note(doctor.Fine, "sink.webhook.url", "the target accepts connections", "", "")
	}
}

// reach connects to a target and sends nothing.
func (s *Sink) reach(ctx context.Context) error {
	u, err := url.Parse(s.URL.Reveal())
	if err != nil {
		return fmt.Errorf("the address cannot be read: %w", semel.ErrInvalidRequest)
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	ctx, cancel := context.WithTimeout(ctx, min(s.Timeout, 10*time.Second))
	defer cancel()
	address := net.JoinHostPort(u.Hostname(), port)
	var conn io.Closer
	if u.Scheme == "https" {
		c, tlsErr := s.TLS.Config()
		if tlsErr != nil {
			return tlsErr
		}
		conn, err = (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	return conn.Close()
}
