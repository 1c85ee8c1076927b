package httpstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/serve"
	"github.com/semel-dev/semel/store/httpstore"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/sampletest"
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
	for below, h := range sampletest.Sampled(map[string]storetest.Harness{
		"embedded": embedded(true, directly),
		"memory": {New: func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
			return func() (semel.Store, error) {
				below, err := memstore.New(&memstore.Options{Clock: now})
				if err != nil {
					return nil, err
				}
				return start(below, directly)
			}
		}},
	}, 1) {
		t.Run("over "+below, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, h)
		})
	}
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

// trip sends requests to a server without a network.
type trip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// over opens a store over a server for the records of below. through may pass each request
// on with pass, or not.
func over(t *testing.T, below semel.Store, opts httpstore.Options, through func(r *http.Request, pass trip) (*http.Response, error)) *httpstore.Store {
	t.Helper()
	server := serve.New(serve.Options{Log: slog.New(slog.DiscardHandler)})
	if err := server.Open(below, semel.ObserverFunc(func(semel.Event) {})); err != nil {
		t.Fatal(err)
	}
	pass := trip(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		r.RequestURI = r.URL.RequestURI()
		server.ServeHTTP(w, r)
		return w.Result(), nil
	})
	opts.Client = &http.Client{Timeout: 30 * time.Second, Transport: trip(func(r *http.Request) (*http.Response, error) { return through(r, pass) })}
	store, err := httpstore.Open(t.Context(), "http://semel", &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func claimOne(t *testing.T, store semel.Store, key semel.Key, nonce uint64) semel.ClaimAnswer {
	t.Helper()
	answers := make([]semel.ClaimAnswer, 1)
	err := store.Claim(t.Context(), []semel.ClaimRequest{{Key: key, Owner: semel.Owner{Nonce: nonce}, Lease: time.Hour, Window: time.Hour}}, answers)
	if err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	return answers[0]
}

// A request that gets no answer at all is sent again, however long it took to know that.
func TestASilentLossIsRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		below, err := memstore.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		lost := 0
		store := over(t, below, httpstore.Options{}, func(r *http.Request, pass trip) (*http.Response, error) {
			if r.URL.Path == "/v1/batch" && lost == 0 {
				lost++
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return pass(r)
		})
		if a := claimOne(t, store, semel.Key{Scope: "p", ID: "a"}, 1); a.Decision != semel.Fresh || lost != 1 {
			t.Errorf("%+v, %d lost", a, lost)
		}
	})
}

// A Remove that is sent again, to a server that does not remember the first one, leaves the
// record of a later holder.
func TestARepeatedRemoveLeavesALaterHolder(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{false, true} {
		t.Run(fmt.Sprint(done), func(t *testing.T) {
			t.Parallel()
			below, err := memstore.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			key := semel.Key{Scope: "p", ID: "a"}
			lost := 0
			store := over(t, below, httpstore.Options{}, func(r *http.Request, pass trip) (*http.Response, error) {
				r.Header.Del("Semel-Request")
				if r.URL.Path != "/v1/remove" || lost > 0 {
					return pass(r)
				}
				lost++
				response, err := pass(r)
				if err != nil || response.StatusCode != http.StatusOK {
					t.Error(response, err)
				}
				claimOne(t, below, key, 2)
				return nil, errors.New("the answer was lost")
			})
			held := claimOne(t, store, key, 1)
			errs := make([]error, 1)
			if done {
				if err := store.Complete(t.Context(), []semel.CompleteRequest{{Key: key, Token: held.Claim.Token, Window: time.Hour}}, errs); err != nil || errs[0] != nil {
					t.Fatal(err, errs[0])
				}
			}
			if removed, err := store.Remove(t.Context(), key); err != nil || !removed || lost != 1 {
				t.Errorf("%t %v, %d lost", removed, err, lost)
			}
			if a := claimOne(t, below, key, 3); a.Decision != semel.InFlight {
				t.Errorf("the later claim was removed: %+v", a)
			}
		})
	}
}
