package proxycmd_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// twice sends a request as two callers, twice for each caller, and checks that it runs once for
// each of them.
func twice(t *testing.T, service *countingService, url, key string, alice, bob []string) {
	t.Helper()
	for i, caller := range [][]string{alice, alice, bob, bob} {
		if got := post(t, url+"/orders", key, "x", caller...); got.status != http.StatusCreated || (got.header.Get("Idempotent-Replayed") == "true") != (i%2 == 1) {
			t.Errorf("request %d with the key %s: %+v", i, key, got)
		}
	}
	if n := service.count(key); n != 2 {
		t.Errorf("%s ran %d times for two callers", key, n)
	}
}

func basic(user, password string) []string {
	return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}
}

func TestProxyKnowsCallersByTheirPassword(t *testing.T) {
	t.Parallel()
	service := newCountingService(t)
	stores := programtest.WriteFile(t, filepath.Join(t.TempDir(), "stores.yaml"), "stores: { keys: { embedded: { path: ./keys } }, other: { memory: {} } }\n")
	proxy := startProxy(t, "--listen", "127.0.0.1:0", "--upstream", service.URL, "--scope", "basic", "--admin", "off", "--store-config", stores, "--store-name", "keys", "--wait", "1m")
	twice(t, service, proxy.url, "k", basic("alice", "one"), basic("alice", "two"))
	post(t, proxy.url+"/orders", "k", "x").problem(t, http.StatusUnauthorized, "scope-missing")
	keys := filepath.Join(filepath.Dir(stores), "keys")
	shown := programtest.Run(t, "", "keys", "show", "k", "--caller", "alice", "--store", keys)
	if shown.Status != term.ExitDone || strings.Count(shown.Stdout, "state        done\n") != 2 {
		t.Errorf("the keys of two passwords of alice: %+v", shown)
	}
	programtest.Run(t, "", "keys", "show", "k", "--caller", "ali", "--store", keys).Check(t, term.ExitFailed, "absent")
	programtest.Run(t, "", "keys", "rm", "k", "--caller", "alice", "--reason", "test", "--store", keys).Check(t, term.ExitFailed, "absent", "the password belongs to the caller: semel keys show finds its keys, such as that of --caller alice:")

	// A repetition waits for the first answer.
	answers := make(chan answer, 2)
	for range 2 {
		go func() {
			got, err := send(http.MethodPost, proxy.url+"/wait", "w", "x", basic("alice", "one")...)
			if err != nil {
				got.body = err.Error()
			}
			answers <- got
		}()
	}
	<-service.reached
	close(service.release)
	if one, two := <-answers, <-answers; one.status != http.StatusCreated || one.body != two.body || service.count("w") != 1 {
		t.Errorf("%+v and %+v after %d runs", one, two, service.count("w"))
	}
}

func TestProxyKnowsCallersByTheirToken(t *testing.T) {
	t.Parallel()
	service := newCountingService(t)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"keys":[{"kty":"EC","crv":"P-256","x":%q,"y":%q,"kid":"1"}]}`, encode(point[1:33]), encode(point[33:]))
	}))
	t.Cleanup(keys.Close)
	signed := func(subject string) []string {
		text := encode([]byte(`{"alg":"ES256","kid":"1"}`)) + "." + encode([]byte(fmt.Sprintf(`{"sub":%q,"exp":%d}`, subject, time.Now().Add(time.Hour).Unix())))
		return []string{"Authorization", "Bearer " + text + "." + encode(signature(t, private, text))}
	}
	proxy := startProxy(t, "--listen", "127.0.0.1:0", "--upstream", service.URL, "--scope", "jwt:sub", "--jwt-keys", keys.URL, "--admin", "off", "--store", filepath.Join(t.TempDir(), "keys"))
	twice(t, service, proxy.url, "k", signed("alice"), signed("bob"))
	forged := signed("alice")
	forged[1] = forged[1][:len(forged[1])-4] + "AAAA"
	post(t, proxy.url+"/orders", "k", "x", forged...).problem(t, http.StatusUnauthorized, "scope-missing")
}

// signature signs a text as ES256 does.
func signature(t *testing.T, private *ecdsa.PrivateKey, text string) []byte {
	t.Helper()
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, private, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	both := make([]byte, 64)
	r.FillBytes(both[:32])
	s.FillBytes(both[32:])
	return both
}

func TestProxyAsksAServiceForTheCaller(t *testing.T) {
	t.Parallel()
	service := newCountingService(t)
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch user, password, _ := r.BasicAuth(); {
		case user == "mallory":
			w.WriteHeader(http.StatusForbidden)
		case password != "right":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.Header().Set("X-User", user)
		}
	}))
	t.Cleanup(auth.Close)
	proxy := startProxy(t, proxyFile(t, t.TempDir(), service.URL, "  scope: forward:X-User\n  forward_auth: "+auth.URL+"\n"))
	twice(t, service, proxy.url, "k", basic("alice", "right"), basic("bob", "right"))
	post(t, proxy.url+"/orders", "k", "x", basic("alice", "wrong")...).problem(t, http.StatusUnauthorized, "scope-missing")
	if got := post(t, proxy.url+"/orders", "k", "x", basic("mallory", "right")...); got.status != http.StatusForbidden {
		t.Errorf("%+v", got)
	}
}

func TestProxyKnowsCallersByTheirCertificate(t *testing.T) {
	t.Parallel()
	service, dir := newCountingService(t), t.TempDir()
	roots := programtest.SelfSign(t, dir)
	var clients []*http.Client
	var authorities []byte
	for i, name := range []string{"alice", "bob", "eve"} {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 2)), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
		if err != nil {
			t.Fatal(err)
		}
		if name != "eve" {
			authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
		client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}}}
		t.Cleanup(client.CloseIdleConnections)
		clients = append(clients, client)
	}
	programtest.WriteFile(t, filepath.Join(dir, "clients.pem"), string(authorities))
	proxy := startProxy(t, proxyFile(t, dir, service.URL, "  scope: mtls\n  tls: { certificate: cert.pem, key: key.pem, client_ca: clients.pem }\n"))
	for i, client := range []*http.Client{clients[0], clients[0], clients[1]} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, proxy.url+"/orders", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Idempotency-Key", "k")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.ProtoMajor != 2 || response.StatusCode != http.StatusCreated || (response.Header.Get("Idempotent-Replayed") == "true") != (i == 1) {
			t.Errorf("request %d: %+v", i, response)
		}
	}
	if response, err := clients[2].Get(proxy.url + "/orders"); err == nil {
		_ = response.Body.Close()
		t.Errorf("a certificate of another authority: %s", response.Status)
	}
	programtest.Run(t, "", "keys", "show", "k", "--caller", "dns:alice", "--store", filepath.Join(dir, "keys")).Check(t, term.ExitDone)
}

// A client that sends its body too slowly holds no memory for long, and nothing runs.
func TestProxyRefusesABodyThatDoesNotCome(t *testing.T) {
	t.Parallel()
	service := newCountingService(t)
	proxy := startProxy(t, proxyFile(t, t.TempDir(), service.URL, "  scope: global\n  body_timeout: 1s\n"))
	waiting := make(chan answer, 1)
	go func() {
		got, err := send(http.MethodPost, proxy.url+"/wait", "w", "x")
		if err != nil {
			got.body = err.Error()
		}
		waiting <- got
	}()
	<-service.reached
	conn, err := net.Dial("tcp", strings.TrimPrefix(proxy.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 10\r\n\r\nabc")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var said struct{ Type string }
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil || response.StatusCode != http.StatusBadRequest || !strings.HasSuffix(said.Type, "/body-unreadable") || service.count("k") != 0 {
		t.Errorf("%s %+v %v after %d runs", response.Status, said, err, service.count("k"))
	}
	// The first request waited for longer, with a body that was whole.
	close(service.release)
	if got := <-waiting; got.status != http.StatusCreated {
		t.Errorf("%+v", got)
	}
}
