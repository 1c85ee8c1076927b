package tiered_test

import (
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/tiered"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, tiered.NewStore, kindtest.Case{Least: `[beside, rows]`})
}

func TestLongestTimeoutOfTheUpperLayersIsThatOfTheStack(t *testing.T) {
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
