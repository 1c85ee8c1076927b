package programtest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/memstore"
)

// Target is a webhook that refuses some ids and records every request.
type Target struct {
	*httptest.Server
	mu       sync.Mutex
	refused  map[string]bool
	accepted []string // id and redrive count
}

// NewTarget starts a webhook that refuses these ids.
func NewTarget(t *testing.T, refused ...string) *Target {
	t.Helper()
	w := &Target{refused: map[string]bool{}}
	for _, id := range refused {
		w.refused[id] = true
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct{ ID string }
		_ = json.Unmarshal(body, &m)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused[m.ID] {
			answer.WriteHeader(http.StatusUnprocessableEntity)
			// The token is quoted without its scheme, once across the end of what is kept.
			token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			fmt.Fprintf(answer, "token %s expired %s%s", token, strings.Repeat(".", 480), token)
			return
		}
		w.accepted = append(w.accepted, m.ID+r.Header.Get("Semel-Redrive"))
	}))
	t.Cleanup(w.Close)
	return w
}

// Accept makes the webhook accept all ids.
func (w *Target) Accept() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.refused)
}

// Seen returns the accepted ids, each with its redrive count.
func (w *Target) Seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.accepted, " ")
}

// CountingService is a service that counts how often it ran for each key. A request with the
// path /wait waits until the test releases it, and one with /hang until the proxy dies.
type CountingService struct {
	*httptest.Server
	Release chan struct{}
	Reached chan struct{}

	mu   sync.Mutex
	runs map[string]int
}

// NewCountingService starts a service.
func NewCountingService(t *testing.T) *CountingService {
	u := &CountingService{Release: make(chan struct{}), Reached: make(chan struct{}, 16), runs: map[string]int{}}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

// ServeHTTP implements http.Handler.
func (u *CountingService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	u.mu.Lock()
	u.runs[r.Header.Get("Idempotency-Key")]++
	u.mu.Unlock()
	switch r.URL.Path {
	case "/wait":
		u.Reached <- struct{}{}
		<-u.Release
	case "/hang":
		u.Reached <- struct{}{}
		<-r.Context().Done()
		return
	}
	w.Header().Set("Location", "/orders/7")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, r.Method+" "+r.URL.Path+" "+string(body))
}

// Count returns how often the service ran for a key.
func (u *CountingService) Count(key string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.runs[key]
}

// SelfSign creates a self-signed certificate for this machine in a directory.
func SelfSign(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	WriteFile(t, filepath.Join(dir, "cert.pem"), string(text))
	WriteFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return roots
}

// StartVerifyUpstream starts semel verify upstream in a process of its own, and returns its
// address.
func StartVerifyUpstream(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "verify", "upstream", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), Variable+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, address, ok := strings.Cut(strings.TrimSpace(line), "listens on ")
	if !ok {
		t.Fatalf("the service says %q", line)
	}
	return address
}

// APIKey takes the scope from a header.
func APIKey(r *http.Request) (string, error) { return r.Header.Get("X-Api-Key"), nil }

// ProxyWithKeys starts a proxy with idempotency keys in front of a service.
func ProxyWithKeys(t *testing.T, upstream string, scope func(*http.Request) (string, error)) string {
	t.Helper()
	address, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := httpidem.NewProxy(&httpidem.ProxyOptions{Target: address})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.Hold, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := httpidem.New(guard, proxy, &httpidem.Options{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}
