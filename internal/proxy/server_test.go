package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/memstore"
)

// stalled is a store that completes no key before its gate opens.
type stalled struct {
	semel.Store
	once     sync.Once
	complete chan struct{} // closed by the first call
	gate     chan struct{}
}

func (s *stalled) Unwrap() semel.Store { return s.Store }

func (s *stalled) Complete(ctx context.Context, reqs []semel.CompleteRequest, errs []error) error {
	s.once.Do(func() { close(s.complete) })
	<-s.gate
	return s.Store.Complete(ctx, reqs, errs)
}

// A drain that ends early counts each request with a key once. The service may still work on it,
// or its answer may not be recorded, with or without its client having the answer.
func TestADrainCountsEachRequestOnce(t *testing.T) {
	t.Parallel()
	for name, answered := range map[string]bool{"answered": true, "not answered": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reached, gate := make(chan struct{}), make(chan struct{})
			service := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/gate" {
					reached <- struct{}{}
					<-gate
				}
			}))
			t.Cleanup(service.Close)
			memory, err := memstore.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			store := &stalled{Store: memory, complete: make(chan struct{}), gate: gate}
			conf := &config.Proxy{Listen: "127.0.0.1:0", Caller: config.Caller{Kind: "global"}, HideState: true}
			conf.Path, conf.Upstream, conf.Lease = "/", service.URL, time.Minute
			server, err := Listen(&config.File{Proxy: conf, Shutdown: time.Millisecond}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if err := server.Open(store, nil); err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(t.Context())
			defer end()
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(ctx) }()
			ask := func(path, key string) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+server.listener.Addr().String()+path, strings.NewReader("body"))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Idempotency-Key", key)
				if answer, err := http.DefaultClient.Do(r); err == nil { // otherwise the drain ended first
					answer.Body.Close()
				}
			}
			var clients sync.WaitGroup
			client := clients.Go
			if answered {
				client = func(ask func()) { ask() }
			}
			client(func() { ask("/", "recording") }) // its client has the answer after a second
			<-store.complete
			clients.Go(func() { ask("/gate", "working") })
			<-reached
			end()
			if err := <-ended; err == nil || !strings.Contains(err.Error(), "proxy: 2 requests with a key") {
				t.Errorf("the drain ended with %v, want 2 requests", err)
			}
			close(gate)
			clients.Wait()
			server.recording.Wait()
		})
	}
}
