package idemcheck_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/store/memstore"
)

// target starts an implementation in front of an upstream, and returns the target of the checks.
func target(t *testing.T, wrap func(upstream http.Handler, address *url.URL) http.Handler) idemcheck.Options {
	t.Helper()
	return targetOf(t, idemcheck.NewUpstream(), wrap)
}

// targetOf is target in front of an upstream that others may share.
func targetOf(t *testing.T, upstream *idemcheck.Upstream, wrap func(upstream http.Handler, address *url.URL) http.Handler) idemcheck.Options {
	t.Helper()
	probe := httptest.NewServer(upstream)
	t.Cleanup(probe.Close)
	address, err := url.Parse(probe.URL)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(wrap(upstream, address))
	t.Cleanup(server.Close)
	front, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return idemcheck.Options{Targets: []*url.URL{front}, Probe: address}
}

// lease is short, so that a request can take longer, and long enough to be extended on a
// machine that stands still for seconds.
const lease = 4 * time.Second

func guarded(t *testing.T, next http.Handler, strict bool) http.Handler {
	t.Helper()
	return guardedBy(t, newMemory(t), next, &httpidem.Options{
		Scope:   byPassword,
		Profile: httpidem.Profile{Strict: strict}, MaxBody: 64 << 10, MaxResponse: 128 << 10,
	})
}

func newMemory(t *testing.T) *memstore.Store {
	t.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// byPassword is a scope that checks the secret of a caller.
func byPassword(r *http.Request) (string, error) {
	name, password, _ := r.BasicAuth()
	if password != secretOf(name) {
		return "", nil
	}
	return name, nil
}

func guardedBy(t *testing.T, store semel.Store, next http.Handler, opts *httpidem.Options) http.Handler {
	t.Helper()
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold, Lease: lease, Heartbeat: lease / 10})
	if err != nil {
		t.Fatal(err)
	}
	opts.Go = func(recorded func()) { recorded() } // a client gets no answer before it is recorded
	handler, err := httpidem.New(guard, next, opts)
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

func secretOf(name string) string { return name + "'s secret" }

func basic(name string) http.Header {
	r := &http.Request{Header: http.Header{}}
	r.SetBasicAuth(name, secretOf(name))
	return r.Header
}

// mustMeet runs all checks.
func mustMeet(t *testing.T, opts idemcheck.Options) {
	t.Helper()
	report := check(t, opts)
	if len(report.Items) != 62 {
		t.Errorf("there are %d items, want 62", len(report.Items))
	}
	for _, item := range report.Missed(true) {
		t.Errorf("item %d: %s: %s: %s", item.Number, item.Name, item.Result, item.Seen)
	}
	for _, item := range report.Items {
		t.Logf("%d %s %s %s", item.Number, item.Result, item.Name, item.Seen)
	}
}

func check(t *testing.T, opts idemcheck.Options) *idemcheck.Report {
	t.Helper()
	opts.Caller, opts.Other = basic("alice"), basic("bob")
	opts.MaxBody, opts.MaxResponse, opts.Lease = 64<<10, 128<<10, lease
	report, err := idemcheck.Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestMiddlewarePassesAllConformanceItems(t *testing.T) {
	t.Parallel()
	for name, strict := range map[string]bool{"lenient": false, "strict": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustMeet(t, target(t, func(upstream http.Handler, _ *url.URL) http.Handler { return guarded(t, upstream, strict) }))
		})
	}
}

// TestMiddlewareOfEachProfileIsCheckedWithItsProfile has header, marker, methods, longest
// key and statuses of the profile on both sides. A profile may differ from practice.
func TestMiddlewareOfEachProfileIsCheckedWithItsProfile(t *testing.T) {
	t.Parallel()
	for _, profile := range httpidem.Profiles() {
		t.Run(profile.Name, func(t *testing.T) {
			t.Parallel()
			opts := target(t, func(upstream http.Handler, _ *url.URL) http.Handler {
				return guardedBy(t, newMemory(t), upstream, &httpidem.Options{
					Scope: byPassword, Profile: profile, MaxBody: 64 << 10, MaxResponse: 128 << 10,
				})
			})
			opts.Profile = profile
			if profile.Name == "square" {
				if _, err := idemcheck.Run(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "square has its key in the body") {
					t.Errorf("a profile without a header gives %v", err)
				}
				return
			}
			for _, item := range check(t, opts).Missed(false) {
				t.Errorf("item %d: %s: %s: %s", item.Number, item.Name, item.Result, item.Seen)
			}
		})
	}
}

func TestProxyPassesAllConformanceItems(t *testing.T) {
	t.Parallel()
	mustMeet(t, target(t, func(_ http.Handler, address *url.URL) http.Handler {
		proxy, err := httpidem.NewProxy(&httpidem.ProxyOptions{Target: address, Timeout: 4 * lease})
		if err != nil {
			t.Fatal(err)
		}
		return guarded(t, proxy, false)
	}))
}

// The items about calls of tools: the middleware and the proxy pass them, and a target without
// keys fails.
func TestItemsAboutCallsOfTools(t *testing.T) {
	t.Parallel()
	profile, _ := httpidem.ProfileNamed("mcp")
	calls := func(next http.Handler) http.Handler {
		return guardedBy(t, newMemory(t), next, &httpidem.Options{Scope: byPassword, Profile: profile})
	}
	for name, c := range map[string]struct {
		wrap   func(http.Handler, *url.URL) http.Handler
		passes bool
	}{
		"handler": {func(upstream http.Handler, _ *url.URL) http.Handler { return calls(upstream) }, true},
		"proxy": {func(_ http.Handler, address *url.URL) http.Handler {
			proxy, err := httpidem.NewProxy(&httpidem.ProxyOptions{Target: address})
			if err != nil {
				t.Fatal(err)
			}
			return calls(proxy)
		}, true},
		"no keys": {func(upstream http.Handler, _ *url.URL) http.Handler { return upstream }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := target(t, c.wrap)
			opts.Profile, opts.Caller, opts.Other = profile, basic("alice"), basic("bob")
			report, err := idemcheck.Run(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Items) != 16 {
				t.Errorf("there are %d items", len(report.Items))
			}
			// Without keys, each of these items is met.
			met := map[int]bool{71: true, 72: true, 74: true, 78: true}
			for _, item := range report.Items {
				if passed := item.Result == idemcheck.Passed; passed != (c.passes || met[item.Number]) {
					t.Errorf("item %d: %s: %s: %s", item.Number, item.Name, item.Result, item.Seen)
				}
			}
		})
	}
}
