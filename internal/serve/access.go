package serve

import (
	"crypto/sha256"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/storeapi"
)

// Role is what a caller may do.
type Role string

// The roles. An operator may do everything.
const (
	Worker   Role = "worker"
	Viewer   Role = "viewer"
	Operator Role = "operator"
)

// Caller is a program with credentials.
type Caller struct {
	Name string
	// Tokens are the SHA-256 digests of its bearer tokens, and Certificate is its name in
	// a client certificate, as httpidem/caller.MTLS has it.
	Tokens      [][sha256.Size]byte
	Certificate string
	Role        Role
	// Scopes are the scopes of its keys. A pattern ends with *.
	Scopes []string
	// Expires is when its credentials end; zero means never.
	Expires time.Time
}

// identity is who sends a request.
type identity struct {
	*Caller
	auth string // none, token or certificate
}

// anyone is the caller of a server without credentials.
var anyone = &Caller{Role: Operator, Scopes: []string{"*"}}

// mayScope reports whether the caller may use a scope.
func (c *Caller) mayScope(scope string) bool {
	return slices.ContainsFunc(c.Scopes, func(pattern string) bool {
		prefix, open := strings.CutSuffix(pattern, "*")
		return scope == pattern || open && strings.HasPrefix(scope, prefix)
	})
}

// mayAll reports whether the caller may see records whose scope is not known.
func (c *Caller) mayAll() bool { return slices.Contains(c.Scopes, "*") }

// maySee reports whether the caller may use the scope of a record that was found by its
// digest.
func (c *Caller) maySee(r *semel.Record) bool {
	return c.mayAll() || r.Key.ID != "" && c.mayScope(r.Key.Scope)
}

// callers finds callers by their credentials.
type callers struct {
	byToken map[[sha256.Size]byte]*Caller
	byName  map[string]*Caller // in a certificate
}

// newCallers returns nil if there are no callers: then no request needs credentials.
func newCallers(list []*Caller) *callers {
	if len(list) == 0 {
		return nil
	}
	c := &callers{map[[sha256.Size]byte]*Caller{}, map[string]*Caller{}}
	for _, caller := range list {
		for _, digest := range caller.Tokens {
			c.byToken[digest] = caller
		}
		if caller.Certificate != "" {
			c.byName[caller.Certificate] = caller
		}
	}
	return c
}

// access says who sends requests.
type access struct {
	callers         atomic.Pointer[callers] // nil: no request needs credentials
	certificateName func(*http.Request) (string, error)
	denied          prometheus.Counter
	failures        failures
}

// identify says who sends a request. A token is found by its digest, so the time that this
// takes says nothing about a token that is nearly right.
func (a *access) identify(r *http.Request) (identity, *storeapi.Problem) {
	all := a.callers.Load()
	if all == nil {
		return identity{anyone, "none"}, nil
	}
	now := time.Now()
	denied := func(detail string) (identity, *storeapi.Problem) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			host = r.RemoteAddr
		}
		a.denied.Inc()
		if a.failures.add(host, now) {
			p := storeapi.Of(storeapi.RateLimited, "Wait a minute.")
			p.RetryAfterMS = time.Minute.Milliseconds()
			return identity{}, p
		}
		return identity{}, storeapi.Of(storeapi.Unauthenticated, detail)
	}
	headers := r.Header["Authorization"]
	if len(headers) == 0 {
		if name, err := a.certificateName(r); err == nil {
			if c := all.byName[name]; c != nil && !c.expired(now) {
				return identity{c, "certificate"}, nil
			}
		}
		return denied("Send Authorization: Bearer TOKEN.")
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if len(headers) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return denied("Send one header Authorization: Bearer TOKEN.")
	}
	c := all.byToken[sha256.Sum256([]byte(strings.TrimSpace(token)))]
	switch {
	case c == nil:
		return denied("The token is not known to this server.")
	case c.expired(now):
		return denied("The token has expired.")
	}
	return identity{c, "token"}, nil
}

func (c *Caller) expired(now time.Time) bool { return !c.Expires.IsZero() && !now.Before(c.Expires) }

// forbidden returns the problem of a caller that may not use a scope.
func forbidden(scope string) *storeapi.Problem {
	return storeapi.Of(storeapi.Forbidden, "The scope "+scope+" is not one of the caller's.")
}

// restrict refuses the operations whose scopes are not the caller's.
func restrict(who identity, list []*operation) {
	for _, o := range list {
		if scope := o.key().Scope; o.problem == nil && !who.mayScope(scope) {
			o.problem = forbidden(scope)
		}
	}
}
