package proxy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/listen"
)

// certify writes a certificate for 127.0.0.1 that ends after a while, and its key.
func certify(t *testing.T, dir string, serial int64, until time.Time) *config.ServerTLS {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := &config.ServerTLS{Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for name, block := range map[string]*pem.Block{files.Certificate: {Type: "CERTIFICATE", Bytes: certificate}, files.Key: {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// examine returns the findings of the doctor about a proxy, one line each.
func examine(t *testing.T, p *config.Proxy) (lines []string, err error) {
	t.Helper()
	x := Examine(t.Context(), &config.File{Proxy: p}, time.Minute)
	for _, f := range x.Findings {
		lines = append(lines, fmt.Sprintf("%s %s: %s", f.Severity, f.Subject, f.Found))
	}
	return lines, x.Err
}

// answering starts a service that answers all requests with a status.
func answering(t *testing.T, status int, headers ...string) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestTheDoctorAsksEachServiceOnce(t *testing.T) {
	t.Parallel()
	ready, busy := answering(t, http.StatusNoContent), answering(t, http.StatusServiceUnavailable)
	p := &config.Proxy{}
	p.Upstream = ready.URL
	p.Routes = []*config.Route{{Name: "same", Upstream: ready.URL}, {Name: "busy", Upstream: busy.URL}, {Name: "again", Upstream: busy.URL}}
	want := []string{
		"fine proxy.upstream: " + ready.URL + " answers HEAD with 204 No Content",
		"warning proxy.routes.busy.upstream: " + busy.URL + " answers HEAD with 503 Service Unavailable",
	}
	if lines, err := examine(t, p); err != nil || !slices.Equal(lines, want) {
		t.Errorf("%q, %v; want %q", lines, err, want)
	}
	ready.Close()
	p.Routes = nil
	if lines, err := examine(t, p); len(lines) > 0 || err == nil || !strings.HasPrefix(err.Error(), "proxy.upstream: ") {
		t.Errorf("a service that is down: %q, %v", lines, err)
	}
}

// TestTheDoctorReadsCertificates has services and listeners whose certificates are not
// trusted, end soon, or cannot be read.
func TestTheDoctorReadsCertificates(t *testing.T) {
	t.Parallel()
	for left, severity := range map[time.Duration]string{time.Hour: "warning", 1000 * time.Hour: "fine"} {
		until := time.Now().Add(left)
		files := certify(t, t.TempDir(), 1, until)
		secure, err := files.Config()
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.TLS, server.Config.ErrorLog = secure, slog.NewLogLogger(slog.DiscardHandler, 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		p := &config.Proxy{TLS: files}
		p.Upstream, p.UpstreamTLS = server.URL, &config.TLS{CA: files.Certificate}
		ends := ": its certificate ends on " + until.UTC().Format(time.DateOnly)
		want := []string{severity + " proxy.tls" + ends, "fine proxy.upstream: " + server.URL + " answers HEAD with 404 Not Found", severity + " proxy.upstream" + ends}
		if lines, err := examine(t, p); err != nil || !slices.Equal(lines, want) {
			t.Errorf("%q, %v; want %q", lines, err, want)
		}
		p.UpstreamTLS = nil // the system does not trust it
		if lines, err := examine(t, p); err != nil || len(lines) != 2 || !strings.HasPrefix(lines[1], "broken proxy.upstream: "+server.URL+": ") {
			t.Errorf("%q, %v", lines, err)
		}
		p.UpstreamTLS, p.TLS = &config.TLS{CA: "none.pem"}, &config.ServerTLS{Certificate: "none.pem"}
		if lines, err := examine(t, p); err != nil || len(lines) != 2 || !strings.HasPrefix(lines[0], "broken proxy.tls: ") || !strings.HasPrefix(lines[1], "broken proxy.upstream_tls: ") {
			t.Errorf("%q, %v", lines, err)
		}
	}
	e := &examiner{Examination: &config.Examination{}}
	e.Certificate("proxy.tls", &x509.Certificate{NotAfter: time.Now().Add(-time.Hour)}, "clients cannot connect")
	if !e.Breaks() {
		t.Errorf("a certificate that has ended: %+v", e.Findings)
	}
}

// TestDoctorChecksTheAuthenticationService asks a service of forward_auth, and reads public keys.
func TestDoctorChecksTheAuthenticationService(t *testing.T) {
	t.Parallel()
	upstream := answering(t, http.StatusOK)
	for _, c := range []struct {
		service *httptest.Server
		want    string
	}{
		{answering(t, http.StatusUnauthorized), "fine proxy.forward_auth: a request without credentials gets 401 Unauthorized"},
		{answering(t, http.StatusOK), "fine proxy.forward_auth: a request without credentials gets 200 OK and no caller"},
		{answering(t, http.StatusOK, "X-User", "anyone"), "warning proxy.forward_auth: it names a caller for a request without credentials"},
		{answering(t, http.StatusTeapot), "warning proxy.forward_auth: a request without credentials gets 418 I'm a teapot"},
	} {
		p := &config.Proxy{Caller: config.Caller{Kind: "forward", Name: "X-User"}, Identity: config.Identity{ForwardAuth: c.service.URL}}
		p.Upstream = upstream.URL
		if lines, err := examine(t, p); err != nil || len(lines) != 2 || lines[1] != c.want {
			t.Errorf("%q, %v; want %s", lines, err, c.want)
		}
	}
	keys := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(keys, []byte(`{"keys":[{"kty":"EC","crv":"P-256","kid":"1","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{keys: "fine proxy.jwt_keys: " + keys + " has 1 public keys", keys + ".none": "broken proxy.jwt_keys: "} {
		p := &config.Proxy{Identity: config.Identity{JWTKeys: file}}
		p.Upstream = upstream.URL
		if lines, err := examine(t, p); err != nil || len(lines) != 2 || !strings.HasPrefix(lines[1], want) {
			t.Errorf("%q, %v; want %s", lines, err, want)
		}
	}
}

// TestACertificateIsReadAgainWhenItsFileChanges replaces the files of a listener by others,
// and then by nonsense.
func TestACertificateIsReadAgainWhenItsFileChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log strings.Builder
	synctest.Test(t, func(t *testing.T) {
		serial := func(secure *tls.Config) string {
			t.Helper()
			current, err := secure.GetConfigForClient(nil)
			if err != nil {
				t.Fatal(err)
			}
			return current.Certificates[0].Leaf.SerialNumber.String()
		}
		until := time.Now().Add(24 * time.Hour)
		files := certify(t, dir, 1, until)
		secure, err := listen.Certificates(files, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if got := serial(secure); got != "1" {
			t.Errorf("the first certificate has serial %s", got)
		}
		certify(t, dir, 22, until)
		if err := os.Chtimes(files.Certificate, time.Now(), time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if got := serial(secure); got != "1" {
			t.Errorf("the files were read again immediately: %s", got)
		}
		time.Sleep(2 * time.Second) // in a bubble
		if got := serial(secure); got != "22" || !strings.Contains(log.String(), "the certificate was read again") {
			t.Errorf("the new certificate has serial %s: %s", got, log.String())
		}
		if err := os.WriteFile(files.Certificate, []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got := serial(secure); got != "22" || !strings.Contains(log.String(), "the new certificate cannot be used: the old one stays") {
			t.Errorf("with nonsense the certificate has serial %s: %s", got, log.String())
		}
		if _, err := listen.Certificates(files, slog.New(slog.DiscardHandler)); err == nil {
			t.Error("a listener starts with nonsense")
		}
	})
	if secure, err := listen.Certificates(nil, nil); secure != nil || err != nil {
		t.Errorf("without TLS: %v, %v", secure, err)
	}
}
