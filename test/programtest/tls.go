package programtest

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// CertifiedDir returns a directory with a certificate that servers can read, which have users of
// their own.
func CertifiedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	SelfSign(t, dir)
	for _, path := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// SecureRedis starts a server that also listens at an address for TLS, with the certificate of
// a directory.
func SecureRedis(t *testing.T, address, dir string) *services.Server {
	t.Helper()
	server := servicestest.StartRedis(t, nil)
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		cert := filepath.Join(dir, "cert.pem")
		_, err = services.RedisDo(t.Context(), server.Addr(), "CONFIG", "SET", "tls-cert-file", cert, "tls-key-file", filepath.Join(dir, "key.pem"), "tls-ca-cert-file", cert, "tls-auth-clients", "no", "tls-port", port)
	}
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// HostOf returns the host and port of a URL.
func HostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}
