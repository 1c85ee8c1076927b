package redis_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestStorePassesTheKindSuite(t *testing.T) {
	kindtest.Store(t, redis.NewStore, kindtest.Case{
		Least: `{ url: "redis://localhost" }`,
		Secrets: []string{
			`{ url: "redis://u:` + kindtest.Secret + `@localhost" }`,
			`{ cluster: ["h:7000"], password: ` + kindtest.Secret + ` }`,
			`{ sentinel: { addresses: ["h:26379"], master: m, username: u, password: ` + kindtest.Secret + ` } }`,
		},
	})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	cache := kindtest.ReadStore[*redis.Store](t, `{ redis: { url: "redis://app:pa%2Fss@localhost:6379/3", timeout: 500ms, prefix: "cache:", persistence: synced, keep_ids: true, compact: { window: 7d, expect: 1e7 } } }`)
	if cache.URL.Reveal() != "redis://app:pa%2Fss@localhost:6379/3" || cache.URL.String() != "redis://app:[hidden]@localhost:6379/3" ||
		cache.Prefix != "cache:" || cache.Persistence != "synced" || cache.KeepIDs != config.IDsKept ||
		cache.Timeout != 500*time.Millisecond || *cache.Compact != (redis.Compact{Window: 168 * time.Hour, Expect: 1e7}) {
		t.Errorf("%+v", cache)
	}
	many := kindtest.ReadStore[*redis.Store](t, `{ redis: { cluster: ["a:7000", "b:7001"], username: app, password: secret1, tls: { ca: ca.pem } } }`)
	if len(many.Cluster) != 2 || many.Username != "app" || many.Password.Reveal() != "secret1" || many.TLS.CA != filepath.Join("dir", "ca.pem") || many.Persistence != "volatile" {
		t.Errorf("cluster: %+v", many)
	}
	found := kindtest.ReadStore[*redis.Store](t, `{ redis: { sentinel: { addresses: ["s:26379"], master: main, username: u, password: secret2 } } }`)
	if found.Sentinel.Master != "main" || found.Sentinel.Addresses[0] != "s:26379" || found.Sentinel.Username != "u" || found.Sentinel.Password.Reveal() != "secret2" {
		t.Errorf("sentinel: %+v", found.Sentinel)
	}
	for s, want := range map[*redis.Store]string{
		cache: "Redis, redis://app:[hidden]@localhost:6379/3", many: "Redis, the cluster a:7000, b:7001", found: "Redis, the master main of the Sentinels s:26379",
	} {
		if got := s.About().Address; got != want {
			t.Errorf("the address is %q, want %q", got, want)
		}
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithStore("{ redis: { url: 'redis://h', timeout: many, keep_id: true } }"), "stores.s.redis.timeout: \"many\": not a duration: write it like 90s, 36h, 7d or 2w\nunknown field stores.s.redis.keep_id: did you mean keep_ids?"},
		{kindtest.WithStore("{ redis: { url: 'redis://h', timeout: 0 } }"), "stores.s.redis.timeout: \"0\": must be above 0"},
		{kindtest.WithStore("{ redis: { password: p } }"), "stores.s.redis: one of url, cluster, sentinel is missing"},
		{kindtest.WithStore("{ redis: { url: 'redis://h', cluster: ['h:1'] } }"), "stores.s.redis.cluster: url and cluster exclude each other: keep one"},
		{kindtest.WithStore("{ redis: { url: 'http://h' } }"), "stores.s.redis.url: not an address of a Redis server: write redis://user:password@host:6379/0, or rediss:// for TLS"},
		{kindtest.WithStore("{ redis: { url: 'redis://h', username: u } }"), "stores.s.redis.username: write it in the url, redis://user:password@host:port/database"},
		{kindtest.WithStore("{ redis: { url: 'redis://h', tls: {} } }"), "stores.s.redis.tls: a url that starts with redis:// uses no TLS: write rediss://"},
		{kindtest.WithStore("{ redis: { cluster: [h] } }"), "stores.s.redis.cluster[0]: write it like h:6379"},
		{kindtest.WithStore("{ redis: { cluster: 'h:1' } }"), "stores.s.redis.cluster: expected a list, got a text: write [a, b]"},
		{kindtest.WithStore("{ redis: { sentinel: { master: x } } }"), "stores.s.redis.sentinel: addresses is missing"},
		{kindtest.WithStore("{ redis: { cluster: ['h:1'], tls: { key: x } } }"), "stores.s.redis.tls: certificate and key belong together: write both"},
		{kindtest.WithStore("{ redis: { url: 'redis://h', compact: {} } }"), "stores.s.redis.compact: window is missing"},
		{kindtest.WithStore("{ redis: { url: 'redis://h?a=b', prefix: '{a}' } }"), "stores.s.redis.url: a query is not supported: use the fields of the store\nstores.s.redis.prefix: braces are not allowed"},
		{kindtest.WithStore("{ redis: { url: 'redis://h', compact: { window: 1h }, keep_origin: true } }"), "stores.s.redis.keep_origin: the compact form cannot keep origins: leave out compact, or keep_origin"},
		{kindtest.WithStore("{ redis: { cluster: ['h:1'], username: u } }"), "stores.s.redis.username: it needs a password: write password too"},
		{kindtest.WithStore("{ redis: { url: 'redis://u:a/b@h/0' } }"), "stores.s.redis.url: the address cannot be parsed: in a password write %2F for /, %3F for ?, %23 for # and %40 for @"},
	})
}

// TestStoresThatShareKeysAreRefused has two stores of one server and prefix.
func TestStoresThatShareKeysAreRefused(t *testing.T) {
	t.Parallel()
	const same = "stores.two: it has the same server and prefix as one (line 1), so a key that is done in one would be done in the other: give each store its own"
	kindtest.Refused(t, [][2]string{
		{`stores: { one: { redis: { url: "redis://h" } }, two: { redis: { url: "redis://h", timeout: 1s } } }`, same},
		{`stores: { one: { redis: { cluster: ["a:1", "b:1"] } }, two: { redis: { cluster: ["a:1", "b:1"] } } }`, same},
		{`stores: { one: { redis: { sentinel: { addresses: ["a:1"], master: m } } }, two: { redis: { sentinel: { addresses: ["a:1"], master: m } } } }`, same},
	})
	kindtest.Parse(t, `stores: { one: { redis: { url: "redis://h" } }, two: { redis: { url: "redis://h", prefix: "two:" } }, three: { redis: { url: "redis://h/1" } } }`)
}

func TestLintWarnsOfKeysThatTheServerMayForget(t *testing.T) {
	t.Parallel()
	with := func(fields, more string) string {
		return "stores: { s: { redis: { url: 'redis://h'" + fields + " } } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { webhook: { url: 'https://example.org' } }" + more + " } }"
	}
	kindtest.Warned(t, [][2]string{
		{with("", ""), "warning repeat pipelines.p.store: s is Redis with persistence: volatile"},
		{with(", persistence: logged", ""), "warning repeat pipelines.p.store: s is Redis with persistence: logged"},
		{with(", persistence: synced", ""), ""},
		{with(", persistence: synced", ", on_lease_expired: hold"), ""},
	})
	notices := strings.Join(kindtest.Findings(kindtest.Parse(t, with(", persistence: synced, compact: { window: 1d }", ""))), "\n")
	if !strings.Contains(notices, "notice  pipelines.p.window: 7d, and redis.compact.window of s is 1d") || !strings.Contains(notices, "notice repeat pipelines.p.store: s is Redis with persistence: synced") {
		t.Errorf("%s", notices)
	}
	held := strings.Join(kindtest.Findings(kindtest.Parse(t, with("", ", on_lease_expired: hold"))), "\n")
	if !strings.Contains(held, "warning repeat pipelines.p.on_lease_expired: hold, in a Redis that may forget") {
		t.Errorf("%s", held)
	}
}

func TestAWrongAddressIsFoundWithoutConnecting(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{ redis: { url: 'redis://h:6379/0' } }":                 "url: <nil>",
		"{ redis: { url: 'redis://h:x' } }":                      "url: ",
		"{ redis: { cluster: ['h:1'], tls: { ca: none.pem } } }": "tls: tls: open dir/none.pem: no such file or directory",
		"{ redis: { cluster: ['h:1'], tls: {} } }":               "tls: <nil>",
	} {
		field, err := kindtest.ReadStore[*redis.Store](t, text).CheckAddress(true)
		if got := fmt.Sprintf("%s: %v", field, err); !strings.HasPrefix(got, want) || strings.HasSuffix(want, ": ") && err == nil {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if _, err := kindtest.ReadStore[*redis.Store](t, "{ redis: { cluster: ['h:1'], tls: { ca: none.pem } } }").CheckAddress(false); err != nil {
		t.Errorf("the files are not to be read: %v", err)
	}
}

// TestAStoreOpensOnItsServer has a real server, alone and as the layer of a stack.
func TestAStoreOpensOnItsServer(t *testing.T) {
	t.Parallel()
	url := servers.Redis(t)
	for fields, want := range map[string]string{ // what the doctor says of a server with appendfsync no
		"": "warning appendfsync: no", ", persistence: logged, keep_ids: true": "warning appendfsync: no", ", persistence: synced, compact: { window: 7d }": "broken appendfsync: no",
	} {
		// A layer waits for 250 ms by default, and a slow machine may stand still for longer.
		f := kindtest.Parse(t, kindtest.WithStore("{ redis: { url: '"+url+"', timeout: 30s, prefix: '"+servicestest.Prefix()+"'"+fields+" } }"))
		store, err := kindtest.OpenStore(t, f, "s")
		if err != nil {
			t.Fatal(err)
		}
		kindtest.Remembers(t, store, "1")
		s := f.Stores[0].Spec.(*redis.Store)
		layer, err := s.OpenLayer(t.Context(), kindtest.StoreEnv(t, f, "s"))
		if err != nil {
			t.Fatal(err)
		}
		kindtest.Remembers(t, layer.Cache, "2")
		lines, err := kindtest.Examine(t, f, s)
		if err != nil || !slices.Contains(lines, want) {
			t.Errorf("%s: %q, %v", fields, lines, err)
		}
	}
}

func TestAServerThatIsDownIsReported(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithStore("{ redis: { url: 'redis://"+servicestest.FreeAddr(t)+"', timeout: 100ms } }"))
	if _, err := kindtest.OpenStore(t, f, "s"); err == nil {
		t.Error("the store opened without a server")
	}
	if lines, err := kindtest.Examine(t, f, f.Stores[0].Spec); err == nil || len(lines) != 0 {
		t.Errorf("%q, %v", lines, err)
	}
}
