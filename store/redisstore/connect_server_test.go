package redisstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestConnectToAClusterByOneNodeOrAll(t *testing.T) {
	t.Parallel()
	cluster := servicestest.StartRedisCluster(t, nil)
	for _, hosts := range [][]string{cluster.Addrs()[:1], cluster.Addrs()} {
		client := connect(t, "redis://"+strings.Join(hosts, ","), nil)
		if client.Mode() != rueidis.ClientModeCluster || len(client.Nodes()) != 3 {
			t.Errorf("by %v: mode %v with %d nodes", hosts, client.Mode(), len(client.Nodes()))
		}
		store, err := New(t.Context(), client, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lifeOf(t.Context(), store); err != nil {
			t.Error(err)
		}
	}
	f := newFilter(t, connect(t, "redis://"+strings.Join(cluster.Addrs(), ","), nil), FilterOptions{Rate: 1e-6})
	for _, want := range []int{0, 100} {
		if n := count(t, f, idsFrom("s", 0, 100)); n != want {
			t.Errorf("a filter in a cluster: %d keys are maybe there; want %d", n, want)
		}
		if err := f.Add(t.Context(), idsFrom("s", 0, 100)); err != nil {
			t.Error(err)
		}
	}
}

func TestConnectBySentinelFindsTheMaster(t *testing.T) {
	t.Parallel()
	s := servicestest.StartRedisSentinel(t, nil)
	client, store := sentinelStore(t, s)
	if _, ok := client.Nodes()[s.Master.Addr()]; !ok || client.Mode() != rueidis.ClientModeSentinel {
		t.Errorf("mode %v, nodes %v; want the master %s", client.Mode(), client.Nodes(), s.Master.Addr())
	}
	if err := lifeOf(t.Context(), store); err != nil {
		t.Error(err)
	}
	if f := find(t, examine(t, client, nil), "role"); f.Severity != doctor.Fine {
		t.Errorf("%+v", f)
	}
	_, err := NewClient(t.Context(), "redis://"+strings.Join(s.Addrs(), ","), &ClientOptions{Master: "another", ConnectTimeout: time.Second})
	if !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("an unknown master: %v; want unavailable", err)
	}
}

// authority signs certificates for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key, _, _ = a.issue("authority of a test", true)
	return a
}

// issue returns a certificate for this machine, also in PEM, and its key. The
// authority signs it. The authority's own certificate is self-signed.
func (a *authority) issue(name string, ca bool) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(mathrand.Int64()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA:        ca, BasicConstraintsValid: true,
		DNSNames: []string{"redis.example"},
	}
	parent, signer := a.cert, a.key
	if ca {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// file writes a file for the test and returns its name.
func (a *authority) file(name string, data []byte) string {
	a.t.Helper()
	path := filepath.Join(a.t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// startTLS starts a server that requires certificates of the authority, and
// returns its TLS address. Not every build of the server supports TLS.
func startTLS(t *testing.T, a *authority) string {
	t.Helper()
	_, _, cert, key := a.issue("server", false)
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	server := servicestest.StartRedis(t, &services.RedisOptions{
		Version: services.Redis70,
		Files:   map[string][]byte{"server.crt": cert, "server.key": key, "ca.crt": root},
		Args:    []string{"--tls-cert-file", "server.crt", "--tls-key-file", "server.key", "--tls-ca-cert-file", "ca.crt", "--tls-auth-clients", "yes"},
	})
	var port string
	eventually(t, func() bool { // another program may take the port
		port = strconv.Itoa(15000 + mathrand.IntN(7000))
		_, err := services.RedisDo(t.Context(), server.Addr(), "CONFIG", "SET", "tls-port", port)
		if err != nil {
			t.Log(err)
		}
		return err == nil
	}, "the server listens for TLS")
	return net.JoinHostPort("127.0.0.1", port)
}

// tlsFiles names the files of a TLS configuration of a client.
type tlsFiles struct{ ca, certificate, key, serverName string }

func (f tlsFiles) config(t *testing.T) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: f.serverName}
	authorities, err := os.ReadFile(f.ca)
	if err != nil || !c.RootCAs.AppendCertsFromPEM(authorities) {
		t.Fatal(f.ca, err)
	}
	if f.certificate != "" {
		pair, err := tls.LoadX509KeyPair(f.certificate, f.key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

func TestTLSVerifiesBothSides(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	addr := startTLS(t, a)
	_, _, cert, key := a.issue("client", false)
	stranger := newAuthority(t)
	_, _, strangeCert, strangeKey := stranger.issue("client", false)
	root := a.file("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	strange := a.file("strange.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.cert.Raw}))
	certFile, keyFile := a.file("client.crt", cert), a.file("client.key", key)

	for name, test := range map[string]struct {
		scheme string
		files  tlsFiles
		ok     bool
	}{
		"both":                   {"rediss", tlsFiles{root, certFile, keyFile, "redis.example"}, true},
		"both by options alone":  {"redis", tlsFiles{root, certFile, keyFile, "redis.example"}, true},
		"unknown server":         {"rediss", tlsFiles{strange, certFile, keyFile, "redis.example"}, false},
		"server of another name": {"rediss", tlsFiles{root, certFile, keyFile, "other.example"}, false},
		"name of the dialled":    {"rediss", tlsFiles{root, certFile, keyFile, ""}, false},
		"no client certificate":  {"rediss", tlsFiles{root, "", "", "redis.example"}, false},
		"unknown client": {"rediss", tlsFiles{root, a.file("s.crt", strangeCert), a.file("s.key", strangeKey),
			"redis.example"}, false},
	} {
		config := test.files.config(t)
		client, err := NewClient(t.Context(), test.scheme+"://"+addr, &ClientOptions{TLS: config, ConnectTimeout: time.Minute})
		switch {
		case test.ok && err != nil:
			t.Errorf("%s: %v", name, err)
		case !test.ok && !errors.Is(err, semel.ErrStoreUnavailable):
			t.Errorf("%s: %v; want it refused", name, err)
		case err == nil:
			if err := ping(t.Context(), client); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if f := find(t, examine(t, client, nil), "connection"); f.Found != "TLS" || f.Severity != doctor.Fine {
				t.Errorf("%s: %+v", name, f)
			}
			client.Close()
		}
	}
	if _, err := NewClient(t.Context(), "redis://"+addr, &ClientOptions{ConnectTimeout: time.Second}); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("without TLS: %v; want it refused", err)
	}
}
