package httpstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/serve"
	"github.com/semel-dev/semel/store/httpstore"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/storetest"
)

// served is a store with the server that has its records.
type served struct {
	*httpstore.Store
	end func() error
}

// Close ends the store, and then its server.
func (s *served) Close() error {
	return errors.Join(s.Store.Close(), s.end())
}

// start serves a store, and returns a store over it. between makes the address that the
// client uses of that of the server.
func start(below semel.Store, between func(address string) (string, func())) (semel.Store, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := serve.New(serve.Options{
		Listener: listener, Log: slog.New(slog.DiscardHandler), KeepOrigin: true, Drain: time.Millisecond,
		MaxID: semel.MaxKeyBytes, MaxBody: 64 << 20, MaxResult: 64 << 20, MaxMemory: 1 << 30,
	})
	if err := server.Open(below, semel.ObserverFunc(func(semel.Event) {})); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ctx) })
	address, stop := between("http://" + listener.Addr().String())
	end := sync.OnceValue(func() error {
		stop()
		cancel()
		serving.Wait()
		if c, ok := below.(io.Closer); ok {
			return c.Close()
		}
		return nil
	})
	store, err := httpstore.Open(context.Background(), address, &httpstore.Options{Retry: time.Minute})
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &served{store, end}, nil
}

func directly(address string) (string, func()) { return address, func() {} }

// embedded returns a harness for an embedded store behind a server.
func embedded(durable bool, between func(address string) (string, func())) storetest.Harness {
	return storetest.Harness{New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
		dir := tb.TempDir()
		return func() (semel.Store, error) {
			below, err := logstore.Open(dir, &logstore.Options{Clock: now, DurableClaims: durable, KeepIDs: durable})
			if err != nil {
				return nil, err
			}
			return start(below, between)
		}
	}}
}

// The contract of a store holds over HTTP as it does for the store of the server.
func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, embedded(true, directly))
}

func TestStoreOverMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Harness{New: func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
		return func() (semel.Store, error) {
			below, err := memstore.New(&memstore.Options{Clock: now})
			if err != nil {
				return nil, err
			}
			return start(below, directly)
		}
	}})
}

// The contract also holds if answers are lost, before the server has the request and after
// it has made the change: the store sends requests again, and the server recognises them.
func TestStoreBehindAProxyThatLosesAnswers(t *testing.T) {
	t.Parallel()
	l := &lossy{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	storetest.Run(t, embedded(true, l.between))
	if l.before.Load() == 0 || l.after.Load() == 0 {
		t.Errorf("%d requests were lost, and %d answers: the proxy does not do its work", l.before.Load(), l.after.Load())
	}
}

// lossy is a proxy that loses requests and answers.
type lossy struct {
	client        *http.Client
	before, after atomic.Int64
}

func (l *lossy) between(address string) (string, func()) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.pass(w, r, address) }))
	return server.URL, func() {
		server.CloseClientConnections()
		server.Close()
	}
}

// pass passes a request on, or closes the connection of its client before or after that.
func (l *lossy) pass(w http.ResponseWriter, r *http.Request, address string) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	fate := rand.IntN(10)
	if fate == 0 {
		l.before.Add(1)
		drop(w)
		return
	}
	request, err := http.NewRequestWithContext(r.Context(), r.Method, address+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		drop(w)
		return
	}
	for _, name := range []string{"Content-Type", "Semel-Request"} {
		request.Header.Set(name, r.Header.Get(name))
	}
	response, err := l.client.Do(request)
	if err != nil {
		drop(w)
		return
	}
	defer func() { _ = response.Body.Close() }() // it was read
	answer, err := io.ReadAll(response.Body)
	if err != nil || fate == 1 {
		l.after.Add(1)
		drop(w)
		return
	}
	w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(answer) // the client may have left
}

// drop closes the connection of a request without an answer.
func drop(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}
