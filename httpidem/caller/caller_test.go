package caller_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/caller"
)

type scope = func(*http.Request) (string, error)

func must(t *testing.T, of scope, err error) scope {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// request returns a request with these headers, as name and value one after the other.
func request(h ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "http://api.example/orders?x=1", strings.NewReader("body"))
	for i := 0; i < len(h); i += 2 {
		r.Header.Add(h[i], h[i+1])
	}
	return r
}

// mustName checks the name of a caller. If status is not 0, it checks the refusal.
func mustName(t *testing.T, of scope, r *http.Request, want string, status int) *httpidem.Denied {
	t.Helper()
	name, err := of(r)
	var denied *httpidem.Denied
	if status == 0 && err != nil || status != 0 && !errors.As(err, &denied) {
		t.Fatalf("%v: the caller is %q, %v", r.Header, name, err)
	}
	if got := 401; denied != nil {
		if denied.Status != 0 {
			got = denied.Status
		}
		if got != status {
			t.Errorf("%v: the status is %d, want %d: %v", r.Header, got, status, err)
		}
	}
	if name != want {
		t.Errorf("%v: the caller is %q, want %q", r.Header, name, want)
	}
	return denied
}

func TestAHeaderNamesTheCaller(t *testing.T) {
	t.Parallel()
	of, err := caller.Header("x-user")
	of = must(t, of, err)
	mustName(t, of, request("X-User", "alice"), "alice", 0)
	mustName(t, of, request(), "", 401)
	mustName(t, of, request("X-User", ""), "", 401)
	mustName(t, of, request("X-User", "alice", "X-User", "bob"), "", 401)
	for _, name := range []string{"", "authorization", "Cookie"} {
		if _, err := caller.Header(name); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestBasicNamesAUserWhosePasswordIsRight(t *testing.T) {
	t.Parallel()
	if _, err := caller.Basic(nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("without a check: %v", err)
	}
	down := errors.New("the directory is down")
	of, err := caller.Basic(func(_ context.Context, user, password string) (bool, error) {
		if user == "down" {
			return true, down
		}
		return password == "secret", nil
	})
	of = must(t, of, err)
	with := func(user, password string) *http.Request {
		r := request()
		r.SetBasicAuth(user, password)
		return r
	}
	mustName(t, of, with("alice", "secret"), "alice", 0)
	if d := mustName(t, of, with("alice", "wrong"), "", 401); !strings.HasPrefix(d.Challenge, "Basic ") {
		t.Errorf("the challenge is %q", d.Challenge)
	}
	mustName(t, of, with("", "secret"), "", 401)
	mustName(t, of, request("Authorization", "Bearer x"), "", 401)
	twice := with("alice", "secret")
	twice.Header.Add("Authorization", "Basic eDp5")
	mustName(t, of, twice, "", 401)
	if d := mustName(t, of, with("down", ""), "", 503); !errors.Is(d, down) {
		t.Errorf("the cause is %v", d)
	}
}

func TestAnAPIKeyHasAName(t *testing.T) {
	t.Parallel()
	digest := func(key string) string {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	names := map[string]string{digest("old"): "alice", digest("new"): "alice", digest("k"): "bob"}
	of, err := caller.APIKey("x-api-key", names)
	of = must(t, of, err)
	for key, name := range map[string]string{"old": "alice", "new": "alice", "k": "bob"} {
		mustName(t, of, request("X-Api-Key", key), name, 0)
	}
	mustName(t, of, request("X-Api-Key", digest("k")), "", 401)
	mustName(t, of, request(), "", 401)
	of, err = caller.APIKey("Authorization", names)
	of = must(t, of, err)
	mustName(t, of, request("Authorization", "bearer k"), "bob", 0)
	mustName(t, of, request("Authorization", "k"), "", 401)
	for _, wrong := range []map[string]string{nil, {"abc": "alice"}, {digest("k"): ""}, {"k": "alice"}} {
		if _, err := caller.APIKey("X-Api-Key", wrong); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

func TestACertificateNamesTheCaller(t *testing.T) {
	t.Parallel()
	of, later := caller.MTLS(), time.Now().Add(time.Hour)
	with := func(leaf *x509.Certificate) *http.Request {
		r := request()
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
		return r
	}
	spiffe := &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/billing"}
	subject := pkix.Name{CommonName: "billing", Organization: []string{"Example"}}
	mustName(t, of, with(&x509.Certificate{NotAfter: later, Subject: subject, DNSNames: []string{"a"}, URIs: []*url.URL{spiffe}}), "uri:spiffe://example.org/billing", 0)
	mustName(t, of, with(&x509.Certificate{NotAfter: later, Subject: subject, DNSNames: []string{"b", "a"}}), "dns:a,b", 0)
	mustName(t, of, with(&x509.Certificate{NotAfter: later, Subject: subject}), "subject:CN=billing,O=Example", 0)
	mustName(t, of, with(&x509.Certificate{NotAfter: later}), "", 401)
	mustName(t, of, with(&x509.Certificate{NotAfter: time.Now().Add(-time.Second), Subject: subject}), "", 401)
	mustName(t, of, request(), "", 401)
	unverified := with(&x509.Certificate{NotAfter: later, Subject: subject})
	unverified.TLS.VerifiedChains = nil
	mustName(t, of, unverified, "", 401)
}

func TestForwardAsksTheAuthenticationService(t *testing.T) {
	t.Parallel()
	var asked *http.Request
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > 0 {
			t.Errorf("the service got a body: %q, %v", body, err)
		}
		switch r.Header.Get("Authorization") {
		case "alice":
			w.Header().Set("X-Auth-User", "alice")
			w.WriteHeader(http.StatusNoContent)
		case "nameless":
		case "revoked":
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			w.WriteHeader(http.StatusUnauthorized)
		case "forbidden":
			w.WriteHeader(http.StatusForbidden)
		case "login":
			w.Header().Set("X-Auth-User", "alice")
			http.Redirect(w, r, "/login", http.StatusFound)
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(service.Close)
	of, err := caller.Forward(service.URL+"/check", "x-auth-user", nil)
	of = must(t, of, err)
	mustName(t, of, request("Authorization", "alice", "X-Forwarded-Uri", "/lie", "Connection", "X-Secret", "X-Secret", "s", "Cookie", "c=1"), "alice", 0)
	for name, want := range map[string]string{
		"X-Forwarded-Method": "POST", "X-Forwarded-Uri": "/orders?x=1", "X-Forwarded-Host": "api.example", "X-Forwarded-Proto": "http",
		"X-Forwarded-For": "192.0.2.1", "Cookie": "c=1", "X-Secret": "",
	} {
		if got := asked.Header.Get(name); got != want || len(asked.Header[name]) > 1 {
			t.Errorf("%s: the service got %q, want %q", name, asked.Header[name], want)
		}
	}
	if asked.Method != http.MethodGet || asked.URL.Path != "/check" {
		t.Errorf("the service got %s %s", asked.Method, asked.URL)
	}
	lying := request("Authorization", "alice", "X-Auth-User", "bob")
	if mustName(t, of, lying, "alice", 0); lying.Header.Get("X-Auth-User") != "alice" || asked.Header["X-Auth-User"] != nil {
		t.Errorf("the handler gets the caller %q, and the service was asked with %q", lying.Header["X-Auth-User"], asked.Header["X-Auth-User"])
	}
	if d := mustName(t, of, request("Authorization", "revoked"), "", 401); d.Challenge != `Bearer error="invalid_token"` {
		t.Errorf("the challenge is %q", d.Challenge)
	}
	mustName(t, of, request("Authorization", "forbidden"), "", 403)
	mustName(t, of, request("Authorization", "nameless"), "", 401)
	mustName(t, of, request("Authorization", "login"), "", 503)
	mustName(t, of, request("Authorization", "broken"), "", 503)
	service.Close()
	mustName(t, of, request("Authorization", "alice"), "", 503)
	for _, wrong := range [][2]string{{"auth.example/check", "X-User"}, {"ftp://auth.example", "X-User"}, {"http://auth.example", ""}} {
		if _, err := caller.Forward(wrong[0], wrong[1], nil); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}
