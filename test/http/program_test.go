// Package http kills and pauses the real semel proxy, its stores and its clients, and
// asks the service behind it how often each request took effect.
package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// programVariable makes this binary the program.
const programVariable = "SEMEL_TEST_HTTP_PROGRAM"

var servers servicestest.Pool

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		os.Exit(cli.Main(ctx, kind.All(), os.Args[1:], strings.NewReader(""), os.Stdout, os.Stderr, os.Getenv))
	}
	os.Exit(servers.Run(m))
}

// lease is that of the proxies: short, because tests wait for its end.
const lease = time.Second

// stores are the stores on which the tests run. Each makes the flags that name a new one.
var stores = []struct {
	name  string
	flags func(t *testing.T) []string
}{
	{"embedded", func(t *testing.T) []string { return []string{"--store", filepath.Join(t.TempDir(), "keys")} }},
	{"redis", func(t *testing.T) []string {
		return inFile(t, `redis: { url: "`+servers.Redis(t)+`", prefix: "`+servicestest.Prefix()+`" }`)
	}},
	{"postgres", func(t *testing.T) []string {
		flags := inFile(t, `postgres: { dsn: "`+servers.Database(t)+`" }`)
		semel(t, "migrate", "up", "--config", flags[1])
		return flags
	}},
}

// inFile writes a configuration with one store, and returns the flags that name it.
func inFile(t *testing.T, store string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(file, []byte("stores: { keys: { "+store+" } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--store-config", file}
}

// command returns the program with arguments.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	return cmd
}

// semel runs the program to its end.
func semel(t *testing.T, args ...string) {
	t.Helper()
	if output, err := command(t.Context(), args...).CombinedOutput(); err != nil {
		t.Fatalf("semel %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// proxy is semel proxy in a process of its own, which can be started again.
type proxy struct {
	url   string
	args  []string
	cmd   *exec.Cmd
	ended chan struct{} // closed when its log has ended
}

// newProxy starts a proxy in front of a service.
func newProxy(t *testing.T, upstream string, flags ...string) *proxy {
	t.Helper()
	address := servicestest.FreeAddr(t)
	p := &proxy{url: "http://" + address, args: append([]string{
		"proxy", "--listen", address, "--upstream", upstream, "--scope", "header:X-Api-Key", "--admin", "off",
		"--log-format", "json", "--lease", lease.String(),
	}, flags...)}
	p.start(t)
	t.Cleanup(func() { p.kill() })
	return p
}

// start starts the process, and returns when it serves.
func (p *proxy) start(t *testing.T) {
	t.Helper()
	p.cmd, p.ended = command(context.Background(), p.args...), make(chan struct{})
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	serves := make(chan struct{})
	var log bytes.Buffer
	ended := p.ended
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct{ Msg string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "proxy" {
				close(serves)
			}
			log.Write(append(lines.Bytes(), '\n'))
		}
	}()
	select {
	case <-serves:
	case <-p.ended:
		_ = p.cmd.Wait()
		t.Errorf("the proxy ended: %s", log.String())
	}
}

// kill ends the process without a warning.
func (p *proxy) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	_ = p.cmd.Wait() // it was killed
}

// signal sends a signal to the process.
func (p *proxy) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// service is the service behind the proxies.
type service struct {
	*idemcheck.Upstream
	url string
}

func newService(t *testing.T) *service {
	t.Helper()
	upstream := idemcheck.NewUpstream()
	server := httptest.NewServer(upstream)
	t.Cleanup(func() {
		server.CloseClientConnections() // requests that wait at a gate end with them
		server.Close()
	})
	return &service{upstream, server.URL}
}

// reached waits until a check ran so often.
func (s *service) reached(t *testing.T, id string, runs string) {
	t.Helper()
	answer, err := http.Get(s.url + "/.idemcheck/" + id + "?runs=" + runs)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var seen idemcheck.Seen
	if err := json.NewDecoder(answer.Body).Decode(&seen); err != nil || seen.Runs == 0 {
		t.Fatalf("the request %s did not reach the service: %+v, %v", id, seen, err)
	}
}

// ran reports a check that did not run so often.
func (s *service) ran(t *testing.T, id string, want int) {
	t.Helper()
	if got := s.Runs(id); got != want {
		t.Errorf("%s ran %d times, want %d", id, got, want)
	}
}

// reply is an answer that was read whole.
type reply struct {
	status  int
	problem string // the last part of the type of a problem, or ""
	header  http.Header
	body    string
}

// client has no limit of connections, and repeats nothing by itself.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 5 * time.Minute}

// post sends a request whose key is the name of its check. does tells the service what to
// do.
func post(ctx context.Context, proxy, id, does string) (*reply, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, proxy+"/orders?check="+id+"&"+does, strings.NewReader("body of "+id))
	if err != nil {
		return nil, err
	}
	r.GetBody = nil // the client must not repeat requests by itself
	r.Host = "api.example.com"
	r.Header.Set("X-Api-Key", "alice")
	r.Header.Set("Idempotency-Key", id)
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	got := &reply{status: answer.StatusCode, header: answer.Header, body: string(body)}
	var p struct{ Type string }
	if answer.Header.Get("Content-Type") == "application/problem+json" && json.Unmarshal(body, &p) == nil {
		got.problem = p.Type[strings.LastIndexByte(p.Type, '/')+1:]
	}
	return got, nil
}

// settled repeats a request until it has an answer, or a problem that does not end by
// itself. It repeats as a client must: after a broken connection, and after a problem that
// says so.
func settled(ctx context.Context, proxy, id, does string) (*reply, error) {
	for {
		got, err := post(ctx, proxy, id, does)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil, got.status >= http.StatusInternalServerError:
		case got.problem != "in-flight":
			return got, nil
		}
		within(ctx, 20*time.Millisecond)
	}
}

// within waits for d, or until ctx ends.
func within(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// addresses parses URLs.
func addresses(t *testing.T, texts ...string) []*url.URL {
	t.Helper()
	var list []*url.URL
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, u)
	}
	return list
}
