package caller_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem/caller"
)

type claims map[string]any

// sign returns a token. The claims exp and sub are there unless others replace them.
func sign(t *testing.T, algorithm jose.SignatureAlgorithm, key any, id string, extra claims) string {
	t.Helper()
	all := claims{"sub": "alice", "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, extra)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	payload, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signature.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// keySet is a service that has a JWK set. It is the transport of a client.
type keySet struct {
	mu    sync.Mutex
	keys  map[string]crypto.Signer
	down  bool
	reads int
}

func (s *keySet) text(t *testing.T) string {
	t.Helper()
	set := struct {
		Keys []any `json:"keys"`
	}{[]any{map[string]string{"kty": "unheard-of"}}}
	for id, key := range s.keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Use: "sig"})
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (s *keySet) client(t *testing.T) *http.Client {
	return &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reads++; s.down {
			return nil, errors.New("the issuer is down")
		}
		return &http.Response{StatusCode: 200, Status: "200 OK", Body: io.NopCloser(strings.NewReader(s.text(t))), Request: r}, nil
	})}
}

func (s *keySet) mustHaveRead(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reads != n {
		t.Errorf("the keys were read %d times, want %d", s.reads, n)
	}
}

func with(token string) *http.Request { return request("Authorization", "Bearer "+token) }

func TestATokenNamesTheCaller(t *testing.T) {
	t.Parallel()
	key, other := newKey(t), newKey(t)
	file := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(file, []byte((&keySet{keys: map[string]crypto.Signer{"1": key}}).text(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	of, err := caller.JWT(&caller.JWTOptions{Keys: file, Issuer: "https://issuer.example", Audience: "orders"})
	of = must(t, of, err)
	right := claims{"iss": "https://issuer.example", "aud": []string{"other", "orders"}}
	also := func(extra claims) claims {
		c := maps.Clone(right)
		maps.Copy(c, extra)
		return c
	}
	now := time.Now()
	mustName(t, of, with(sign(t, jose.ES256, key, "1", right)), "alice", 0)
	mustName(t, of, with(sign(t, jose.ES256, key, "", right)), "alice", 0)
	mustName(t, of, with(sign(t, jose.ES256, key, "1", also(claims{"exp": now.Add(-30 * time.Second).Unix()}))), "alice", 0) // clocks differ
	public, err := json.Marshal(jose.JSONWebKey{Key: key.Public(), KeyID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range map[string]string{
		"another key":        sign(t, jose.ES256, other, "1", right),
		"an unknown key":     sign(t, jose.ES256, other, "2", right),
		"another issuer":     sign(t, jose.ES256, key, "1", also(claims{"iss": "https://evil.example"})),
		"another audience":   sign(t, jose.ES256, key, "1", also(claims{"aud": "billing"})),
		"no audience":        sign(t, jose.ES256, key, "1", also(claims{"aud": nil})),
		"expired":            sign(t, jose.ES256, key, "1", also(claims{"exp": now.Add(-2 * time.Minute).Unix()})),
		"no expiry":          sign(t, jose.ES256, key, "1", also(claims{"exp": nil})),
		"not valid yet":      sign(t, jose.ES256, key, "1", also(claims{"nbf": now.Add(2 * time.Minute).Unix()})),
		"no subject":         sign(t, jose.ES256, key, "1", also(claims{"sub": nil})),
		"a number":           sign(t, jose.ES256, key, "1", also(claims{"sub": 1})),
		"no signature":       "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.",
		"no token":           "abc",
		"public key as HMAC": sign(t, jose.HS256, public, "1", right),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if d := mustName(t, of, with(token), "", 401); !strings.HasPrefix(d.Challenge, `Bearer error="invalid_token"`) || strings.Contains(d.Detail, token) {
				t.Errorf("the refusal is %q with %q", d.Detail, d.Challenge)
			}
		})
	}
	mustName(t, of, request(), "", 401)
	mustName(t, of, request("Authorization", "Basic YTpi"), "", 401)
}

func TestJWTMayBeSignedWithASharedSecret(t *testing.T) {
	t.Parallel()
	secret := []byte(strings.Repeat("s", 32))
	of, err := caller.JWT(&caller.JWTOptions{Secret: secret, Claim: "azp"})
	of = must(t, of, err)
	mustName(t, of, with(sign(t, jose.HS256, secret, "", claims{"azp": "shop"})), "shop", 0)
	mustName(t, of, with(sign(t, jose.HS512, []byte(strings.Repeat("s", 64)), "", claims{"azp": "shop"})), "", 401)
	mustName(t, of, with(sign(t, jose.HS256, []byte(strings.Repeat("x", 32)), "", claims{"azp": "shop"})), "", 401)
}

// This test is not parallel. The library's encoder of a type waits for itself while it
// is made, and the runtime panics if one side of such a wait is in a bubble.
func TestJWTKeySetIsRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newKey(t), newKey(t)
		service := &keySet{keys: map[string]crypto.Signer{"1": one}, down: true}
		of, err := caller.JWT(&caller.JWTOptions{Keys: "https://issuer.example/keys", Client: service.client(t)})
		of = must(t, of, err)
		token := func(key *ecdsa.PrivateKey, id string) *http.Request {
			return with(sign(t, jose.ES256, key, id, claims{"exp": time.Now().Add(1000 * time.Hour).Unix()}))
		}
		mustName(t, of, token(one, "1"), "", 503)
		service.down = false
		mustName(t, of, token(one, "1"), "", 503) // not more often than every 10 s
		service.mustHaveRead(t, 1)
		time.Sleep(10 * time.Second)
		var running sync.WaitGroup
		for range 20 { // the first requests wait for one read
			running.Go(func() { mustName(t, of, token(one, "1"), "alice", 0) })
		}
		running.Wait()
		service.mustHaveRead(t, 2)

		service.keys["2"] = two // a new key is found when it is needed
		mustName(t, of, token(two, "2"), "", 401)
		time.Sleep(10 * time.Second)
		mustName(t, of, token(two, "2"), "alice", 0)
		for range 20 {
			mustName(t, of, token(two, "3"), "", 401)
		}
		service.mustHaveRead(t, 3)

		delete(service.keys, "1") // a key that was withdrawn ends after some minutes
		time.Sleep(4 * time.Minute)
		mustName(t, of, token(one, "1"), "alice", 0)
		time.Sleep(2 * time.Minute)
		mustName(t, of, token(one, "1"), "", 401)

		service.down = true // old keys count for a day
		time.Sleep(23 * time.Hour)
		mustName(t, of, token(two, "2"), "alice", 0)
		time.Sleep(2 * time.Hour)
		mustName(t, of, token(two, "2"), "", 503)
	})
}

func TestInvalidJWTOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*caller.JWTOptions{
		"Keys, Secret": nil,
		"Secret: it":   {Secret: []byte("short")},
		"Algorithms":   {Keys: "keys.json", Algorithms: []string{"HS256"}},
	} {
		if _, err := caller.JWT(opts); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}
