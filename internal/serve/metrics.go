package serve

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of the requests. The decisions about keys are those of the store.
type metrics struct {
	*prometheus.Registry // has all of them
	requests             *prometheus.CounterVec
	seconds              *prometheus.HistogramVec
	denied               prometheus.Counter
	open                 atomic.Int64 // requests in progress
	connections          atomic.Int64
}

func newMetrics() *metrics {
	m := &metrics{
		Registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dedup_serve_requests_total", Help: "Requests by verb and status of the answer."}, []string{"verb", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dedup_serve_request_duration_seconds", Help: "Time from the header of a request to the end of its answer.", Buckets: prometheus.ExponentialBuckets(0.0005, 4, 10),
		}, []string{"verb"}),
		denied: prometheus.NewCounter(prometheus.CounterOpts{Name: "dedup_serve_denied_total", Help: "Requests without valid credentials."}),
	}
	progress := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dedup_serve_in_progress", Help: "Requests in progress."}, func() float64 { return float64(m.open.Load()) })
	connections := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "dedup_serve_connections", Help: "Open connections."}, func() float64 { return float64(m.connections.Load()) })
	m.MustRegister(m.requests, m.seconds, m.denied, progress, connections) // their names differ
	return m
}

// measured is a writer that remembers the status.
type measured struct {
	http.ResponseWriter
	status int
}

// Unwrap returns the writer below, for http.ResponseController.
func (m *measured) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (m *measured) WriteHeader(status int) {
	m.status = status
	m.ResponseWriter.WriteHeader(status)
}

// end counts a request.
func (m *metrics) end(verb string, status int, took time.Duration) {
	m.requests.WithLabelValues(verb, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(verb).Observe(took.Seconds())
}
