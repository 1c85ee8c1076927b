package pgschema

import (
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

func TestSchemaAndPrefixThatNeedQuotesAreRefused(t *testing.T) {
	t.Parallel()
	for _, good := range []Names{{"public", "semel_"}, {"a", "semel_"}, {Schema: "_9", Prefix: "p_"}, {Schema: strings.Repeat("s", 63), Prefix: strings.Repeat("p", 40)}} {
		if errs := good.Validate(); len(errs) > 0 {
			t.Errorf("%+v: %v", good, errs)
		}
	}
	for _, bad := range []string{"1a", "A", "a-b", "a.b", `a"b`, "a b", "a'", "a;", "ä", "a\x00", "{", strings.Repeat("x", 64)} {
		errs := Names{Schema: bad, Prefix: bad}.Validate()
		if len(errs) != 2 || !errors.Is(errs[0], semel.ErrInvalidRequest) || !strings.Contains(errs[0].Error(), "Names.Schema") {
			t.Errorf("%q: %v", bad, errs)
		}
	}
}

// FuzzIdentifiers: an accepted name means the same with and without quotes. It
// ends neither an identifier nor a string.
func FuzzIdentifiers(f *testing.F) {
	for _, seed := range []string{"public", "semel_", `a"b`, "a';--", "", "ä", "A", "0", strings.Repeat("a", 64)} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		n := Names{Schema: schema, Prefix: prefix}
		if len(n.Validate()) > 0 {
			return
		}
		if got, want := n.Quoted("keys"), `"`+schema+`"."`+prefix+`keys"`; got != want {
			t.Errorf("quoted is %s, want %s", got, want)
		}
		if got, want := n.Literal("keys"), `'"`+schema+`"."`+prefix+`keys"'`; got != want {
			t.Errorf("literal is %s, want %s", got, want)
		}
		if strings.ContainsAny(schema+prefix, "\"'\\;- \t\n\x00{}$") || strings.ToLower(schema+prefix) != schema+prefix {
			t.Errorf("%q and %q are accepted", schema, prefix)
		}
	})
}
