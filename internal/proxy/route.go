package proxy

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/config"
)

// table finds the route of a request.
type table struct {
	store  semel.Store
	routes []*route // the longest path first
}

// route is a route with the handler for its requests.
type route struct {
	*config.Route
	profile     httpidem.Profile
	bodyTimeout time.Duration
	hasKeys     bool // its paths have keys of clients, which are not logged
	handler     http.Handler
}

// newTable returns the routes of the server for a store.
func (s *Server) newTable(store semel.Store, observer semel.Observer) (*table, error) {
	scope, err := callerOf(s.conf)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	b := &builder{server: s, store: store, scope: logUnchecked(scope, s.log), observer: observer, guards: map[policy]*semel.Guard{}, services: map[service]http.Handler{}}
	t := &table{store: store}
	rest := s.conf.Route
	rest.Name = config.DefaultRoute
	for _, r := range append(slices.Clone(s.conf.Routes), &rest) {
		made, err := b.route(r)
		if err != nil {
			return nil, fmt.Errorf("proxy: route %s: %w", r.Name, err)
		}
		t.routes = append(t.routes, made)
	}
	if b.state != nil {
		mux := http.NewServeMux() // it finds the key in the path
		mux.Handle(httpidem.StatePattern, b.state)
		path := strings.TrimSuffix(httpidem.StatePattern, "{key}")
		t.routes = append(t.routes, &route{Route: &config.Route{Name: "key-state", Path: path}, hasKeys: true, handler: mux})
	}
	slices.SortStableFunc(t.routes, func(a, b *route) int { return len(b.Path) - len(a.Path) })
	return t, nil
}

// match returns the route of a request. A service may take different spellings of a path
// for one. If the spelling leads to another route than the plain path, the request belongs
// to the route that requires a key, and to that of the plain path otherwise.
func (t *table) match(r *http.Request) *route {
	found := t.find(r.Method, plain(r.URL.Path))
	literal := t.find(r.Method, r.URL.Path)
	if plain(literal.Path) != literal.Path || literal.requires(r.Method) && !found.requires(r.Method) {
		return literal
	}
	return found
}

// plain returns a path as services understand its other spellings: without parameters,
// empty parts and dots, and with slashes. The path was decoded before.
func plain(p string) string {
	parts := strings.Split(strings.ReplaceAll(p, `\`, "/"), "/")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, ";")
	}
	clean := path.Clean("/" + strings.Join(parts, "/"))
	if parts[len(parts)-1] == "" && clean != "/" {
		clean += "/"
	}
	return clean
}

// requires reports whether requests with a method need a key.
func (r *route) requires(method string) bool {
	return r.profile.Required && slices.Contains(r.profile.Methods, method)
}

// find returns the route with the longest path that a path begins with, and of equal paths
// that with the method.
func (t *table) find(method, path string) *route {
	var found *route
	for _, next := range t.routes {
		switch {
		case found != nil && next.Path != found.Path:
			return found
		case !within(path, next.Path):
			continue
		case slices.Contains(next.profile.Methods, method):
			return next
		case found == nil:
			found = next
		}
	}
	return found // not nil: the last route has the path /
}

// within reports whether a path begins with the path of a route.
func within(path, route string) bool {
	rest, ok := strings.CutPrefix(path, route)
	return ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(route, "/")) || route == "/"
}

// takes reports whether a request has a key that the route takes, or may have one in its
// body.
func (r *route) takes(request *http.Request) bool {
	has := func(name string) bool { return len(request.Header.Values(name)) > 0 }
	return slices.Contains(r.profile.Methods, request.Method) && (r.profile.KeyPointer != "" || slices.ContainsFunc(r.profile.Headers, has))
}

// listens reports whether a request has no key, and its answer is a stream of notifications
// that lasts until its client leaves. Clients of MCP have sent the method as a header since
// such streams exist.
func (r *route) listens(request *http.Request) bool {
	return r.profile.MCP && request.Header.Get("Mcp-Method") == "subscriptions/listen"
}

// serve passes a request to the handler of the route. The body of a request with a key,
// which is read into memory, must come in time.
func (r *route) serve(w http.ResponseWriter, request *http.Request) {
	if r.takes(request) && request.Body != nil && request.Body != http.NoBody {
		control := http.NewResponseController(w)
		if control.SetReadDeadline(time.Now().Add(r.bodyTimeout)) == nil {
			request.Body = &timed{request.Body, control}
		}
	}
	r.handler.ServeHTTP(w, request)
}

// timed is a body whose connection has a deadline until the body is whole. Later the
// deadline would end a request that only waits.
type timed struct {
	io.ReadCloser
	control *http.ResponseController
}

// Read implements io.Reader.
func (t *timed) Read(into []byte) (int, error) {
	n, err := t.ReadCloser.Read(into)
	if err == io.EOF {
		_ = t.control.SetReadDeadline(time.Time{}) // it worked before; a connection that is gone needs none
	}
	return n, err
}

// builder makes the handlers of routes. Routes with the same policy share a guard, and
// those with the same service its connections.
type builder struct {
	server   *Server
	store    semel.Store
	observer semel.Observer
	scope    func(*http.Request) (string, error)
	guards   map[policy]*semel.Guard
	services map[service]http.Handler
	state    http.Handler // of keys; nil if it is hidden
}

// policy is what a guard is made of.
type policy struct {
	lease, window  time.Duration
	onLeaseExpired semel.ExpiryPolicy
}

// service is what a proxy to a service is made of.
type service struct {
	upstream string
	tls      config.TLS
	timeout  time.Duration
}

func (b *builder) route(r *config.Route) (*route, error) {
	upstream, err := b.service(r)
	if err != nil {
		return nil, err
	}
	guard, err := b.guard(r)
	if err != nil {
		return nil, err
	}
	conf := b.server.conf
	made := &route{Route: r, profile: r.Rules(), bodyTimeout: cmp.Or(conf.BodyTimeout, 30*time.Second)}
	opts := conf.Options(r)
	opts.Scope, opts.Go = b.scope, b.server.record
	if opts.Encryption, err = conf.Encryption(); err != nil {
		return nil, fmt.Errorf("encryption_key: %w: %w", err, semel.ErrInvalidRequest)
	}
	made.handler, err = httpidem.New(guard, upstream, opts)
	if err != nil || conf.HideState || r.Name != config.DefaultRoute {
		return made, err
	}
	b.state, err = httpidem.NewState(guard, opts)
	return made, err
}

// service returns the handler that passes requests on to the service of a route.
func (b *builder) service(r *config.Route) (http.Handler, error) {
	of := service{upstream: r.Upstream, timeout: r.UpstreamTimeout}
	if r.UpstreamTLS != nil {
		of.tls = *r.UpstreamTLS
	}
	if made, ok := b.services[of]; ok {
		return made, nil
	}
	target, err := url.Parse(r.Upstream)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, semel.ErrInvalidRequest)
	}
	secure, err := r.UpstreamTLS.Config()
	if err != nil {
		return nil, err
	}
	made, err := httpidem.NewProxy(&httpidem.ProxyOptions{Target: target, Timeout: r.UpstreamTimeout, TLS: secure, Log: b.server.log})
	b.services[of] = made
	return made, err
}

// guard returns the guard with the policy of a route.
func (b *builder) guard(r *config.Route) (*semel.Guard, error) {
	of := policy{lease: r.Lease, window: r.Window, onLeaseExpired: semel.ExpiryHold}
	if r.OnLeaseExpired == "retry" {
		of.onLeaseExpired = semel.ExpiryRetry
	}
	if made, ok := b.guards[of]; ok {
		return made, nil
	}
	made, err := semel.NewGuard(b.store, &semel.GuardOptions{Lease: of.lease, Window: of.window, OnLeaseExpired: of.onLeaseExpired, Observer: b.observer})
	b.guards[of] = made
	return made, err
}
