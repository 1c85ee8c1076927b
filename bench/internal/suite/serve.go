package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/semel-dev/semel/test/services"
)

// serveBatch is how many claims one request has in serve-batch, and how many commands one
// pipeline of its peer.
const serveBatch = 100

// servers lists the benchmarks of semel serve and its clients. Both sides have a server with
// an empty store, and a client that is another process.
func servers(e Env) []Benchmark {
	claims, batches, calls := e.size(200_000, 2_000), e.size(20_000, 100), e.size(20_000, 500)
	const ours = "Semel answers each when it is on the disk (fsync: always), with lease, token and claim_id. "
	peer := func(pipelined int) string {
		return fmt.Sprintf("Peer: redis-benchmark -c %d -P %d SET __rand_int__ 1 NX EX 3600, as many, with appendfsync everysec", httpConns, pipelined)
	}
	claimed := func(suffix string, rate, late float64) []figure {
		return []figure{
			{name: "serve-claim" + suffix, value: "serve-claim", unit: "claims/s", target: rate},
			{name: "serve-claim" + suffix + "-p99", value: "serve-claim-p99", unit: "ms", lessIsBetter: true, target: late},
		}
	}
	return []Benchmark{
		{
			Name:    "serve-claim",
			Work:    fmt.Sprintf("%s claims of new keys, over %d connections with one request on each, from one thread in an event loop. %s", count(claims), httpConns, ours),
			prepare: func(ctx context.Context) error { return errors.Join(e.buildSemel(ctx), e.build("answer")(ctx)) },
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.serveLoad(ctx, "serve-claim", claims, 1)
			},
			rivals: []rival{
				{
					work: peer(1), peerVersion: redisBenchmarkVersion,
					peer: func(ctx context.Context) (map[string]float64, error) {
						return redisLoad(ctx, "serve-claim", claims, 1)
					},
					figures: claimed("", 0.6, 1./3),
				},
				{
					work: "Peer: a server of net/http that reads the same requests, keeps nothing and answers each with the same grant", peerVersion: standard("net/http"),
					peer: func(ctx context.Context) (map[string]float64, error) {
						return e.answerLoad(ctx, "serve-claim", claims)
					},
					figures: claimed("-http", 0, 0),
				},
			},
		},
		{
			Name:        "serve-batch",
			Work:        fmt.Sprintf("%s claims of new keys in batches of %d, over %d connections with one request on each, from one thread in an event loop. %s%s", count(batches*serveBatch), serveBatch, httpConns, ours, peer(serveBatch)),
			peerVersion: redisBenchmarkVersion, prepare: e.buildSemel,
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.serveLoad(ctx, "serve-batch", batches, serveBatch)
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				return redisLoad(ctx, "serve-batch", batches*serveBatch, serveBatch)
			},
			figures: []figure{{name: "serve-batch", unit: "claims/s", target: 0.5}},
		},
		e.onceFrom("python", "64 threads", calls, e.installPythonClient, e.pythonOnce, e.redisPyVersion,
			"redis-py, with its own parser: SET NX EX, the effect, SET EX with its result, with appendfsync everysec"),
		e.onceFrom("node", "64 concurrent tasks", 2*calls, e.installNodeClient, e.nodeOnce, e.ioredisVersion,
			"ioredis: SET EX NX, the effect, SET EX with its result, with appendfsync everysec"),
	}
}

// serve starts semel serve with an empty embedded store, and calls use with its address.
func (e *Env) serve(ctx context.Context, use func(address string) error) error {
	dir, err := e.fresh("serve-keys")
	if err != nil {
		return err
	}
	return serving(func(address string) *exec.Cmd {
		return exec.CommandContext(ctx, e.work("bin", "semel"), "serve", "--listen", address, "--store", dir, "--admin", "off", "--log-level", "error")
	}, func(address string) error {
		if err := durableClaimsAt(ctx, "http://"+address); err != nil {
			return err
		}
		return use(address)
	})
}

// serving starts a server at a free address, and calls use with that.
func serving(server func(address string) *exec.Cmd, use func(address string) error) error {
	address, release, err := services.FreeAddr()
	if err != nil {
		return err
	}
	defer release()
	cmd := server(address)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	}()
	return use(address)
}

// durableClaimsAt waits until a server answers, and checks that it promises what the rows say.
func durableClaimsAt(ctx context.Context, address string) error {
	var limits struct {
		Store struct {
			DurableClaims bool `json:"durable_claims"`
			PowerSafe     bool `json:"power_safe"`
		}
	}
	if err := patiently(ctx, func() error { return getJSON(ctx, address+"/v1/limits", &limits) }); err != nil {
		return err
	}
	if !limits.Store.DurableClaims || !limits.Store.PowerSafe {
		return fmt.Errorf("suite: the store of semel serve promises too little: %+v", limits.Store)
	}
	return nil
}

// patiently asks until there is no error, for 10 s at most.
func patiently(ctx context.Context, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("suite: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func getJSON(ctx context.Context, address string, value any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(value)
}

// serveLoad measures requests with so many claims each.
func (e *Env) serveLoad(ctx context.Context, name string, requests, claims int) (values map[string]float64, err error) {
	err = e.serve(ctx, func(address string) error {
		values, err = claimLoad(name, address, requests, claims)
		return err
	})
	return values, err
}

// answerLoad measures requests to a server that keeps nothing.
func (e *Env) answerLoad(ctx context.Context, name string, requests int) (values map[string]float64, err error) {
	err = serving(func(address string) *exec.Cmd { return exec.CommandContext(ctx, e.work("bin", "answer"), address) }, func(address string) error {
		var grant any
		if err := patiently(ctx, func() error { return getJSON(ctx, "http://"+address, &grant) }); err != nil {
			return err
		}
		values, err = claimLoad(name, address, requests, 1)
		return err
	})
	return values, err
}

// claimLoad sends requests with so many claims each.
func claimLoad(name, address string, requests, claims int) (map[string]float64, error) {
	l := &httpLoad{address: address, conns: httpConns, requests: requests, request: claimRequest(address, claims)}
	l.check = func(body []byte) error {
		if n := bytes.Count(body, []byte(`"decision":"fresh"`)); n != claims {
			return fmt.Errorf("%d of %d claims were granted: %.200s", n, claims, body)
		}
		return nil
	}
	rate, late, err := l.run()
	values := map[string]float64{name: rate * float64(claims)}
	if claims == 1 {
		values[name+"-p99"] = float64(late.Microseconds()) / 1000
	}
	return values, err
}

// claimRequest returns a function that writes the request number i over the last one. All
// requests have the same length, so only their ids are written again, as redis-benchmark
// does it.
func claimRequest(address string, claims int) func(buf []byte, i int) []byte {
	const id = "0000000000000000"
	const claim = `{"scope":"bench","id":"` + id + `","claim_id":"` + id + `"}`
	path, body := "/v1/claim", claim
	if claims > 1 {
		path, body = "/v1/batch", `{"items":[{"claim":`+strings.Repeat(claim+`},{"claim":`, claims-1)+claim+`}]}`
	}
	text := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, address, len(body), body)
	var places []int // of ids, two for each claim
	for at := strings.Index(text, id); at >= 0; {
		places = append(places, at)
		next := strings.Index(text[at+len(id):], id)
		if next < 0 {
			break
		}
		at += len(id) + next
	}
	return func(buf []byte, i int) []byte {
		if len(buf) == 0 {
			buf = append(buf, text...)
		}
		for j, at := range places {
			n := i*claims + j/2
			for k := at + len(id) - 1; n > 0; k, n = k-1, n/10 {
				buf[k] = byte('0' + n%10)
			}
		}
		return buf
	}
}

// redisLoad measures the same number of claims in Redis.
func redisLoad(ctx context.Context, name string, claims, pipelined int) (map[string]float64, error) {
	rate, late, err := redisBenchmark(ctx, claims, httpConns, pipelined)
	values := map[string]float64{name: rate}
	if pipelined == 1 {
		values[name+"-p99"] = late
	}
	return values, err
}

// onceFrom compares the function once of a client with a client of Redis in the same language.
func (e *Env) onceFrom(language, concurrency string, calls int, install func(context.Context) error,
	program func(ctx context.Context, kind, address string, calls int) *exec.Cmd, peerVersion func() (string, error), peer string) Benchmark {
	name := "once-" + language
	measure := func(ctx context.Context, kind, address string) (map[string]float64, error) {
		var seconds float64
		cmd := program(ctx, kind, address, calls)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &seconds) // the program has checked its effects and results
		}
		if err != nil {
			return nil, fmt.Errorf("suite: %s: %w: %s", cmd, err, out)
		}
		return map[string]float64{name: float64(calls) / seconds}, nil
	}
	return Benchmark{
		Name: name,
		Work: fmt.Sprintf("%s calls of once with new keys by %s of one process, each with its effect, which counts, and its result. Semel: semel serve with fsync: always; claims are fenced. Peer: %s",
			count(calls), concurrency, peer),
		peerVersion: peerVersion,
		prepare:     func(ctx context.Context) error { return errors.Join(e.buildSemel(ctx), install(ctx)) },
		ours: func(ctx context.Context) (values map[string]float64, err error) {
			return values, e.serve(ctx, func(address string) (err error) {
				values, err = measure(ctx, "semel", address)
				return err
			})
		},
		peer: func(ctx context.Context) (_ map[string]float64, err error) {
			server, err := startRedis(ctx)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, server.Close()) }()
			return measure(ctx, "redis", server.Addr())
		},
		figures: []figure{{name: name, unit: "calls/s", target: 1}},
	}
}

// client returns a path in the directory of a client.
func (e *Env) client(name ...string) string {
	return filepath.Join(append([]string{filepath.Dir(e.Root), "clients"}, name...)...)
}

// installPythonClient makes the environment of the client's tests, which has redis-py too.
func (e *Env) installPythonClient(ctx context.Context) error {
	_, err := e.pythonOfClient(ctx)
	return err
}

// pythonOfClient returns the interpreter in that environment.
func (e *Env) pythonOfClient(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, e.client("python", "venv.sh"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("suite: %s: %w", cmd, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func (e *Env) pythonOnce(ctx context.Context, kind, address string, calls int) *exec.Cmd {
	python, err := e.pythonOfClient(ctx)
	cmd := exec.CommandContext(ctx, python, e.peer("once", "once.py"), kind, address, fmt.Sprint(calls), fmt.Sprint(httpConns))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+e.client("python", "src"))
	cmd.Err = errors.Join(cmd.Err, err)
	return cmd
}

func (e *Env) redisPyVersion() (string, error) {
	return pinnedIn(e.client("python", "requirements.txt"), "redis")
}

// installNodeClient builds the client. The packages of its tests have ioredis.
func (e *Env) installNodeClient(ctx context.Context) error {
	return e.run(ctx, e.Root, e.client("typescript", "install.sh"))
}

func (e *Env) nodeOnce(ctx context.Context, kind, address string, calls int) *exec.Cmd {
	return exec.CommandContext(ctx, "node", e.peer("once", "once.mjs"), kind, address, fmt.Sprint(calls), fmt.Sprint(httpConns),
		e.client("typescript", "dist", "index.js"), e.client("typescript", "test", "package.json"))
}

func (e *Env) ioredisVersion() (string, error) {
	text, err := os.ReadFile(e.client("typescript", "test", "node_modules", "ioredis", "package.json"))
	if err != nil {
		return "", err
	}
	var of struct{ Name, Version string }
	err = json.Unmarshal(text, &of)
	return of.Name + " " + of.Version, err
}
