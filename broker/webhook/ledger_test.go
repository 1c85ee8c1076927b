package webhook_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/webhook"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestSinkPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{AtLeastOnce: true, NoHeaders: true, New: func(tb testing.TB) brokertest.SinkTarget {
		r := &receiver{tb: tb}
		r.listen(servicestest.FreeAddr(tb))
		tb.Cleanup(func() { r.server.Close() })
		open := func(address string) (pipeline.Sink, error) {
			return webhook.New(&webhook.Options{URL: "http://" + address, AllowPrivate: true, Timeout: 5 * time.Second})
		}
		return brokertest.SinkTarget{
			Sink:    func(context.Context) (pipeline.Sink, error) { return open(r.address) },
			Server:  r.address,
			SinkAt:  func(_ context.Context, address string) (pipeline.Sink, error) { return open(address) },
			Refused: []byte(refused),
			Effects: func(context.Context) ([]brokertest.Effect, error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.effects, nil
			},
			Restart: func(context.Context) error {
				err := r.server.Close() // connections are cut
				r.listen(r.address)
				return err
			},
		}
	}})
}

// receiver is a target that keeps received bodies in the order of its answers.
type receiver struct {
	tb      testing.TB
	address string
	server  *http.Server

	mu      sync.Mutex
	effects []brokertest.Effect
}

func (r *receiver) listen(address string) {
	r.tb.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		r.tb.Fatal(err)
	}
	r.address = listener.Addr().String()
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func(s *http.Server) {
		if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			r.tb.Errorf("serve: %v", err)
		}
	}(r.server)
}

// refused is the body that a receiver refuses.
const refused = `{"id":"refused"}`

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	if string(body) == refused {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.effects = append(r.effects, brokertest.Effect{Body: body})
}
