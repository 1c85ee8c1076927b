package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/listen"
)

// Server is the proxy of a configuration. Its methods are safe for concurrent use.
type Server struct {
	conf     *config.Proxy
	drain    time.Duration // how long the end may take
	log      *slog.Logger
	listener net.Listener
	server   *http.Server
	metrics  *metrics
	table    atomic.Pointer[table] // nil until Open
	draining atomic.Bool

	// A request with a key is running until its client has its answer. If the store takes
	// long to record the answer, the request is then unrecorded.
	running, unrecorded atomic.Int64
	recording           sync.WaitGroup
}

// defaultDrain is how long the end may take without a configuration.
const defaultDrain = 25 * time.Second

// Listen listens at the address of a proxy. The caller must call Serve. A wrong
// configuration is an error that wraps semel.ErrInvalidRequest.
func Listen(f *config.File, log *slog.Logger) (*Server, error) {
	p := f.Proxy
	s := &Server{conf: p, drain: cmp.Or(f.Shutdown, defaultDrain), log: log, metrics: newMetrics()}
	secure, err := listen.Certificates(p.TLS, log)
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	if s.listener, err = net.Listen("tcp", p.Listen); errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("proxy: %w: write another address with --listen, or in proxy.listen", err)
	} else if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(secure != nil)
	protocols.SetUnencryptedHTTP2(p.H2C)
	s.server = &http.Server{
		Handler: s, TLSConfig: secure, Protocols: protocols,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve serves until ctx ends, and then drains: it takes no new connection, and requests
// in progress end. It waits for them as long as the configuration says. Before Open was
// called it answers 503. An error says that requests with a key were still in progress,
// or that it cannot serve.
func (s *Server) Serve(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() {
		if s.conf.TLS != nil {
			ended <- s.server.ServeTLS(s.listener, "", "")
		} else {
			ended <- s.server.Serve(s.listener)
		}
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("proxy: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	s.log.Info("draining", "in_progress", s.metrics.open.Load(), "for", s.drain.String())
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	if s.server.Shutdown(limited) != nil {
		_ = s.server.Close() // it ends the connections that are left
	}
	<-ended
	s.recorded(limited)
	if left := s.running.Load() + s.unrecorded.Load(); left > 0 {
		return fmt.Errorf("proxy: %d requests with a key were in progress, or not yet recorded, when the drain ended after %s: their outcome is not known, and semel keys ls --state claimed lists them", left, s.drain)
	}
	s.log.Info("ended")
	return nil
}

// record waits in the background until an answer is recorded that its client has.
func (s *Server) record(wait func()) {
	s.unrecorded.Add(1)
	s.recording.Go(func() {
		defer s.unrecorded.Add(-1)
		wait()
	})
}

// recorded waits until all answers are recorded, or ctx ends.
func (s *Server) recorded(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.recording.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Open lets the server use a store. The observer receives the decisions of the guards.
// A store or option that does not fit is an error that wraps semel.ErrInvalidRequest.
func (s *Server) Open(store semel.Store, observer semel.Observer) error {
	table, err := s.newTable(store, observer)
	if err != nil {
		return err
	}
	s.table.Store(table)
	scheme := "http://"
	if s.conf.TLS != nil {
		scheme = "https://"
	}
	s.log.Info("proxy", "address", scheme+s.listener.Addr().String(), "upstream", s.conf.Upstream, "store", s.conf.Store.Name, "scope", s.conf.Caller.String())
	return nil
}

// Ready returns nil if the server takes requests and its store answers.
func (s *Server) Ready(ctx context.Context) error {
	table := s.table.Load()
	switch {
	case s.draining.Load():
		return errors.New("draining")
	case table == nil:
		return errors.New("opening the store")
	}
	if ready, ok := semel.As[doctor.Readier](table.store); ok {
		return ready.Ready(ctx)
	}
	return nil
}

// Metrics returns the metrics of the server.
func (s *Server) Metrics() prometheus.Collector { return s.metrics }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	table := s.table.Load()
	if table == nil {
		httpidem.Unavailable(w)
		return
	}
	if s.conf.Caller.Kind == "forward" {
		disown(r.Header, s.conf.Caller.Name)
	}
	route := table.match(r)
	o := s.observe(w, r, route)
	defer o.end()
	if route.takes(r) && !route.listens(r) {
		s.running.Add(1)
		defer s.running.Add(-1)
	}
	route.serve(o, r)
}
