// Package serve is the HTTP server of semel serve: the contract of a store over HTTP. It
// decides nothing itself, so it promises what its store does.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/storeapi"
)

// MaxWait is how long a claim may wait at most.
const MaxWait = 30 * time.Second

// Options are the options of a server. Log and Listener are required. A number of 0 means
// the default.
type Options struct {
	// Listener is what it listens on, and TLS secures it. Defaults to no TLS.
	Listener net.Listener
	TLS      *tls.Config
	Log      *slog.Logger
	// Callers have credentials. Defaults to none: then every request is an operator's.
	Callers []*Caller
	// CertificateName returns the name in the client certificate of a request. Defaults to
	// none.
	CertificateName func(*http.Request) (string, error)
	// Host reports whether the Host of a request is one of the server. It is asked only of
	// requests without credentials. Defaults to all.
	Host func(*http.Request) bool
	// Lease and Window are for claims that do not say. Defaults to those of a guard.
	Lease, Window time.Duration
	// Hold makes a key unknown when its holder is lost, for claims that do not say.
	Hold bool
	// KeepOrigin tells the store where claims come from.
	KeepOrigin bool
	// MaxBody, MaxBatch, MaxResult and MaxID limit a body in bytes, the items of a request,
	// and a result and an id in bytes. Defaults to 4 MiB, 1000, 1 MiB and 1 KiB.
	MaxBody, MaxResult int64
	MaxBatch, MaxID    int
	// MaxMemory limits the bytes of all bodies and answers in progress. Defaults to 256 MiB.
	MaxMemory int64
	// MaxConnections limits the connections. Defaults to 10000.
	MaxConnections int
	// MaxWaiters limits the claims that wait. Defaults to 1024.
	MaxWaiters int
	// MaxKeysPerCaller limits the new keys of a caller in an hour. Defaults to no limit.
	MaxKeysPerCaller int
	// BodyTimeout is how long a body may take, and also an answer. Defaults to 30 s.
	BodyTimeout time.Duration
	// Drain is how long the end may take. Defaults to 25 s.
	Drain time.Duration
	// Redact hides secrets in the texts of errors. Defaults to nothing.
	Redact func(string) string
}

// Server is the HTTP server. Its methods are safe for concurrent use.
type Server struct {
	opts     Options
	server   *http.Server
	metrics  *metrics
	access   access
	serving  atomic.Pointer[served] // nil until Open
	memory   memory
	quota    quota
	waiting  atomic.Int64
	draining chan struct{} // closed when the server drains
	claims   claims
	replies  replies
}

// served is what the server uses after Open.
type served struct {
	store     semel.Store
	inspector semel.Inspector // nil if the store is not one
	observer  semel.Observer
}

// New returns a server. The caller must call Serve.
func New(opts Options) *Server {
	def := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	def64 := func(n *int64, value int64) {
		if *n == 0 {
			*n = value
		}
	}
	defTime := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	def64(&opts.MaxBody, 4<<20)
	def64(&opts.MaxResult, 1<<20)
	def64(&opts.MaxMemory, 256<<20)
	def(&opts.MaxBatch, 1000)
	def(&opts.MaxID, 1<<10)
	def(&opts.MaxConnections, 10_000)
	def(&opts.MaxWaiters, 1024)
	defTime(&opts.Lease, semel.DefaultLease)
	defTime(&opts.Window, semel.DefaultWindow)
	defTime(&opts.BodyTimeout, 30*time.Second)
	defTime(&opts.Drain, 25*time.Second)
	if opts.Redact == nil {
		opts.Redact = func(text string) string { return text }
	}
	if opts.CertificateName == nil {
		opts.CertificateName = func(*http.Request) (string, error) { return "", errors.New("no certificate") }
	}
	if opts.Host == nil {
		opts.Host = func(*http.Request) bool { return true }
	}
	s := &Server{opts: opts, metrics: newMetrics(), draining: make(chan struct{})}
	s.memory.most, s.quota.most = opts.MaxMemory, opts.MaxKeysPerCaller
	s.access.certificateName, s.access.denied = opts.CertificateName, s.metrics.denied
	s.SetCallers(opts.Callers)
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(opts.TLS != nil)
	protocols.SetUnencryptedHTTP2(opts.TLS == nil)
	s.server = &http.Server{
		Handler: s, TLSConfig: opts.TLS, Protocols: protocols, MaxHeaderBytes: 16 << 10,
		ReadHeaderTimeout: 10 * time.Second, WriteTimeout: opts.BodyTimeout + MaxWait, IdleTimeout: 2 * time.Minute,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: 250, SendPingTimeout: 30 * time.Second, WriteByteTimeout: opts.BodyTimeout},
		ErrorLog: slog.NewLogLogger(opts.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// SetCallers replaces the callers. Requests in progress keep theirs.
func (s *Server) SetCallers(list []*Caller) { s.access.callers.Store(newCallers(list)) }

// Serve serves until ctx ends, and then drains. It then refuses new claims. Completions,
// releases and extensions are served for as long as claims that it granted may live, or
// the options say. Before Open was called it answers 503.
func (s *Server) Serve(ctx context.Context) error {
	listener := &limited{Listener: s.opts.Listener, most: int64(s.opts.MaxConnections), open: &s.metrics.connections}
	ended := make(chan error, 1)
	go func() {
		if s.opts.TLS != nil {
			ended <- s.server.ServeTLS(listener, "", "")
		} else {
			ended <- s.server.Serve(listener)
		}
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	close(s.draining)
	s.opts.Log.Info("draining", "in_progress", s.metrics.open.Load(), "claims", s.claims.live(time.Now()), "for", s.opts.Drain.String())
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Drain)
	defer cancel()
	s.claims.wait(limited)
	if s.server.Shutdown(limited) != nil {
		_ = s.server.Close() // it ends the connections that are left
	}
	<-ended
	if left := s.claims.live(time.Now()); left > 0 {
		s.opts.Log.Warn("claims are not completed: their holders can complete them when the server runs again", "claims", left)
	}
	s.opts.Log.Info("ended")
	return nil
}

// Open lets the server use a store. The observer receives the decisions.
func (s *Server) Open(store semel.Store, observer semel.Observer) error {
	joined := semel.Join(store, 0)
	inspector, _ := semel.As[semel.Inspector](store)
	if most := store.Traits().MaxResult; most > 0 && s.opts.MaxResult > most {
		s.opts.MaxResult = most
	}
	s.serving.Store(&served{joined, inspector, observer})
	return nil
}

// Ready returns nil if the server takes claims and its store answers.
func (s *Server) Ready(ctx context.Context) error {
	serving := s.serving.Load()
	switch {
	case s.isDraining():
		return errors.New("draining")
	case serving == nil:
		return errors.New("opening the store")
	}
	if ready, ok := semel.As[doctor.Readier](serving.store); ok {
		return ready.Ready(ctx)
	}
	return nil
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Metrics returns the metrics of the server.
func (s *Server) Metrics() prometheus.Collector { return s.metrics }

// route is one path of the API.
type route struct {
	method  string
	roles   []Role // who may use it; nil for all
	repeats bool   // its answer is kept for its repetition
	handle  func(c *call) (any, *storeapi.Problem)
}

// call is one request.
type call struct {
	server *Server
	r      *http.Request
	w      http.ResponseWriter
	who    identity
	body   []byte // one JSON value, without space around it
	unique bool   // a claim without a claim_id was granted, so the answer is for this request alone
	*served
}

var (
	workers   = []Role{Worker, Operator}
	viewers   = []Role{Viewer, Operator}
	operators = []Role{Operator}
)

// routes are all paths. Everything with a key is POST, so that no id is in a URL or in the
// log of a server between.
var routes = map[string]route{
	"claim":        {http.MethodPost, workers, false, (*call).claim},
	"complete":     {http.MethodPost, workers, true, (*call).complete},
	"release":      {http.MethodPost, workers, true, (*call).release},
	"extend":       {http.MethodPost, workers, true, (*call).extend},
	"batch":        {http.MethodPost, workers, true, (*call).batch},
	"lookup":       {http.MethodPost, nil, false, (*call).lookup},
	"list":         {http.MethodPost, viewers, false, (*call).list},
	"resolve":      {http.MethodPost, operators, true, (*call).resolve},
	"remove":       {http.MethodPost, operators, true, (*call).remove},
	"limits":       {http.MethodGet, nil, false, (*call).limits},
	"whoami":       {http.MethodGet, nil, false, (*call).whoami},
	"openapi.json": {http.MethodGet, nil, false, nil},
}

// prefix begins every path. Changes below it only add.
const prefix = "/v1/"

// Values of headers that each answer has. Nobody changes them.
var noStore, noSniff = []string{"no-store"}, []string{"nosniff"}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.metrics.open.Add(1)
	defer s.metrics.open.Add(-1)
	name, _ := strings.CutPrefix(r.URL.Path, prefix)
	rt, known := routes[name]
	if !known || !strings.HasPrefix(r.URL.Path, prefix) {
		name = "other"
	}
	m, began := &measured{ResponseWriter: w, status: http.StatusOK}, time.Now()
	defer func() { s.metrics.end(name, m.status, time.Since(began)) }()
	h := m.Header()
	h["Cache-Control"], h["X-Content-Type-Options"] = noStore, noSniff
	if name == "other" {
		s.refuse(m, storeapi.Of(storeapi.NotFound, "The API is below /v1/: /v1/openapi.json describes it."))
		return
	}
	if p := s.serve(m, r, name, &rt); p != nil {
		s.refuse(m, p)
	}
}

// serve answers a request for a route, or returns its problem.
func (s *Server) serve(w *measured, r *http.Request, name string, rt *route) *storeapi.Problem {
	if r.Method != rt.method {
		w.Header().Set("Allow", rt.method)
		return storeapi.Of(storeapi.MethodNotAllowed, "Send "+rt.method+".")
	}
	if s.access.callers.Load() == nil && !s.opts.Host(r) {
		return storeapi.Of(storeapi.Misdirected, fmt.Sprintf("%.100q is not a host of this server, which needs no credentials: use 127.0.0.1 or localhost.", r.Host))
	}
	who, p := s.access.identify(r)
	if p != nil {
		return p
	}
	if !who.may(rt.roles) {
		return storeapi.Of(storeapi.Forbidden, fmt.Sprintf("The role %s may not use /v1/%s.", who.Role, name))
	}
	if rt.handle == nil {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(storeapi.OpenAPI) // the client may have left
		return nil
	}
	c := &call{server: s, r: r, w: w, who: who, served: s.serving.Load()}
	switch {
	case c.served == nil:
		return storeapi.Of(storeapi.StoreUnavailable, "The server opens its store. Nothing was changed.")
	case name == "claim" && s.isDraining():
		return drainingProblem()
	}
	if rt.method == http.MethodPost {
		taken, p := c.read()
		defer s.memory.give(taken)
		if p != nil {
			return p
		}
	}
	id := r.Header.Get(requestHeader)
	if id == "" || !rt.repeats {
		return s.reply(c, rt)
	}
	key := replyKey(who.Name, name, id, c.body)
	made, first := s.replies.begin(key)
	if !first {
		select {
		case <-made.done:
		case <-r.Context().Done():
			return nil // the client has left
		}
		if made.data == nil {
			return s.reply(c, rt)
		}
		s.send(w, http.StatusOK, "application/json", made.now())
		return nil
	}
	data, p := s.first(c, rt, key, made)
	if p != nil {
		return p
	}
	s.send(w, http.StatusOK, "application/json", data)
	return nil
}

// first makes the answer to the first request with an id. Its repetitions wait for the
// answer, and not until this client has read it.
func (s *Server) first(c *call, rt *route, key [16]byte, made *reply) (data []byte, _ *storeapi.Problem) {
	var kept []byte
	defer func() { s.replies.end(key, made, kept) }() // also after a panic
	answer, p := rt.handle(c)
	if p != nil {
		return nil, p
	}
	data = encode(answer)
	if !c.unique {
		kept = data
	}
	return data, nil
}

// reply makes the answer to a call and sends it.
func (s *Server) reply(c *call, rt *route) *storeapi.Problem {
	answer, p := rt.handle(c)
	if p != nil {
		return p
	}
	s.send(c.w, http.StatusOK, "application/json", encode(answer))
	return nil
}

// may reports whether the caller has one of the roles.
func (who identity) may(roles []Role) bool {
	for _, role := range roles {
		if who.Role == role {
			return true
		}
	}
	return roles == nil
}

func drainingProblem() *storeapi.Problem {
	return storeapi.Of(storeapi.Draining, "The server takes no new claims, because it ends. Nothing was changed.")
}

// read reads the body of a call. Other types than JSON are refused, because web pages of
// other origins can send them without asking.
func (c *call) read() (taken int64, _ *storeapi.Problem) {
	if !isJSON(c.r.Header.Get("Content-Type")) {
		return 0, storeapi.Of(storeapi.UnsupportedMedia, "Send Content-Type: application/json.")
	}
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return 0, storeapi.Of(storeapi.UnsupportedMedia, "Send the body without Content-Encoding.")
	}
	text, taken, err := c.server.memory.readBody(c.w, c.r, c.server.opts.MaxBody, c.server.opts.BodyTimeout)
	switch {
	case errors.Is(err, errTooLarge):
		return taken, storeapi.Of(storeapi.BodyTooLarge, fmt.Sprintf("This server takes bodies of at most %d bytes (serve.max_body). Nothing was changed.", c.server.opts.MaxBody))
	case errors.Is(err, errNoMemory):
		return taken, storeapi.Of(storeapi.Overloaded, "There is no memory for the body (serve.max_memory). Nothing was changed.")
	case err != nil:
		return taken, storeapi.Of(storeapi.Overloaded, fmt.Sprintf("The body was not there within %s, or it was cut off. Nothing was changed.", c.server.opts.BodyTimeout))
	}
	if c.body, err = body(text); err != nil {
		return taken, storeapi.Of(storeapi.InvalidRequest, err.Error())
	}
	return taken, nil
}

// isJSON reports whether a Content-Type is that of JSON.
func isJSON(kind string) bool {
	if kind == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(kind)
	return err == nil && media == "application/json"
}
