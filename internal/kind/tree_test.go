package kind_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/schema"
)

// TestTextsThatExplodeAreRefusedSoon would not end if one of the texts were
// expanded.
func TestTextsThatExplodeAreRefusedSoon(t *testing.T) {
	t.Parallel()
	var laughs, merges strings.Builder
	laughs.WriteString("x-a0: &a0 [l, l, l, l, l, l, l, l, l, l]\n")
	merges.WriteString("x-m0: &m0 { k0: 1 }\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&laughs, "x-a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
		fmt.Fprintf(&merges, "x-m%d: &m%d { k%d: 1, <<: [%s] }\n", i, i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*m%d, ", i-1), 10), ", "))
	}
	for name, c := range map[string]struct{ text, want string }{
		"aliases of lists":  {laughs.String() + "stores: { a: { tiered: *a11 } }", "expected a text, got a list"},
		"aliases of merges": {merges.String() + "stores: { a: { memory: { <<: *m11 } } }", "the aliases of this file expand to too much"},
		"brackets":          {strings.Repeat("[", schema.MaxBytes), "nested too deeply"},
		"braces":            {strings.Repeat("{a: ", schema.MaxBytes/4), "nested too deeply"},
		"dashes":            {strings.Repeat("- ", schema.MaxBytes/2), "nested too deeply"},
		"questions":         {strings.Repeat("? ", schema.MaxBytes/2), "nested too deeply"},
		"anchors":           {strings.Repeat("&a ", schema.MaxBytes/3), "nested too deeply"},
		"tags":              {strings.Repeat("!a ", schema.MaxBytes/3), "nested too deeply"},
		"lines":             {strings.Repeat("a: b\n", schema.MaxBytes/5), "too many values"},
		"flow":              {"a: {" + strings.Repeat("b: c, ", schema.MaxBytes/6-2) + "}", "too many values"},
		"one byte too many": {strings.Repeat("#", schema.MaxBytes+1), "larger than 1 MiB"},
		"only comments":     {strings.Repeat("# a\n", schema.MaxBytes/4), "the file is empty"},
		"no text":           {"a: \xff", "not valid UTF-8"},
		"itself":            {"stores: &s { a: &a { tiered: [*s] } }", "this alias has no anchor before it"},
	} {
		_, err := kind.All().Parse("c.yaml", []byte(c.text), noEnv)
		var wrong *schema.Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 4<<10 {
			t.Errorf("%s: got %.500v, want %s", name, err, c.want)
		}
	}
}

func TestByteOrderMarkAndDirectiveAreSkipped(t *testing.T) {
	t.Parallel()
	parse(t, "\ufeff%YAML 1.2\n---\nstores: { a: { memory: {} } } # end\n")
}

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
