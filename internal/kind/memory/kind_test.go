package memory_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/memory"
)

func TestStorePassesTheKindSuite(t *testing.T) {
	kindtest.Store(t, memory.NewStore, kindtest.Case{Least: `{}`})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]memory.Store{"{ memory: }": {}, "{ memory: { max_keys: 1e6 } }": {MaxKeys: 1e6}} {
		if got := kindtest.ReadStore[*memory.Store](t, text); *got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestLintSaysThatKeysEndWithTheProcess(t *testing.T) {
	t.Parallel()
	with := func(more string) string {
		return "stores: { s: { memory: {} } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { webhook: { url: 'https://example.org' } }" + more + " } }"
	}
	kindtest.Warned(t, [][2]string{{with(""), "warning repeat pipelines.p.store: s is memory"}})
	if held := strings.Join(kindtest.Findings(kindtest.Parse(t, with(", on_lease_expired: hold"))), "\n"); !strings.Contains(held, "broken repeat pipelines.p.on_lease_expired: hold, in memory") {
		t.Errorf("%s", held)
	}
}

func TestAFullStoreRefusesNewKeys(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithStore("{ memory: { max_keys: 1 } }"))
	store, err := kindtest.OpenStore(t, f, "s")
	if err != nil {
		t.Fatal(err)
	}
	kindtest.Remembers(t, store, "1")
	g, err := semel.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Do(t.Context(), semel.Key{Scope: "orders", ID: "2"}, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
	if err == nil {
		t.Error("the second key was taken")
	}
	if lines, err := kindtest.Examine(t, f, f.Stores[0].Spec); err != nil || !slices.Equal(lines, []string{"notice memory: the keys live in this process"}) {
		t.Errorf("%q, %v", lines, err)
	}
}
