package proxy

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// The service behind the proxy trusts the header of forward_auth: no client can set it, or
// have it removed as a header of the connection.
func TestClientCannotSetTheForwardedCallerHeader(t *testing.T) {
	t.Parallel()
	h := http.Header{}
	h.Add("X-User", "mallory")
	h.Add("x-user", "eve")
	h.Add("Connection", "keep-alive, x-USER")
	h.Add("Connection", "X-User")
	if disown(h, "X-User"); h["X-User"] != nil || strings.Contains(strings.ToLower(strings.Join(h["Connection"], ",")), "user") {
		t.Errorf("the headers are %v", h)
	}
	if got := strings.TrimSpace(h["Connection"][0]); got != "keep-alive" {
		t.Errorf("Connection is %q", got)
	}
}

// TestCallerIsIdentifiedAsConfigured has the kinds of callers that need no
// other service.
func TestCallerIsIdentifiedAsConfigured(t *testing.T) {
	t.Parallel()
	request := func(set func(r *http.Request)) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		set(r)
		return r
	}
	alice := request(func(r *http.Request) { r.SetBasicAuth("alice", "secret1") })
	for _, c := range []struct {
		caller config.Caller
		r      *http.Request
		want   string // the start of the name; "" if the request is denied
	}{
		{config.Caller{Kind: "global"}, request(func(*http.Request) {}), ""},
		{config.Caller{Kind: "basic"}, alice, "alice:"},
		{config.Caller{Kind: "basic"}, request(func(*http.Request) {}), ""},
		{config.Caller{Kind: "basic"}, request(func(r *http.Request) { r.SetBasicAuth("", "secret1") }), ""},
		{config.Caller{Kind: "header", Name: "X-Tenant"}, request(func(r *http.Request) { r.Header.Set("X-Tenant", "shop") }), config.HashedCaller("shop")},
		{config.Caller{Kind: "header", Name: "X-Tenant"}, request(func(*http.Request) {}), ""},
		{config.Caller{Kind: "mtls"}, request(func(*http.Request) {}), ""},
	} {
		of, err := callerOf(&config.Proxy{Caller: c.caller})
		if err != nil {
			t.Fatal(err)
		}
		got, err := of(c.r)
		if denied := errors.As(err, new(*httpidem.Denied)); c.caller.Kind == "global" && err != nil || c.caller.Kind != "global" && denied != (c.want == "") || !strings.HasPrefix(got, c.want) || strings.Contains(got, "secret1") {
			t.Errorf("%s: %q, %v; want %q", c.caller, got, err, c.want)
		}
	}
	other := request(func(r *http.Request) { r.SetBasicAuth("alice", "secret2") })
	first, _ := credentials(alice)
	if second, err := credentials(other); err != nil || second == first {
		t.Errorf("a user with another password is the same caller: %q, %v", second, err)
	}
	if _, err := callerOf(&config.Proxy{Caller: config.Caller{Kind: "none"}}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("an unknown kind: %v", err)
	}
	for _, kind := range []config.Caller{{Kind: "api-key", Name: "X-Api-Key"}, {Kind: "forward", Name: "X-User"}, {Kind: "jwt", Name: "sub"}} {
		p := &config.Proxy{Caller: kind, Identity: config.Identity{APIKeys: map[string]string{strings.Repeat("ab", 32): "shop"}, ForwardAuth: "http://127.0.0.1:1/", JWTSecret: schema.NewSecret(strings.Repeat("s", 32))}}
		if of, err := callerOf(p); err != nil || of == nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// TestCallersThatCannotBeCheckedAreLoggedNowAndThen has a service that names no callers for
// a while.
func TestCallersThatCannotBeCheckedAreLoggedNowAndThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var fails error = &httpidem.Denied{Status: http.StatusServiceUnavailable, Err: errors.New("no route to host")}
		scope := logUnchecked(func(*http.Request) (string, error) { return "", fails }, slog.New(slog.NewTextHandler(&log, nil)))
		ask := func(times int) {
			for range times {
				if _, err := scope(httptest.NewRequest(http.MethodPost, "/", nil)); err != fails {
					t.Errorf("%v", err)
				}
			}
		}
		ask(3)
		time.Sleep(logEvery)
		ask(1)
		fails = &httpidem.Denied{Status: http.StatusUnauthorized}
		time.Sleep(logEvery)
		ask(1)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "requests=1") || !strings.Contains(lines[1], "requests=3") || !strings.Contains(lines[0], "no route to host") {
			t.Errorf("%q", lines)
		}
	})
}
