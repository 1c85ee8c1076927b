package servecmd_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
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
	"github.com/semel-dev/semel/store/httpstore"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// process is semel serve in a process of its own.
type process struct {
	*exec.Cmd
	url   string
	lines chan string // of its log, after the line that says where it serves
	ended chan struct{}
}

// start runs semel serve until it serves.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), program, append([]string{"serve"}, args...)...), lines: make(chan string, 1000), ended: make(chan struct{})}
	p.Env = append(os.Environ(), programtest.Variable+"=1")
	stderr, err := p.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	serving := make(chan string)
	var all strings.Builder
	promised := false
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct{ Msg, Address string }
			_ = json.Unmarshal(lines.Bytes(), &line) // an error of the program is no JSON
			promised = promised || line.Msg == "promise"
			if line.Msg == "serve" && serving != nil && promised {
				serving <- line.Address
				serving = nil
				continue
			}
			if serving != nil {
				all.WriteString(lines.Text() + "\n")
				continue
			}
			p.lines <- lines.Text()
		}
	}()
	at := serving
	select {
	case p.url = <-at:
	case <-p.ended:
		t.Fatalf("the server ended: %s", all.String())
	}
	t.Cleanup(func() { p.stop(t, os.Kill) })
	return p
}

// stop ends the server with a signal and returns its exit status.
func (p *process) stop(t *testing.T, signal os.Signal) int {
	t.Helper()
	_ = p.Process.Signal(signal) // it may have ended
	<-p.ended
	_ = p.Wait() // the status says how it ended
	return p.ProcessState.ExitCode()
}

// open opens the store of a server.
func (p *process) open(t *testing.T, opts *httpstore.Options) *httpstore.Store {
	t.Helper()
	store, err := httpstore.Open(t.Context(), p.url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func claim(t *testing.T, store semel.Store, r semel.ClaimRequest) semel.ClaimAnswer {
	t.Helper()
	answers := make([]semel.ClaimAnswer, 1)
	if r.Lease == 0 {
		r.Lease = time.Hour
	}
	r.Window = time.Hour
	if err := store.Claim(t.Context(), []semel.ClaimRequest{r}, answers); err != nil || answers[0].Err != nil {
		t.Fatal(err, answers[0].Err)
	}
	return answers[0]
}

// The end of the server is not the end of a holder: its claim keeps its token and its lease,
// under retry as under hold, and no other call gets the key.
func TestClaimsOutliveTheServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	first := start(t, "--listen", servicestest.FreeAddr(t), "--admin", "off", "--store", dir) // no other program gets it in between
	store := first.open(t, nil)
	held := map[string]semel.Token{}
	for _, id := range []string{"hold", "retry"} {
		held[id] = claim(t, store, semel.ClaimRequest{Key: semel.Key{Scope: "p", ID: id}, Owner: semel.Owner{Name: "w", Nonce: 7}, Hold: id == "hold"}).Claim.Token
	}
	first.stop(t, os.Kill)
	second := start(t, "--listen", strings.TrimPrefix(first.url, "http://"), "--admin", "off", "--store", dir)
	if second.url != first.url {
		t.Fatal(second.url)
	}
	for id, token := range held {
		key := semel.Key{Scope: "p", ID: id}
		if a := claim(t, store, semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "other", Nonce: 8}}); a.Decision != semel.InFlight || a.Holder != "w" {
			t.Errorf("%s: %+v", id, a)
		}
		if a := claim(t, store, semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "w", Nonce: 7}, Hold: id == "hold"}); a.Decision != semel.Fresh || a.Claim.Token != token || a.Claim.Attempt != 1 {
			t.Errorf("%s: %+v", id, a)
		}
		extended, errs := make([]semel.ExtendAnswer, 1), make([]error, 1)
		if err := store.Extend(t.Context(), []semel.ExtendRequest{{Key: key, Token: token, Lease: time.Hour}}, extended); err != nil || extended[0].Err != nil {
			t.Errorf("%s: %v %v", id, err, extended[0].Err)
		}
		if err := store.Complete(t.Context(), []semel.CompleteRequest{{Key: key, Token: token, Window: time.Hour}}, errs); err != nil || errs[0] != nil {
			t.Errorf("%s: %v %v", id, err, errs[0])
		}
	}
	if status := second.stop(t, syscall.SIGTERM); status != term.ExitDone {
		t.Errorf("exit status %d", status)
	}
}

func TestServeReportsWrongUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.Run(t, "", "serve", "--listen", "0.0.0.0:0").Check(t, term.ExitUsage, "other machines can reach 0.0.0.0:0, and no caller needs credentials")
	programtest.Run(t, "", "serve", "--listen", "127.0.0.1:0", "--socket", "x").Check(t, term.ExitUsage, "--listen and --socket exclude each other")
	two := programtest.WriteFile(t, filepath.Join(dir, "two.yaml"), "stores: { a: { memory: {} }, b: { memory: {} } }\n")
	programtest.Run(t, "", "serve", two, "--store", "x").Check(t, term.ExitUsage, "--store is for a server without a FILE", "it has no section serve that names one of its stores")
	wrong := programtest.WriteFile(t, filepath.Join(dir, "wrong.yaml"), `
stores: { a: { memory: {} } }
serve:
  listen: 127.0.0.1:1
  socket: x
  on_lease_expired: rety
  callers:
    none: { role: worker, scopes: ["*"] }
    bad: { role: boss, scopes: ["*"], tokens: [abc], expires: never }
    named: { role: viewer, scopes: ["*"], certificate: "dns:a" }
`)
	programtest.Run(t, "", "lint", wrong).Check(t, term.ExitUsage, "listen and socket exclude each other", "did you mean retry?", "it has no credentials: write tokens or certificate", "not 64 hexadecimal digits", "not a day", "named has a certificate: write tls")
	twice := programtest.WriteFile(t, filepath.Join(dir, "twice.yaml"), `
stores: { a: { memory: {} } }
serve:
  tls: { certificate: cert.pem, key: key.pem, client_ca: clients.pem }
  callers:
    a: { role: viewer, scopes: ["*"], certificate: "dns:a" }
    b: { role: viewer, scopes: ["*"], certificate: "dns:a" }
`)
	programtest.Run(t, "", "lint", twice).Check(t, term.ExitUsage, "the certificate dns:a of b is there twice")
	taken := servicestest.FreeAddr(t)
	listener, err := net.Listen("tcp", taken)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	programtest.Run(t, "", "serve", "--listen", taken, "--admin", "off", "--store", filepath.Join(dir, "keys")).Check(t, term.ExitFailed, "address already in use: write another address with --listen")
}

func TestExplainPrintsThePromiseOfServe(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), "stores: { keys: { memory: {} } }\nserve: { on_lease_expired: retry }\n")
	got := programtest.Run(t, "", "explain", file)
	got.Check(t, term.ExitDone)
	for _, want := range []string{"serve: calls to 127.0.0.1:4196/v1/", "no second effect  unless", "every key is lost when the server ends", "on_lease_expired: retry"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing: %s", want, got.Stdout)
		}
	}
	if got := programtest.Run(t, "", "explain", file, "serve", "--json"); !strings.HasPrefix(got.Stdout, `{"service":"serve",`) {
		t.Errorf("%s", got.Stdout)
	}
	programtest.Run(t, "", "lint", file).Check(t, term.ExitFound, "2 with a warning")
}

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// until waits for a line in the log.
func (p *process) until(t *testing.T, text string) {
	t.Helper()
	for {
		select {
		case line := <-p.lines:
			if strings.Contains(line, text) {
				return
			}
		case <-p.ended:
			t.Fatalf("the server ended before %q", text)
		}
	}
}

// A token that is removed from the file is refused from the next SIGHUP on. A file that is
// wrong changes nothing.
func TestCallersAreReadAgainAtSIGHUP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "api.yaml")
	write := func(callers string) {
		t.Helper()
		programtest.WriteFile(t, file, "stores: { keys: { embedded: { path: keys } } }\nserve: { listen: \"127.0.0.1:0\", callers: { "+callers+" } }\n")
	}
	write("orders: { role: operator, scopes: [\"*\"], tokens: [" + digest("one") + "] }")
	p := start(t, file, "--admin", "off")
	may := func(token string) bool {
		t.Helper()
		store, err := httpstore.Open(t.Context(), p.url, &httpstore.Options{Token: token, Retry: time.Millisecond})
		if err == nil {
			_ = store.Close()
		}
		return err == nil
	}
	if !may("one") || may("two") || may("") {
		t.Error("the first token alone is one")
	}
	for _, c := range []struct{ callers, says string }{
		{"orders: { role: operatr, scopes: [\"*\"], tokens: [" + digest("two") + "] }", "the old ones stay"},
		{"orders: { role: operator, scopes: [\"*\"], tokens: [" + digest("two") + "] }", "the callers were read again"},
	} {
		write(c.callers)
		if err := p.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		p.until(t, c.says)
		if now := strings.Contains(c.says, "again"); may("one") == now || may("two") != now {
			t.Errorf("after %q: one %t, two %t", c.says, may("one"), may("two"))
		}
	}
}

func TestServeListensOnASocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") // the name of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	for range 2 { // the second one finds the socket of one that was killed
		p := start(t, "--socket", socket, "--admin", "off", "--store", filepath.Join(dir, "keys"))
		info, err := os.Stat(socket)
		if err != nil || info.Mode().Perm() != 0o660 || p.url != "unix:"+socket {
			t.Errorf("%v %v %s", info, err, p.url)
		}
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
		store, err := httpstore.Open(t.Context(), "http://semel", &httpstore.Options{Client: client})
		if err != nil {
			t.Fatal(err)
		}
		claim(t, store, semel.ClaimRequest{Key: semel.Key{Scope: "p", ID: "a"}, Owner: semel.Owner{Nonce: 1}})
		_ = store.Close()
		p.stop(t, os.Kill)
	}
}

// A caller is known by its certificate, with TLS as the proxy has it.
func TestServeKnowsCallersByTheirCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	roots := programtest.SelfSign(t, dir)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{"orders"}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, filepath.Join(dir, "clients.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	file := programtest.WriteFile(t, filepath.Join(dir, "api.yaml"), `
stores: { keys: { embedded: { path: keys } } }
serve:
  listen: "127.0.0.1:0"
  tls: { certificate: cert.pem, key: key.pem, client_ca: clients.pem }
  callers: { orders: { role: worker, scopes: [p], certificate: "dns:orders" } }
`)
	p := start(t, file, "--admin", "off")
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}}}
	store := p.open(t, &httpstore.Options{Client: client})
	claim(t, store, semel.ClaimRequest{Key: semel.Key{Scope: "p", ID: "a"}, Owner: semel.Owner{Nonce: 1}})
	if a := claim(t, store, semel.ClaimRequest{Key: semel.Key{Scope: "p", ID: "a"}, Owner: semel.Owner{Name: "w", Nonce: 2}}); a.Holder != "orders" {
		t.Errorf("%+v", a)
	}
}

// The stores of a file work behind the server: 200 calls of 20 keys take 20 effects.
func TestServeUsesTheStoresOfAFile(t *testing.T) {
	t.Parallel()
	redis := "redis://" + servicestest.StartRedis(t, nil).Addr()
	for name, stores := range map[string]string{
		"postgres": fmt.Sprintf("{ keys: { postgres: { dsn: %q } } }", programtest.NewDatabase(t, true)),
		"redis":    fmt.Sprintf("{ keys: { redis: { url: %q } } }", redis),
		"stack":    fmt.Sprintf("{ keys: { tiered: { layers: [r, p] } }, r: { redis: { url: %q } }, p: { postgres: { dsn: %q } } }", redis, programtest.NewDatabase(t, true)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "api.yaml"), "stores: "+stores+"\nserve: { listen: \"127.0.0.1:0\", store: keys }\n")
			store := start(t, file, "--admin", "off").open(t, nil)
			guard, err := semel.NewGuard(store, &semel.GuardOptions{Wait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			var effects [20]int
			var mu sync.Mutex
			var calls sync.WaitGroup
			for i := range 200 {
				calls.Go(func() {
					_, err := guard.Do(t.Context(), semel.Key{Scope: name, ID: fmt.Sprint(i % 20)}, func(context.Context, semel.Claim) ([]byte, error) {
						mu.Lock()
						defer mu.Unlock()
						effects[i%20]++
						return []byte("done"), nil
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			for i, n := range effects {
				if n != 1 {
					t.Errorf("key %d took effect %d times", i, n)
				}
			}
		})
	}
}
