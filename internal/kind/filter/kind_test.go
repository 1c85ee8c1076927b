package filter_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/kind/filter"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestStorePassesTheKindSuite(t *testing.T) {
	kindtest.Store(t, filter.NewStore, kindtest.Case{Least: `{ rate: 0.01, expect: 100, window: 7d }`})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, "stores: { seen: { filter: { redis: many, rate: 0.001, expect: 1e7, window: 7d } }, many: { redis: { cluster: ['h:1'] } } }")
	got := f.Stores[0].Spec.(*filter.Store)
	if got.Redis.Name != "many" || got.Rate != 0.001 || got.Expect != 1e7 || got.Window != 168*time.Hour {
		t.Errorf("%+v", got)
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	const others = "stores: { db: { postgres: { dsn: 'host=h' } }, s: "
	kindtest.Refused(t, [][2]string{
		{kindtest.WithStore("{ filter: { rate: 1, expect: 0, window: 1d } }"), "stores.s.filter.rate: \"1\": not a rate: write a number above 0 and below 1, like 0.001\nstores.s.filter.expect: \"0\": must be at least 1"},
		{others + "{ filter: { redis: db, rate: 0.1, expect: 1, window: 1d } } }", "stores.s.filter.redis: db is postgres: name a store of the kind redis"},
		{others + "{ filter: { redis: none, rate: 0.1, expect: 1, window: 1d } } }", `stores.s.filter.redis: there is no store "none"`},
	})
}

func TestLintWarnsThatAFilterDropsNewMessages(t *testing.T) {
	t.Parallel()
	with := func(fields, more string) string {
		return "stores: { s: { filter: { rate: 0.01, expect: 10" + fields + " } }, cache: { redis: { url: 'redis://h' } } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { webhook: { url: 'https://example.org' } }" + more + " } }"
	}
	kindtest.Warned(t, [][2]string{
		{with(", window: 7d, redis: cache", ", lossy: true"), "warning loss pipelines.p.store: s is a filter with rate 0.01"},
		{with(", window: 7d, redis: cache", ""), "broken loss pipelines.p.store: s is a filter with rate 0.01, and lossy is not set"},
	})
	for text, want := range map[string]string{
		with(", window: 7d", ", lossy: true"):                                       "warning repeat pipelines.p.store: s is in memory",
		with(", window: 1d, redis: cache", ", lossy: true"):                         "warning repeat pipelines.p.window: 7d, and that of s is 1d",
		with(", window: 7d, redis: cache", ", lossy: true, on_lease_expired: hold"): "broken repeat pipelines.p.on_lease_expired: hold, in a filter",
	} {
		if found := strings.Join(kindtest.Findings(kindtest.Parse(t, text)), "\n"); !strings.Contains(found, want) {
			t.Errorf("%s\n%s\nwant %s", text, found, want)
		}
	}
}

// TestAFilterDecidesAloneOrAsALayer has a filter in memory and one on a real server.
func TestAFilterDecidesAloneOrAsALayer(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, `
stores:
  near:   { filter: { rate: 0.01, expect: 100, window: 1h } }
  far:    { filter: { rate: 0.01, expect: 100, window: 1h, redis: server } }
  server: { redis: { url: "`+servers.Redis(t)+`", prefix: "`+servicestest.Prefix()+`", timeout: 30s } }
pipelines:
  p: { key: { id: .id }, store: near, source: { file: { paths: [in] } }, sink: { stdout: {} } }
  q: { key: { id: .id }, store: far, lossy: true, source: { file: { paths: [in] } }, sink: { stdout: {} } }
`)
	for name, of := range map[string]string{"near": "broken pipelines.p: the filter decides alone", "far": "warning pipelines.q: the filter decides alone"} {
		store, _ := f.Store(name)
		s := store.Spec.(*filter.Store)
		alone, err := s.OpenFilter(t.Context(), kindtest.StoreEnv(t, f, name))
		if err != nil {
			t.Fatal(err)
		}
		k, maybe := []semel.Key{{Scope: "orders", ID: "1"}}, make([]bool, 1)
		for _, want := range []bool{false, true} {
			if err := alone.MayContain(t.Context(), k, maybe); err != nil || maybe[0] != want {
				t.Errorf("%s: the key is known: %v, %v; want %v", name, maybe[0], err, want)
			}
			if err := alone.Add(t.Context(), k); err != nil {
				t.Error(err)
			}
		}
		layer, err := s.OpenLayer(t.Context(), kindtest.StoreEnv(t, f, name))
		if err != nil || layer.Filter == nil || layer.Cache != nil {
			t.Errorf("%s: layer %+v, %v", name, layer, err)
		}
		lines, err := kindtest.Examine(t, f, s)
		if err != nil || len(lines) < 2 || lines[len(lines)-1] != of {
			t.Errorf("%s: %q, %v; want %s", name, lines, err, of)
		}
		if _, err := kindtest.OpenStore(t, f, name); err == nil || !strings.Contains(err.Error(), name+" is a filter, which keeps no records: use it above an exact store in a tiered store") {
			t.Errorf("%s opens as a store of records: %v", name, err)
		}
	}
}
