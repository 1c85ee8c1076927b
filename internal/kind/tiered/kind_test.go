package tiered_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/tiered"
)

func TestStorePassesTheKindSuite(t *testing.T) {
	kindtest.Store(t, tiered.NewStore, kindtest.Case{Least: `[beside, rows]`})
}

func TestAStackUsesTheLongestTimeoutOfItsUpperLayers(t *testing.T) {
	t.Parallel()
	f, err := kind.All().Parse("semel.yaml", []byte(`
stores:
  fast:   { redis: { url: "redis://h", timeout: 300ms } }
  slow:   { redis: { url: "redis://h/1", timeout: 4s } }
  usual:  { redis: { url: "redis://h/2" } }
  bits:   { filter: { redis: slow, rate: 0.01, expect: 1000, window: 1h } }
  memory: { memory: {} }
  below:  { redis: { url: "redis://h/3", timeout: 9s } }
  files:  { embedded: { path: files } }
  more:   { embedded: { path: more } }
  most:   { embedded: { path: most } }
  one:    { tiered: [memory, fast, files] }
  filter: { tiered: { layers: [bits, more], sees_every_writer: true } }
  unset:  { tiered: [usual, below] }
`), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Duration{"one": 300 * time.Millisecond, "filter": 4 * time.Second, "unset": 0} {
		of, _ := f.Store(name)
		if got := of.Spec.(*tiered.Store).LayerTimeout(f); got != want {
			t.Errorf("%s: the timeout of a layer is %v, want %v", name, got, want)
		}
	}
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	const stores = "stores: { mem: { memory: {} }, seen: { filter: { rate: 0.1, expect: 1, window: 1d } }, db: { postgres: { dsn: 'host=h' } }, s: "
	for text, want := range map[string]tiered.Store{
		"{ tiered: [mem, db] }":             {},
		"{ tiered: { layers: [mem, db] } }": {},
		"{ tiered: { layers: [mem, db], max_age: 10m, sees_every_writer: true } }": {MaxAge: 10 * time.Minute, SeesEveryWriter: true},
		"{ tiered: { layers: [mem, db], max_age: forever } }":                      {MaxAge: semel.Forever},
	} {
		got := kindtest.Parse(t, stores+text+" }").Stores[3].Spec.(*tiered.Store)
		if len(got.Layers) != 2 || got.Layers[0].Name != "mem" || got.Layers[1].Name != "db" || got.Layers[1].At.Line != 1 || got.MaxAge != want.MaxAge || got.SeesEveryWriter != want.SeesEveryWriter {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestFilterOverAStoreWithOtherWritersIsRefused(t *testing.T) {
	t.Parallel()
	const stores = "stores: { seen: { filter: { rate: 0.1, expect: 1, window: 1d } }, db: { postgres: { dsn: 'host=h' } }, s: "
	kindtest.Refused(t, [][2]string{
		{stores + "{ tiered: [seen, db] } }", "stores.s.tiered: a filter saves no work if other processes write to db without it: write { layers: [seen, db], sees_every_writer: true } if none does, or leave the filter out"},
	})
	kindtest.Parse(t, stores+"{ tiered: { layers: [seen, db], sees_every_writer: true } } }")
}

// TestAPipelineThatBypassesAStackIsFound has a stack whose filter must see every writer.
func TestAPipelineThatBypassesAStackIsFound(t *testing.T) {
	t.Parallel()
	with := func(layers, store string) string {
		return "stores: { seen: { filter: { rate: 0.1, expect: 10, window: 7d } }, mem: { memory: {} }, db: { postgres: { dsn: 'host=h' } }, s: { tiered: " + layers + " } }\n" +
			"pipelines: { p: { key: { id: .id }, store: " + store + ", source: { file: { paths: [in] } }, sink: { webhook: { url: 'https://example.org' } } } }"
	}
	kindtest.Warned(t, [][2]string{
		{with("{ layers: [seen, db], sees_every_writer: true }", "db"), "broken repeat pipelines.p.store: db, which is below s with sees_every_writer"},
		{with("{ layers: [seen, db], sees_every_writer: true }", "s"), ""},
		{with("[mem, db]", "db"), ""},
	})
}

// TestAStackAnswersFromItsLayers opens a stack of a cache, a filter and an embedded store.
func TestAStackAnswersFromItsLayers(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, "stores: { mem: { memory: {} }, seen: { filter: { rate: 0.01, expect: 100, window: 1h } }, disk: { embedded: { path: '"+t.TempDir()+"' } }, s: { tiered: { layers: [seen, mem, disk], sees_every_writer: true } } }")
	store, err := kindtest.OpenStore(t, f, "s")
	if err != nil {
		t.Fatal(err)
	}
	kindtest.Remembers(t, store, "1")
	if lines, err := kindtest.Examine(t, f, f.Stores[3].Spec); err != nil || !slices.Equal(lines, []string{"fine decides: disk"}) {
		t.Errorf("%q, %v", lines, err)
	}
	broken := kindtest.Parse(t, "stores: { mem: { memory: {} }, file: { embedded: { path: x } }, s: { tiered: [mem, file] } }")
	broken.Stores[1].Spec.(*embedded.Store).Path = "kind_test.go" // a file, not a directory
	if _, err := kindtest.OpenStore(t, broken, "s"); err == nil || !strings.HasPrefix(err.Error(), "its layer file: ") {
		t.Errorf("the layer that decides does not open: %v", err)
	}
}
