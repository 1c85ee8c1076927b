// Package connectortest is the suite that every kind of source, sink and store passes, also one
// of another module. It looks at what people see of a kind: fields, errors of a file, the words of
// semel explain, lint, and that no output shows a secret. It opens nothing: for that there are
// packages brokertest and storetest.
package connectortest

import (
	"maps"
	"slices"
	"testing"

	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/outside"
)

// Secret is the text of every secret in the configurations of a kind.
const Secret = kindtest.Secret

// Run runs the suite for kinds. written has configurations of each, under its section and name, as
// in "source.spool": {"{ dir: spool }"}. The first one has the fields that must be written and no
// others. The others have [Secret] in each field for a secret, in one or in another.
func Run(t *testing.T, kinds connector.Kinds, written map[string][]string) {
	t.Helper()
	all := kind.All()
	sources, sinks, stores := len(all.Sources), len(all.Sinks), len(all.Stores)
	outside.Add(all, kinds)
	written = maps.Clone(written)
	run(t, "source", all.Sources[sources:], written, kindtest.Source)
	run(t, "sink", all.Sinks[sinks:], written, kindtest.Sink)
	run(t, "store", all.Stores[stores:], written, kindtest.Store)
	if len(written) > 0 {
		t.Errorf("there are no kinds %q", slices.Sorted(maps.Keys(written)))
	}
}

func run[K config.Kind](t *testing.T, section string, kinds []func() K, written map[string][]string, suite func(*testing.T, func() K, kindtest.Case)) {
	t.Helper()
	for _, empty := range kinds {
		name := section + "." + empty().Kind()
		texts := written[name]
		delete(written, name)
		if len(texts) == 0 {
			t.Errorf("no configuration is written for %s", name)
			continue
		}
		t.Run(name, func(t *testing.T) { suite(t, empty, kindtest.Case{Least: texts[0], Secrets: texts[1:]}) })
	}
}
