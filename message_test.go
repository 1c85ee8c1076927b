package semel_test

import (
	"testing"

	"github.com/semel-dev/semel"
)

// TestTheLastHeaderOfANameCounts, wherever it is among the others.
func TestTheLastHeaderOfANameCounts(t *testing.T) {
	t.Parallel()
	h := func(name, value string) semel.Header { return semel.Header{Name: name, Value: []byte(value)} }
	for _, c := range []struct {
		headers  []semel.Header
		caseless bool
		want     string // "-" if none exists
	}{
		{nil, false, "-"},
		{[]semel.Header{h("a", "1")}, false, "1"},
		{[]semel.Header{h("a", "1"), h("b", "2")}, false, "1"},
		{[]semel.Header{h("b", "2"), h("a", "1")}, false, "1"},
		{[]semel.Header{h("a", "1"), h("b", "2"), h("a", "3"), h("c", "4")}, false, "3"},
		{[]semel.Header{h("b", "2")}, false, "-"},
		{[]semel.Header{h("A", "1")}, false, "-"},
		{[]semel.Header{h("A", "1")}, true, "1"},
		{[]semel.Header{h("a", "1"), h("A", "2")}, true, "2"},
		{[]semel.Header{h("a", "1"), h("A", "2")}, false, "1"},
		{[]semel.Header{h("ab", "1"), h("", "2")}, true, "-"},
		{[]semel.Header{{Name: "a"}}, false, ""},
	} {
		m := semel.Message{Headers: c.headers, CaselessHeaders: c.caseless}
		value, ok := m.Header("a")
		if ok != (c.want != "-") || ok && string(value) != c.want || !ok && value != nil {
			t.Errorf("%q, caseless %t: %q, %t; want %q", c.headers, c.caseless, value, ok, c.want)
		}
	}
}
