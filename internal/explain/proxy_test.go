package explain

import (
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
)

// routes returns the promises of the routes of a proxy.
func routes(t *testing.T, section string) []*Promise {
	t.Helper()
	const stores = "stores:\n  keys: { embedded: { path: ./keys } }\n  late: { embedded: { path: ./late, fsync: interval } }\n  db: { postgres: { dsn: 'host=h dbname=d password=canary-1f7b' } }\n  cache: { redis: { url: 'redis://:canary-1f7b@h' } }\n  mem: { memory: {} }\n"
	f, err := kind.All().Parse("c.yaml", []byte(stores+"proxy:\n  upstream: http://s:9000\n  scope: header:X-Api-Key\n"+section), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, section)
	}
	return Routes(f)
}

// TestExplainStatesThePromiseOfEachRoute is the table of what a proxy promises.
func TestExplainStatesThePromiseOfEachRoute(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		section, second string
		because         string // a part of a reason
		says            string // a part of the whole text
	}{
		{"  store: keys\n", Yes, "", "the key is unknown as soon as the proxy runs again, until an operator resolves it: semel keys resolve the client gets no answer; its repetition gets 409 /outcome-unknown"},
		{"  store: db\n", Yes, "", "the claim lasts until its lease ends, at most 30s; then the key is unknown"},
		{"  store: db\n  lease: 5s\n", Yes, "", "a proxy is stopped for longer than the lease of 5s: the key is unknown; the answer of the stopped proxy is refused by its token"},
		{"  store: db\n  on_lease_expired: retry\n", Unless, "after a crash in the middle of a request", "its repetition gets 409 /in-flight until the lease ends, and then runs"},
		{"  store: late\n", Unless, "a power loss forgets the keys since the last sync (fsync: interval)", ""},
		{"  store: cache\n", BestEffort, "a failover or an eviction can lose keys", ""},
		{"  store: mem\n", Unless, "every key is lost when the proxy ends", "the key is lost with the process the client gets no answer; its repetition runs"},
		{"  store: keys\n  fail_open: true\n", Unless, "(fail_open: true)", "passed on without protection (fail_open) the client gets the answer, with Idempotency-Status: unprotected"},
		{"  store: keys\n", Yes, "", "nothing is sent the client gets 503 /store-unavailable"},
		{"  store: keys\n  profile: paypal\n", Unless, "its repetition runs (release: 401, 403, 408, 425, 429, 5xx)", "PayPal-Request-Id of POST"},
		{"  store: keys\n  profile: square\n", Yes, "", "another request with the same key gets 400 /key-reused"},
		{"  store: keys\n  profile: square\n", Yes, "", "member /idempotency_key of the body of POST, PUT"},
		{"  store: keys\n  profile: oasis\n  release: []\n", Yes, "", "longer ago than the window gets 412 /key-expired"},
		{"  store: keys\n  profile: mcp\n  tools: [pay]\n", Yes, "", "a call of pay without a key gets one from caller, tool and arguments; of other tools, a call without a key passes untouched, and runs as often as it is sent; initialize, lists and all other messages pass untouched"},
		{"  store: keys\n  profile: mcp\n  tools: [pay]\n", Yes, "", "a second call of pay without a key and with the same arguments gets the first result"},
		{"  store: keys\n  profile: mcp\n  required: true\n", Yes, "", "a call without a key is refused with 400 /key-missing; initialize"},
		{"  store: keys\n  profile: mcp\n", Yes, "", "Idempotency-Key or member /params/_meta/idempotencyKey of calls of tools of POST"},
		{"  store: keys\n  profile: mcp\n", Yes, "", "a stream ends without the response, also if its client can ask for the rest of it: the tool may have taken the effect"},
		{"  store: keys\n  profile: mcp\n  release: [4xx, -32602, isError]\n", Yes, "", "status or JSON-RPC error 4xx, -32602, isError"},
		{"  store: keys\n  required: true\n", Yes, "", "refused with 400 /key-missing"},
		{"  store: keys\n  strict: true\n", Yes, "", "only keys in double quotes"},
		{"  store: keys\n  wait: 2s\n  window: 7d\n", Yes, "", "waits for its answer for up to 2s, and then gets 409 /in-flight"},
		{"  store: keys\n  window: 7d\n", Yes, "", "the window is 7d"},
		{"  store: keys\n  upstream_timeout: 3s\n", Yes, "", "the service does not answer within 3s"},
		{"  store: keys\n  methods: []\n", No, "each request runs as often as it is sent (methods: [])", ""},
	} {
		all := routes(t, c.section)
		p := all[len(all)-1]
		whole := strings.Join(strings.Fields(p.Text()), " ")
		if p.Route != "default" || p.NothingLost.Holds != Yes || p.NoSecondEffect.Holds != c.second || !strings.Contains(strings.Join(p.NoSecondEffect.Because, "\n"), c.because) || !strings.Contains(whole, c.says) {
			t.Errorf("%s\n%+v\n%s", c.section, p, whole)
		}
		if strings.Contains(fmt.Sprintf("%+v", p), "canary-1f7b") {
			t.Errorf("%s\nsays too much", c.section)
		}
		for _, crash := range p.Crashes {
			if crash.Client == "" || strings.HasPrefix(crash.Client, "its") {
				t.Errorf("%s: what does the client see? %q", crash.At, crash.Client)
			}
		}
	}
}

// TestExplainGivesEachRouteItsOwnReasons checks that a reason of one route is not given for another.
func TestExplainGivesEachRouteItsOwnReasons(t *testing.T) {
	t.Parallel()
	all := routes(t, "  store: keys\n  fail_open: true\n  routes:\n    pay: { path: /pay, fail_open: false }\n    ads: { path: /ads, on_lease_expired: retry }\n")
	got := ""
	for _, p := range all {
		got += fmt.Sprintf("%s: %s %d; ", p.Route, p.NoSecondEffect.Holds, len(p.NoSecondEffect.Because))
		if !strings.Contains(p.Markdown(), "# Route "+p.Route+"\n") || !strings.Contains(p.Markdown(), "The client gets 502 /outcome-unknown") || !strings.Contains(p.Mermaid(), "The client gets 502") {
			t.Errorf("%s", p.Markdown())
		}
	}
	if want := "pay: yes 0; ads: unless 2; default: unless 1; "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
