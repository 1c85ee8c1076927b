package keyrecord

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/key"
)

// An id in JSON is read back as the same id, whatever its bytes, so that an
// export never makes two ids equal.
func FuzzJSONIDsReadBack(f *testing.F) {
	for _, id := range []string{
		"plain", "42", "\x00n42", "\x00s\x00", "\xff", "\x00t", "\x00c\x01a\x04\x00n-1", "\x00c\x03\x00c\x01\x01a",
		"quote\"\\ \n\u202e\u2028", "\x00u\"\\ud800\"", "\x00", "\x00n1 ", "\x00u1", "\u007f\u0080😀", "\xed\xa0\x80",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		text, ok := jsonid.Format(id)
		if !ok {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q becomes %s, which is not JSON", id, text)
		}
		if again, err := jsonid.NewParser().ID(text); err != nil || again != id {
			t.Errorf("%q becomes %s and then %q, %v", id, text, again, err)
		}
	})
}

func TestDisplayedIDsAreReadBackAsTheSameKey(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"evt_1": "evt_1", "two words": "two words", " padded ": `" padded "`, "42": `"42"`, "\x00n42": "42", "\x00nx": `"\x00nx"`,
		"true": `"true"`, "\x00t": "true", "\x00f": "false", "[1]": `"[1]"`, "[\"a\",1]": `"[\"a\",1]"`, "-": "-", "a\"b": `"a\"b"`,
		"a\U000e0001\U000e0041": `"a\udb40\udc01\udb40\udc41"`, "a\u3164": `"a\u3164"`, "\u115fa": `"\u115fa"`, "a\u034fb": `"a\u034fb"`, "a\u2800": `"a\u2800"`, "a\u202eb": `"a\u202eb"`,
		"tab\there": `"tab\there"`, "\xff": `"\xff"`, "ß€😀": "ß€😀", "\x00c\x01a\x01b": `["a","b"]`, "\x00s\x00x": `"\u0000x"`,
		"\x00h\x01\x02": "sha256:0102", "\x00": `"\x00"`, "\x00c\x09a": `"\x00c\ta"`,
	} {
		if got := DisplayID(id); got != want {
			t.Errorf("DisplayID(%q) = %s, want %s", id, got, want)
		}
	}
}

func TestInvisibleCharactersOfScopesAreShown(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]string{
		"caf\u00e9 😀": "caf\u00e9 😀", "a\U000e0041": `"a\U000e0041"`, "a\u3164": `"a\u3164"`, "a\u2800\u034f": `"a\u2800\u034f"`, "a\u202e": `"a\u202e"`, "\x1b": `"\x1b"`,
	} {
		if got := DisplayScope(scope); got != want {
			t.Errorf("%q: %s, want %s", scope, got, want)
		}
	}
}

func TestCompositeKeyPartsAreTriedAsTextAndAsNumber(t *testing.T) {
	t.Parallel()
	ids, err := IDReadings([]string{"a", "1"})
	if err != nil || len(ids) != 2 || ids[0] != "\x00c\x01a\x011" || ids[1] != "\x00c\x01a\x03\x00n1" {
		t.Errorf("readings of a 1: %q, %v", ids, err)
	}
	for word, want := range map[string]int{"1": 2, "-1.5e3": 2, "true": 2, "01": 1, "1x": 1, "nul": 1, "null": 1, "True": 1, "\x00n1": 1} {
		if ids, err := IDReadings([]string{word}); err != nil || len(ids) != want {
			t.Errorf("readings of %q: %q, %v; want %d", word, ids, err, want)
		}
	}
	if _, err := IDReadings(make([]string, maxIDParts+1)); err == nil {
		t.Error("too many parts are accepted")
	}
	if _, err := IDReadings([]string{""}); err == nil {
		t.Error("an empty id is accepted")
	}
}

func TestIDsAreShapedAsByTheRuleOfThePipeline(t *testing.T) {
	t.Parallel()
	rule := func(text string) *key.Rule {
		r, err := key.ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all, _ := key.All(rule("lower(.a)"), rule("number(.b)"), rule(".c"))
	first, _ := key.First(rule("header:id"), rule("number(trim(.n))"), all)
	for _, test := range []struct {
		rule *key.Rule
		ids  []string
		want []string
	}{
		{rule(".a"), []string{"A"}, nil},
		{rule("lower(.a)"), []string{"A", "a", "\x00n1"}, []string{"a"}},
		{rule("trim(.a)"), []string{" "}, nil},
		{all, []string{"\x00c\x01A\x037.0\x01C", "A", "\x00c\x01A\x017", "\x00c\x09A"}, []string{"\x00c\x01a\x03\x00n7\x01C"}},
		{first, []string{"7.0"}, []string{"\x00n7"}},
		{nil, []string{"A"}, nil},
	} {
		if got := Shaped(test.rule, test.ids); !slices.Equal(got, test.want) {
			t.Errorf("%s of %q: %q, want %q", test.rule, test.ids, got, test.want)
		}
	}
}
