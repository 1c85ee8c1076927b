package programtest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/store/memstore"
)

// SelfSign creates a self-signed certificate for this machine in a directory.
func SelfSign(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "semel"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
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
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold, Lease: time.Minute})
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
