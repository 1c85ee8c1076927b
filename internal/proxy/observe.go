package proxy

import (
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the requests. The decisions about keys are those of the
// guards.
type metrics struct {
	*prometheus.Registry // has all of them
	requests             *prometheus.CounterVec
	replayed             *prometheus.CounterVec
	// unprotected counts requests that a route with fail_open passed on.
	unprotected *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
	open        atomic.Int64 // requests in progress
}

func newMetrics() *metrics {
	m := &metrics{
		Registry:    prometheus.NewRegistry(),
		requests:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dedup_proxy_requests_total", Help: "Requests by route and status of the answer."}, []string{"route", "status"}),
		replayed:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dedup_proxy_replayed_total", Help: "Requests that got a kept answer."}, []string{"route"}),
		unprotected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dedup_proxy_unprotected_total", Help: "Requests with a key that were passed on without protection, because the store did not answer and fail_open is set."}, []string{"route"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dedup_proxy_request_duration_seconds", Help: "Time from the header of a request to the end of its answer.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"route"}),
	}
	progress := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dedup_proxy_in_progress", Help: "Requests in progress."}, func() float64 { return float64(m.open.Load()) })
	m.MustRegister(m.requests, m.replayed, m.unprotected, m.seconds, progress) // their names differ
	return m
}

// observed is the writer of a request that is measured. http.ResponseController reaches
// the writer below it, for all that it lacks.
type observed struct {
	http.ResponseWriter
	server *Server
	route  *route
	r      *http.Request
	began  time.Time
	status int
	bytes  int64
}

func (s *Server) observe(w http.ResponseWriter, r *http.Request, route *route) *observed {
	s.metrics.open.Add(1)
	return &observed{ResponseWriter: w, server: s, route: route, r: r, began: time.Now()}
}

// Unwrap returns the writer below, for http.ResponseController.
func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (o *observed) WriteHeader(status int) {
	if o.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		o.status = status
	}
	o.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (o *observed) Write(data []byte) (int, error) {
	if o.status == 0 {
		o.status = http.StatusOK
	}
	n, err := o.ResponseWriter.Write(data)
	o.bytes += int64(n)
	return n, err
}

// end counts and logs the request. A status of 0 means that the answer was cut off
// before its header.
func (o *observed) end() {
	m, took := o.server.metrics, time.Since(o.began)
	m.open.Add(-1)
	unprotected := o.route.FailOpen && o.Header().Get("Idempotency-Status") == "unprotected"
	// The service may have a marker of its own in answers to requests without a key.
	replayed := !unprotected && o.route.takes(o.r) && o.Header().Get(o.route.profile.Marker) != ""
	m.requests.WithLabelValues(o.route.Name, strconv.Itoa(o.status)).Inc()
	m.seconds.WithLabelValues(o.route.Name).Observe(took.Seconds())
	if replayed {
		m.replayed.WithLabelValues(o.route.Name).Inc()
	}
	if unprotected {
		m.unprotected.WithLabelValues(o.route.Name).Inc()
	}
	if !o.server.conf.AccessLog {
		return
	}
	path := o.r.URL.EscapedPath()
	if o.route.hasKeys {
		path = o.route.Path
	}
	attrs := []any{
		slog.String("method", o.r.Method), slog.String("path", path), slog.String("route", o.route.Name), slog.Int("status", o.status),
		slog.Int64("bytes", o.bytes), slog.Float64("ms", float64(took.Microseconds())/1000), slog.String("remote", o.r.RemoteAddr), slog.String("protocol", o.r.Proto),
	}
	if replayed {
		attrs = append(attrs, slog.Bool("replayed", true))
	}
	o.server.log.Info("request", attrs...)
}
