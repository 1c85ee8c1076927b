package proxycmd_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/programtest"
)

// process is semel proxy in a process of its own.
type process struct {
	*exec.Cmd
	url, admin string
	log        func() string // all lines so far
	ended      chan struct{} // closed at the end of its log
}

// startProxy runs semel proxy until it serves.
func startProxy(t *testing.T, args ...string) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), program, append([]string{"proxy"}, args...)...), ended: make(chan struct{})}
	p.Env = append(os.Environ(), programtest.Variable+"=1")
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all strings.Builder
	p.log = func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
	serving := make(chan struct{})
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			mu.Lock()
			all.WriteString(lines.Text() + "\n")
			mu.Unlock()
			var line struct{ Msg, Address string }
			_ = json.Unmarshal(lines.Bytes(), &line) // an error of the program is no JSON
			switch line.Msg {
			case "admin server":
				p.admin = line.Address
			case "proxy":
				p.url = line.Address
				close(serving)
			}
		}
	}()
	select {
	case <-serving:
	case <-p.ended:
		t.Fatalf("the proxy ended: %s", p.log())
	}
	t.Cleanup(func() { p.stop(t, os.Kill) })
	return p
}

// logs waits until the log has these texts, and returns it.
func (p *process) logs(t *testing.T, texts ...string) string {
	t.Helper()
	for late := time.Now().Add(programtest.TroubleWithin); !programtest.ContainsAll(p.log(), texts); <-time.After(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the log lacks one of %q: %s", texts, p.log())
		}
	}
	return p.log()
}

// stop ends the proxy with a signal and returns its exit status.
func (p *process) stop(t *testing.T, signal os.Signal) int {
	t.Helper()
	_ = p.Process.Signal(signal) // it may have ended
	<-p.ended
	_ = p.Wait() // the status says how it ended
	return p.ProcessState.ExitCode()
}

// answer is a response that was read whole.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a request with a key and returns the answer.
func post(t *testing.T, url, key, body string, header ...string) answer {
	t.Helper()
	got, err := send(http.MethodPost, url, key, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// proxyClient has connections of its own. Every httptest.Server that closes also closes
// those of http.DefaultClient.
var proxyClient = &http.Client{Transport: &http.Transport{}}

func send(method, url, key, body string, header ...string) (answer, error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Host = "api.example.com" // the same at each port
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := proxyClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// problem checks an answer that the proxy gives itself.
func (a answer) problem(t *testing.T, status int, kind string) {
	t.Helper()
	var said struct{ Type string }
	if err := json.Unmarshal([]byte(a.body), &said); err != nil || a.status != status || !strings.HasSuffix(said.Type, "/"+kind) {
		t.Errorf("status %d, %s (%v); want %d and the problem %s", a.status, a.body, err, status, kind)
	}
}

// afterLease repeats a request while another one is in flight, and returns the next answer.
func afterLease(t *testing.T, ask func() answer) answer {
	t.Helper()
	var got answer
	err := retry.Poll(t.Context(), time.Now().Add(4*semel.DefaultLease), func() bool {
		got = ask()
		return !strings.Contains(got.body, "/in-flight")
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestProxyRunsARequestOnceOverAKill(t *testing.T) {
	t.Parallel()
	service, store := newCountingService(t), filepath.Join(t.TempDir(), "keys")
	args := []string{"--listen", "127.0.0.1:0", "--upstream", service.URL, "--store", store, "--scope", "header:X-Api-Key", "--admin", "off"}
	const caller, alice = "X-Api-Key", "key-of-alice"
	proxy := startProxy(t, args...)

	first := post(t, proxy.url+"/orders", "order-1", "one", caller, alice)
	again := post(t, proxy.url+"/orders", "order-1", "one", caller, alice)
	if first.status != http.StatusCreated || again.status != first.status || again.body != first.body || again.header.Get("Location") != "/orders/7" ||
		first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%+v, and again %+v", first, again)
	}
	post(t, proxy.url+"/orders", "order-1", "two", caller, alice).problem(t, http.StatusUnprocessableEntity, "key-reused")
	post(t, proxy.url+"/orders", "order-1", "one").problem(t, http.StatusUnauthorized, "scope-missing")
	if got := post(t, proxy.url+"/orders", "order-1", "one", caller, "key-of-bob"); got.header.Get("Idempotent-Replayed") != "" || service.count("order-1") != 2 {
		t.Errorf("another caller: %+v after %d runs", got, service.count("order-1"))
	}
	programtest.Run(t, "", "keys", "stats", "--store", store, "--json").Check(t, term.ExitDone)

	go func() { _, _ = send(http.MethodPost, proxy.url+"/wait", "order-2", "", caller, alice) }() // the proxy dies before it answers
	<-service.reached
	post(t, proxy.url+"/wait", "order-2", "", caller, alice).problem(t, http.StatusConflict, "in-flight")
	proxy.stop(t, os.Kill)
	close(service.release)

	proxy = startProxy(t, args...)
	// The lease of the process that died continues, because the request may still run.
	afterLease(t, func() answer { return post(t, proxy.url+"/wait", "order-2", "", caller, alice) }).problem(t, http.StatusConflict, "outcome-unknown")
	if got := post(t, proxy.url+"/orders", "order-1", "one", caller, alice); got.body != first.body || got.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("after the restart: %+v", got)
	}
	if n := service.count("order-2"); n != 1 {
		t.Errorf("order-2 ran %d times", n)
	}
	// The verbs ask the running proxy.
	programtest.Run(t, "", "keys", "resolve", "--all", "--as", "absent", "--reason", "the service never saw it", "--yes", "--store", store).Check(t, term.ExitDone, "resolved 1 of 1 unknown key")
	if got := post(t, proxy.url+"/wait", "order-2", "", caller, alice); got.status != http.StatusCreated || service.count("order-2") != 2 {
		t.Errorf("resolved as absent: %+v after %d runs", got, service.count("order-2"))
	}
	<-service.reached
	// The service works on a third request when an operator finds its effect.
	go func() { _, _ = send(http.MethodPost, proxy.url+"/hang", "order-3", "", caller, alice) }()
	<-service.reached
	proxy.stop(t, os.Kill)
	proxy = startProxy(t, args...)
	afterLease(t, func() answer { return post(t, proxy.url+"/hang", "order-3", "", caller, alice) }).problem(t, http.StatusConflict, "outcome-unknown")
	programtest.Run(t, "", "keys", "resolve", "order-3", "--caller", alice, "--as", "done", "--reason", "it is in the ledger", "--store", store).Check(t, term.ExitDone, "as done")
	settled := post(t, proxy.url+"/hang", "order-3", "", caller, alice)
	settled.problem(t, http.StatusConflict, "response-not-kept")
	if !strings.Contains(settled.body, "as an operator found out") || service.count("order-3") != 1 {
		t.Errorf("resolved as done: %s after %d runs", settled.body, service.count("order-3"))
	}
	if status := proxy.stop(t, syscall.SIGTERM); status != -1 && status != term.ExitDone {
		t.Errorf("exit status %d: %s", status, proxy.log())
	}
}

func TestProxyTakesAKeyFromTheHeadersOfItsFlags(t *testing.T) {
	t.Parallel()
	service := newCountingService(t)
	proxy := startProxy(t, "--listen", "127.0.0.1:0", "--upstream", service.URL, "--scope", "global", "--admin", "off", "--header", "X-Request-Key", "--header", "Idempotency-Key")
	first := post(t, proxy.url+"/orders", "", "one", "X-Request-Key", "order-1")
	again := post(t, proxy.url+"/orders", "order-1", "one")
	if first.status != http.StatusCreated || first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%+v, and again %+v", first, again)
	}
	post(t, proxy.url+"/orders", "order-1", "one", "X-Request-Key", "order-2").problem(t, http.StatusBadRequest, "key-invalid")
}
