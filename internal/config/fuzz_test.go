package config_test

import (
	"errors"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/schema"
)

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"stores:\n  a: { memory: { max_keys: 1e6 } }\n", "stores: &a\n  b: *a\n", "stores: { a: { tiered: [a, *b] } }",
		"x-a: &x { <<: *x }\nstores: { a: { <<: [*x, *x] } }", "stores: { a: { redis: { url: '${env:A}${file:b}$${c}' } } }",
		someStores + "pipelines: { p: { source: { file: { paths: [a] } }, key: { id: [.a, { template: 'x{.b}' }] }, store: keys, sink: { webhook: { url: 'http://h', retry: [404] } } } }",
		"pipelines: { p: { source: { kafka: { brokers: [h:1], topics: [a], group: g } }, key: { id: 'hash(.)' }, sink: { kafka: { brokers: [h:1], topic: b, compression: zstd } } } }",
		"stores: { keys: { tiered: } }\npipelines: { a: { store: keys } }",
		"? [a]\n: b\n", "a: |\n b\n c\n", "--- !!map\n- &a *a\n", "stores: { s: { tiered: { layers: [a, b] } }, a: { tiered: [s, s] } }",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := kind.All().Parse("c.yaml", text, func(name string) string { return name })
		var wrong *schema.Error
		switch {
		case err == nil && len(file.Stores)+len(file.Pipelines) == 0:
			t.Error("a configuration of nothing was accepted")
		case err == nil:
			for _, finding := range file.Lint() {
				if finding.Place.Line == 0 || finding.Cost == "" {
					t.Errorf("incomplete: %+v", finding)
				}
			}
		case err != nil && (!errors.As(err, &wrong) || len(wrong.Problems) == 0):
			t.Errorf("an error that names no place: %v", err)
		}
	})
}
