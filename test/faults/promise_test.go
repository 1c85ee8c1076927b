package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/explain"
	"github.com/semel-dev/semel/internal/kind"
)

// promiseConfig has the stores of the tests here by their kinds.
const promiseConfig = `
stores:
  redis: { redis: { sentinel: { addresses: ["host:26379"], master: m }, persistence: synced } }
  postgres: { postgres: { dsn: "host=host" } }
  embedded: { embedded: { path: ./data } }
pipelines:
  p:
    source: { kafka: { brokers: ["host:9092"], topics: [in], group: g } }
    key: { id: .id }
    store: %s
    sink: %s
    on_lease_expired: %s
`

// promised returns what `semel explain` says of a pipeline whose keys are in a
// store of a kind, and tied to its effects as the mode says.
func promised(t *testing.T, store string, m mode) *explain.Promise {
	t.Helper()
	sink, expired := `{ webhook: { url: "https://host/" } }`, "retry"
	switch m {
	case hold:
		expired = "hold"
	case sameTx:
		sink = `{ postgres: { store: postgres, table: effects, columns: { key: .id } } }`
	}
	file, err := kind.All().Parse("semel.yaml", fmt.Appendf(nil, promiseConfig, store, sink, expired), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	p, ok := file.Pipeline("p")
	if !ok || (file.Mode(p) == config.SameTransaction) != (m == sameTx) {
		t.Fatalf("%s on %s: it is no such pipeline", m, store)
	}
	return explain.Explain(file, p)
}

// failovers returns what a promise says of failover.
func failovers(p *explain.Promise) []string {
	said := slices.Concat(p.NothingLost.Because, p.NoSecondEffect.Because, p.Exceptions)
	return slices.DeleteFunc(said, func(text string) bool { return !strings.Contains(text, "failover") })
}

// wantException fails the test unless explain says what a failover to a replica
// that lagged has cost: keys were forgotten and their effects happened again, or
// keys and effects were forgotten together.
func wantException(t *testing.T, store string, m mode, forgotten int) {
	t.Helper()
	if forgotten == 0 {
		return
	}
	p := promised(t, store, m)
	said := strings.Join(failovers(p), "\n")
	switch {
	case m == sameTx && !strings.Contains(said, "failover to an asynchronous replica forgets what was not yet copied, key and row together"),
		m != sameTx && store == onPostgres && !strings.Contains(said, "failover to an asynchronous replica forgets keys that were not yet copied"),
		m != sameTx && store == onRedis && (!strings.Contains(said, "failover to a replica may forget keys, and repeated messages have their effect again") || p.NoSecondEffect.Holds != explain.BestEffort):
		t.Errorf("%s on %s: a failover forgot %d keys, and explain says of it %q; no second effect: %s", m, store, forgotten, said, p.NoSecondEffect.Holds)
	}
}

// wantNoException fails the test if explain says that a failover to a synchronous
// standby could cost anything, or that one could where keys are on no server.
func wantNoException(t *testing.T, m mode) {
	t.Helper()
	p := promised(t, onPostgres, m)
	for _, text := range failovers(p) {
		if !strings.Contains(text, "failover to an asynchronous replica") {
			t.Errorf("%s: nothing was lost, and explain says that it may be: %s", m, text)
		}
	}
	if m == sameTx && (p.NothingLost.Holds != explain.Yes || p.NoSecondEffect.Holds != explain.Yes) {
		t.Errorf("%s: nothing was lost or repeated, and explain says %+v and %+v", m, p.NothingLost, p.NoSecondEffect)
	}
	if m == sameTx {
		return
	}
	if said := failovers(promised(t, onDisk, m)); len(said) > 0 {
		t.Errorf("%s on a disk: %q", m, said)
	}
}
