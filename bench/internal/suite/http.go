package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/memstore"
)

// httpConns is how many connections a client uses, with one request at a time on each.
const httpConns = 64

// httpBody is the body of each request.
var httpBody = bytes.Repeat([]byte("x"), 1<<10)

// proxies lists the benchmarks of requests with an Idempotency-Key.
func proxies(e Env) []Benchmark {
	n := e.size(60_000, 2_000)
	plain := standard("net/http/httputil.ReverseProxy")
	prepare := func(ctx context.Context) error { return errors.Join(e.buildSemel(ctx), e.build("reverse")(ctx)) }
	work := fmt.Sprintf("%s POST requests of 1 KiB over %d connections; client and service are one process, the proxy another", count(n), httpConns)
	const keyed = ", each with a new key, on the embedded store with fsync: always"
	through := func(name string, start func(ctx context.Context, address, upstream string) (*exec.Cmd, error), withKeys bool) side {
		return func(ctx context.Context) (map[string]float64, error) {
			rate, late, err := e.through(ctx, start, func(at string) (float64, time.Duration, error) { return requests(ctx, at, n, n, withKeys) })
			values := map[string]float64{name: rate}
			if withKeys {
				values[name+"-p99"] = float64(late.Microseconds()) / 1000
			}
			return values, err
		}
	}
	return append([]Benchmark{
		{
			Name: "http-proxy-plain", Work: work + "; semel proxy without keys", peerVersion: plain, prepare: prepare,
			ours: through("http-proxy-plain", e.semelProxy, false), peer: through("http-proxy-plain", e.reverse, false),
			figures: []figure{{name: "http-proxy-plain", unit: "requests/s", target: 0.95}},
		},
		{
			Name: "http-proxy-keyed", Work: work + keyed + ". The peer looks at no keys", peerVersion: plain, prepare: prepare,
			ours: through("http-proxy-keyed", e.semelProxy, true), peer: through("http-proxy-keyed", e.reverse, true),
			figures: []figure{{name: "http-proxy-keyed", unit: "requests/s", target: 0.6}, {name: "http-proxy-keyed-p99", unit: "ms", lessIsBetter: true}},
		},
		e.proxyPostgres(n, work, prepare),
		{
			Name: "http-replay", Work: work + keyed + ". Ours: repetitions, which get the kept answers. Peer: the same proxy, where each request is executed",
			peerVersion: standard("semel proxy, executed requests"), prepare: prepare,
			ours:    func(ctx context.Context) (map[string]float64, error) { return e.replay(ctx, n, 1_000) },
			peer:    func(ctx context.Context) (map[string]float64, error) { return e.replay(ctx, n, n) },
			figures: []figure{{name: "http-replay", unit: "requests/s", target: 2}},
		},
		{
			Name:        "http-middleware",
			Work:        fmt.Sprintf("%s POST requests of 1 KiB with new keys to a handler in process, with a memory store, on one core. The peer is the handler alone", count(10*n)),
			peerVersion: standard("net/http, without keys"), procs: 1,
			ours:    func(context.Context) (map[string]float64, error) { return handled(10*n, true) },
			peer:    func(context.Context) (map[string]float64, error) { return handled(10*n, false) },
			figures: []figure{{name: "http-middleware", unit: "requests/s"}, {name: "http-middleware-bytes", unit: "B/request", lessIsBetter: true}},
		},
	}, idemlease(e, 10*n)...)
}

// semelProxy starts semel proxy with an embedded store.
func (e *Env) semelProxy(ctx context.Context, address, upstream string) (*exec.Cmd, error) {
	dir, err := e.fresh("http-keys")
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, e.work("bin", "semel"), "proxy", "--listen", address, "--upstream", upstream, "--store", dir,
		"--scope", "header:X-Api-Key", "--admin", "off", "--log-level", "warn"), nil
}

// reverse starts the plain proxy.
func (e *Env) reverse(ctx context.Context, address, upstream string) (*exec.Cmd, error) {
	return exec.CommandContext(ctx, e.work("bin", "reverse"), address, upstream), nil
}

// through starts a service and a proxy in front of it, and measures requests to the proxy.
func (e *Env) through(ctx context.Context, start func(ctx context.Context, address, upstream string) (*exec.Cmd, error), measure func(address string) (float64, time.Duration, error)) (rate float64, late time.Duration, err error) {
	return e.throughTo(ctx, createOrder, start, measure)
}

// throughTo is through with a service of this handler.
func (e *Env) throughTo(ctx context.Context, handler http.HandlerFunc, start func(ctx context.Context, address, upstream string) (*exec.Cmd, error), measure func(address string) (float64, time.Duration, error)) (rate float64, late time.Duration, err error) {
	service := httptest.NewServer(handler)
	defer service.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		return 0, 0, err
	}
	cmd, err := start(ctx, address, service.URL)
	if err != nil {
		return 0, 0, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	}()
	if err := serves(ctx, "http://"+address); err != nil {
		return 0, 0, err
	}
	return measure("http://" + address)
}

// serves waits until a proxy passes requests on. semel proxy listens before its store is open.
func serves(ctx context.Context, address string) error {
	return patiently(ctx, func() error {
		_, _, err := requests(ctx, address, 1, 1, false)
		return err
	})
}

// createOrder is the effect of a request.
func createOrder(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client sees a broken answer
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"order":1}`) // the client checks the answer
}

// replay measures n requests with so many different keys, after each key was executed once
// if there are fewer keys than requests.
func (e *Env) replay(ctx context.Context, n, keys int) (map[string]float64, error) {
	rate, _, err := e.through(ctx, e.semelProxy, func(at string) (float64, time.Duration, error) {
		if keys < n {
			if _, _, err := requests(ctx, at, keys, keys, true); err != nil {
				return 0, 0, err
			}
		}
		return requests(ctx, at, n, keys, true)
	})
	return map[string]float64{"http-replay": rate}, err
}

// requests sends n requests with so many different keys. It returns the requests per
// second, and the time below which 99 of 100 were answered.
func requests(ctx context.Context, address string, n, keys int, withKeys bool) (rate float64, late time.Duration, err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: httpConns, DisableCompression: true}}
	defer client.CloseIdleConnections()
	took := make([]time.Duration, n)
	start := time.Now()
	err = inParallel(httpConns, n, func(i int) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/orders", bytes.NewReader(httpBody))
		if err != nil {
			return err
		}
		r.Header.Set("X-Api-Key", "alice")
		if withKeys {
			r.Header.Set("Idempotency-Key", "order-"+strconv.Itoa(i%keys))
		}
		sent := time.Now()
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusCreated || string(text) != `{"order":1}` {
			return fmt.Errorf("the answer is %s %q, %v", answer.Status, text, err)
		}
		took[i] = time.Since(sent)
		return nil
	})
	rate = float64(n) / time.Since(start).Seconds()
	slices.Sort(took)
	return rate, took[n*99/100], err
}

// handled measures n requests to a handler in process.
func handled(n int, withKeys bool) (map[string]float64, error) {
	var executed atomic.Int64
	handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		executed.Add(1)
		createOrder(w, r)
	}))
	if withKeys {
		store, err := memstore.New(nil)
		if err != nil {
			return nil, err
		}
		guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
		if err != nil {
			return nil, err
		}
		if handler, err = httpidem.New(guard, handler, &httpidem.Options{Scope: httpidem.AnyCaller}); err != nil {
			return nil, err
		}
	}
	answers := sync.Pool{New: func() any { return httptest.NewRecorder() }}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for i := range n {
		r := httptest.NewRequest(http.MethodPost, "/orders", bytes.NewReader(httpBody))
		r.Header.Set("Idempotency-Key", "order-"+strconv.Itoa(i))
		w := answers.Get().(*httptest.ResponseRecorder)
		*w = httptest.ResponseRecorder{Body: w.Body, Code: http.StatusOK}
		w.Body.Reset()
		handler.ServeHTTP(w, r)
		if w.Code != http.StatusCreated {
			return nil, fmt.Errorf("the answer is %d %s", w.Code, w.Body)
		}
		answers.Put(w)
	}
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if executed.Load() != int64(n) {
		return nil, fmt.Errorf("%d of %d requests were executed", executed.Load(), n)
	}
	return map[string]float64{
		"http-middleware":       float64(n) / took.Seconds(),
		"http-middleware-bytes": float64(after.TotalAlloc-before.TotalAlloc) / float64(n),
	}, nil
}
