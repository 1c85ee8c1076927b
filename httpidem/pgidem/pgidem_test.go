package pgidem_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/pgidem"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// shop is a handler with a database of its own, which counts the requests that it runs.
type shop struct {
	t    *testing.T
	pool *pgxpool.Pool
	url  string
	ran  atomic.Int32
}

// newShop starts a server. handle gets the number of the run.
func newShop(t *testing.T, opts httpidem.Options, handle func(w http.ResponseWriter, r *http.Request, n int)) *shop {
	t.Helper()
	config, err := pgxpool.ParseConfig(servers.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	s := &shop{t: t}
	if s.pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	store, err := pgstore.New(t.Context(), s.pool, &pgstore.Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	s.exec("CREATE TABLE orders (body text, CONSTRAINT once UNIQUE (body) DEFERRABLE INITIALLY DEFERRED)")
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	opts.Scope = httpidem.AnyCaller
	handler, err := pgidem.New(guard, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handle(w, r, int(s.ran.Add(1)))
	}), &opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *shop) exec(sql string) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatal(err)
	}
}

// mustHave checks how often the handler ran, and how many orders there are.
func (s *shop) mustHave(ran int32, orders int) {
	s.t.Helper()
	var n int
	if err := s.pool.QueryRow(s.t.Context(), "SELECT count(*) FROM orders").Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	if got := s.ran.Load(); got != ran || n != orders {
		s.t.Errorf("the handler ran %d times and there are %d orders, want %d and %d", got, n, ran, orders)
	}
}

// order writes the body of a request.
func order(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	_, err = pgidem.Tx(r.Context()).Exec(r.Context(), "INSERT INTO orders VALUES ($1)", string(body))
	return err
}

// client has connections of its own. Every httptest.Server that closes also closes those of
// http.DefaultClient.
var client = &http.Client{Transport: &http.Transport{}}

func (s *shop) post(key, body string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if r.GetBody = nil; key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err.Error()
	}
	defer resp.Body.Close()
	problem := httpidem.ProblemOf(resp)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Error(err)
	}
	if problem != "" {
		return resp, string(problem)
	}
	return resp, string(text)
}

func (s *shop) must(key, body string, status int, want string) *http.Response {
	s.t.Helper()
	resp, got := s.post(key, body)
	if resp == nil || resp.StatusCode != status || got != want {
		s.t.Errorf("the answer is %v %q, want %d %q", resp, got, status, want)
	}
	return resp
}

func TestOrderAndKeyCommitTogether(t *testing.T) {
	t.Parallel()
	var s *shop
	s = newShop(t, httpidem.Options{}, func(w http.ResponseWriter, r *http.Request, n int) {
		if pgidem.Tx(r.Context()) == nil {
			io.WriteString(w, "no key")
			return
		}
		if err := order(r); err != nil {
			t.Error(err)
		}
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", n)
		http.NewResponseController(w).Flush()
		s.mustHave(int32(n), 0) // nothing is committed, and so nothing was sent
	})
	first := s.must("k", "a", 201, "order 1")
	again := s.must("k", "a", 201, "order 1")
	if first.Header.Get("Set-Cookie") == "" || first.Header.Get(httpidem.Replayed) != "" || again.Header.Get(httpidem.Replayed) != "true" || again.Header.Get("Location") != "/orders/1" {
		t.Errorf("the headers are %v, then %v", first.Header, again.Header)
	}
	s.must("k", "b", 422, string(httpidem.KeyReused))
	s.mustHave(1, 1)
	s.must("", "c", 200, "no key")
}

func TestFailedRequestLeavesNeitherRowNorKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fail   func(w http.ResponseWriter, r *http.Request)
		status int // 0: none
		text   string
	}{
		"a server error": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); io.WriteString(w, "broken") }, 500, "broken"},
		"a refusal":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, 429, ""},
		"a panic":        {func(http.ResponseWriter, *http.Request) { panic("broken") }, 0, ""},
		"an error after a part": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "part")
			http.Error(w, "broken", 500)
		}, 500, string(httpidem.RolledBack)},
		"less than its length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "part")
		}, 500, string(httpidem.RolledBack)},
		"too long": {func(w http.ResponseWriter, _ *http.Request) { w.Write(bytes.Repeat([]byte("x"), 101)) }, 500, string(httpidem.RolledBack)},
		"a statement": {func(w http.ResponseWriter, r *http.Request) {
			if _, err := pgidem.Tx(r.Context()).Exec(r.Context(), "SELECT 1/0"); err == nil {
				panic("1/0 is a number")
			}
			io.WriteString(w, "order")
		}, 500, string(httpidem.RolledBack)},
		"the commit": {func(w http.ResponseWriter, r *http.Request) {
			if _, err := pgidem.Tx(r.Context()).Exec(r.Context(), "INSERT INTO orders VALUES ('a')"); err != nil {
				panic(err)
			}
			io.WriteString(w, "order")
		}, 500, string(httpidem.RolledBack)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, httpidem.Options{MaxResponse: 100}, func(w http.ResponseWriter, r *http.Request, n int) {
				if err := order(r); err != nil {
					t.Error(err)
				}
				if n == 1 {
					w.Header().Set("X-Run", "1")
					c.fail(w, r)
					return
				}
				io.WriteString(w, "order")
			})
			if resp, text := s.post("k", "a"); (resp == nil) != (c.status == 0) || resp != nil && (resp.StatusCode != c.status || text != c.text) {
				t.Errorf("the answer is %v %q, want %d %q", resp, text, c.status, c.text)
			}
			s.mustHave(1, 0)
			s.must("k", "a", 200, "order")
			s.must("k", "a", 200, "order")
			s.mustHave(2, 1)
		})
	}
}

// The server rolled the transaction back because of another one, so that the handler runs
// again. The client gets the second response, and nothing of the first.
func TestHandlerRunsAgainAfterATransactionConflict(t *testing.T) {
	t.Parallel()
	s := newShop(t, httpidem.Options{}, func(w http.ResponseWriter, r *http.Request, n int) {
		if err := order(r); err != nil {
			t.Error(err)
		}
		if n == 1 {
			w.Header().Set("X-Run", "1")
			w.WriteHeader(http.StatusAccepted)
			if _, err := pgidem.Tx(r.Context()).Exec(r.Context(), "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"); err == nil {
				t.Error("there is no conflict")
			}
		}
		fmt.Fprintf(w, "run %d", n)
	})
	if resp := s.must("k", "a", 200, "run 2"); resp.Header.Get("X-Run") != "" {
		t.Errorf("the headers are %v", resp.Header)
	}
	s.mustHave(2, 1)
}

// Many requests with one key wait in memory, so that others get connections.
func TestWaitingRequestsHoldNoConnections(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s := newShop(t, httpidem.Options{Wait: time.Minute}, func(w http.ResponseWriter, r *http.Request, n int) {
		if err := order(r); err != nil {
			t.Error(err)
		}
		if n == 1 {
			close(entered)
			<-leave
		}
		fmt.Fprintf(w, "order %d", n)
	})
	var running sync.WaitGroup
	running.Go(func() { s.must("k", "a", 200, "order 1") })
	<-entered
	for range 50 {
		running.Go(func() { s.must("k", "a", 200, "order 1") })
	}
	for i := range 20 {
		s.must(fmt.Sprint(i), fmt.Sprint("b", i), 200, fmt.Sprint("order ", i+2))
	}
	s.must("k", "c", 422, string(httpidem.KeyReused))
	close(leave)
	running.Wait()
	s.mustHave(21, 21)
}

func TestTrailersComeAfterTheCommit(t *testing.T) {
	t.Parallel()
	s := newShop(t, httpidem.Options{}, func(w http.ResponseWriter, r *http.Request, _ int) {
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "order")
		w.Header().Set("X-Sum", "5")
		w.Header().Set(http.TrailerPrefix+"X-More", "6")
	})
	if resp := s.must("k", "a", 200, "order"); resp.Trailer.Get("X-Sum") != "5" || resp.Trailer.Get("X-More") != "6" {
		t.Errorf("the trailers are %v", resp.Trailer)
	}
	s.must("k", "a", 409, string(httpidem.ResponseNotKept))
}

func TestNewRefusesAMissingGuard(t *testing.T) {
	t.Parallel()
	if _, err := pgidem.New(nil, http.NotFoundHandler(), nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("without a guard: %v", err)
	}
}
