package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// orderKeys is the table of a service that keeps the keys itself.
const orderKeys = "CREATE TABLE order_keys (caller text NOT NULL, key text NOT NULL, at timestamptz NOT NULL DEFAULT now(), answer bytea, PRIMARY KEY (caller, key))"

// proxyPostgres is the benchmark of a proxy whose keys are in PostgreSQL.
func (e *Env) proxyPostgres(n int, work string, prepare func(context.Context) error) Benchmark {
	const name = "http-proxy-postgres"
	ours := func(ctx context.Context) (_ map[string]float64, err error) {
		server, err := startPostgres(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		return e.posts(ctx, name, n, e.postgresProxy(server.URL()), createOrder)
	}
	plain := func(ctx context.Context) (map[string]float64, error) {
		return e.posts(ctx, name, n, e.reverse, createOrder)
	}
	own := func(ctx context.Context) (values map[string]float64, err error) {
		err = onPostgres(ctx, httpConns, orderKeys, func(pool *pgxpool.Pool) error {
			values, err = e.posts(ctx, name, n, e.reverse, keepingOrder(pool))
			if err != nil {
				return err
			}
			var kept int
			if err := pool.QueryRow(ctx, "SELECT count(*) FROM order_keys WHERE answer IS NOT NULL").Scan(&kept); err != nil {
				return err
			}
			if kept != n {
				return fmt.Errorf("the service keeps %d answers, want %d", kept, n)
			}
			return nil
		})
		return values, err
	}
	figures := func(suffix string) []figure {
		return []figure{{name: name + suffix, value: name, unit: "requests/s", target: 0.8}, {name: name + suffix + "-p99", value: name + "-p99", unit: "ms", lessIsBetter: true}}
	}
	return Benchmark{
		Name: name, Work: work + ", each with a new key, keys and answers in PostgreSQL 15 with fsync on. ", prepare: prepare, ours: ours,
		rivals: []rival{
			{work: "The peer looks at no keys", peerVersion: standard("net/http/httputil.ReverseProxy"), peer: plain, figures: figures("")},
			{
				work:        "Peer: a reverse proxy before a service that inserts each key itself before it creates the order, and then adds the answer, in two statements on 64 connections",
				peerVersion: linked(pgxModule), peer: own, figures: figures("-own"),
			},
		},
	}
}

// posts measures n requests with new keys through a proxy to a service.
func (e *Env) posts(ctx context.Context, name string, n int, start func(ctx context.Context, address, upstream string) (*exec.Cmd, error), service http.HandlerFunc) (map[string]float64, error) {
	rate, late, err := e.throughTo(ctx, service, start, func(at string) (float64, time.Duration, error) { return requests(ctx, at, n, n, true) })
	return map[string]float64{name: rate, name + "-p99": float64(late.Microseconds()) / 1000}, err
}

// postgresProxy returns a start of semel proxy with a store in PostgreSQL.
func (e *Env) postgresProxy(dsn string) func(ctx context.Context, address, upstream string) (*exec.Cmd, error) {
	return func(ctx context.Context, address, upstream string) (*exec.Cmd, error) {
		dir, err := e.fresh("http-keys")
		if err != nil {
			return nil, err
		}
		config := fmt.Sprintf(`stores: { keys: { postgres: { dsn: %q } } }
proxy: { listen: %q, upstream: %q, store: keys, scope: "header:X-Api-Key" }
admin: { listen: "off" }
log: { level: warn }
`, preparing(dsn), address, upstream)
		file := filepath.Join(dir, "semel.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		if err := e.run(ctx, dir, e.work("bin", "semel"), "migrate", "up", "--config", file); err != nil {
			return nil, err
		}
		return exec.CommandContext(ctx, e.work("bin", "semel"), "proxy", file), nil
	}
}

// keepingOrder is a service that keeps keys and answers itself, as guides show. A request
// whose key is there gets the kept answer, or 409 while the first one runs.
func keepingOrder(pool *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, key := r.Header.Get("X-Api-Key"), r.Header.Get("Idempotency-Key")
		if key == "" { // the harness asks whether the service is there
			createOrder(w, r)
			return
		}
		made, err := pool.Exec(r.Context(), "INSERT INTO order_keys (caller, key) VALUES ($1, $2) ON CONFLICT DO NOTHING", caller, key)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if made.RowsAffected() == 0 {
			var answer []byte
			if err := pool.QueryRow(r.Context(), "SELECT answer FROM order_keys WHERE caller = $1 AND key = $2", caller, key).Scan(&answer); err != nil || answer == nil {
				http.Error(w, "in flight", http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(answer) // the client checks the answer
			return
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the client sees a broken answer
		}
		answer := []byte(`{"order":1}`)
		if _, err := pool.Exec(r.Context(), "UPDATE order_keys SET answer = $3 WHERE caller = $1 AND key = $2", caller, key, answer); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer) // the client checks the answer
	}
}
