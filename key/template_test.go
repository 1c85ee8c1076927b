package key

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func mustTemplate(t testing.TB, text string) *Rule {
	t.Helper()
	r, err := Template(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestATemplateWritesValuesAsPeopleDo(t *testing.T) {
	t.Parallel()
	tests := []struct{ template, body, want string }{
		{"order-{.id}-placed", `{"id":"17"}`, "order-17-placed"},
		{"order-{.id}-placed", `{"id":17}`, "order-17-placed"},
		{"order-{.id}-placed", `{"id":1.0}`, "order-1.0-placed"},
		{"order-{.id}-placed", `{"id":1e3}`, "order-1e3-placed"},
		{"order-{.id}-placed", `{"id":12345678901234567890123}`, "order-12345678901234567890123-placed"},
		{"order-{.id}-placed", `{"id":"a\u002dplaced"}`, "order-a-placed-placed"},
		{"{.id}", `{"id":"x"}`, "x"},
		{"{.id}", `{"id":7}`, "7"},
		{"{.id}", `{"id":true}`, "true"},
		{"{.id}", `{"id":"'true'"}`, "'true'"},
		{"{.id}", `{"id":"\"x\\"}`, `"x\`},
		{"{.id}", `{"id":"\u0000n1"}`, "\x00s\x00n1"},
		{"a{.id}", `{"id":"\u0000n1"}`, "a\x00n1"},
		{"{.id}!\"", `{"id":"\ud800"}`, "\x00u" + `"\ud800!\""`},
		{"{.a}\n{.b}", `{"a":"\u0000","b":"\udc00"}`, "\x00u" + `"\u0000\n\udc00"`},
		{"{.a}-{.b}", `{"a":"x","b":"y-z"}`, "x-y-z"},
		{"{.a}-{.b}", `{"a":"x-y","b":"z"}`, "x-y-z"},
		{"{.a}{.b}", `{"a":"x","b":"y"}`, "xy"},
		{"{.a}-{.b}", `{"a":1e-5,"b":false}`, "1e-5-false"},
		{"{{{.a}}}/{header:Id}:{record-key}/{property:message-id}", `{"a":"x"}`, "{x}/h-1:r-1/m-1"},
		{`{.["}"]}`, `{"}":"x"}`, "x"},
	}
	for _, tt := range tests {
		k, err := mustTemplate(t, tt.template).Key("", message(tt.body))
		if err != nil || k.ID != tt.want {
			t.Errorf("%s of %s is %q, %v; want %q", tt.template, tt.body, k.ID, err, tt.want)
		}
	}
	for body, want := range map[string]error{`{"id":null}`: ErrMissing, `{"id":""}`: ErrMissing, `{}`: ErrMissing, `{"id":[7]}`: ErrNotScalar, `7,`: ErrSyntax} {
		if k, err := mustTemplate(t, "order-{.id}").Key("", message(body)); !errors.Is(err, want) {
			t.Errorf("%s gives %q, %v; want %v", body, k.ID, err, want)
		}
	}
}

// The id of a template is that of the string with the same text, so that a person who writes
// the string has the same key.
func TestTheIDOfATemplateIsThatOfItsText(t *testing.T) {
	t.Parallel()
	whole := mustRule(t, ".text")
	for template, body := range map[string]string{
		"order-{.id}-placed": `{"id":7,"text":"order-7-placed"}`,
		"{.id}":              `{"id":"\u0000n1","text":"\u0000n1"}`,
		"x{.id}\"":           `{"id":"\ud800","text":"x\ud800\""}`,
	} {
		of, err := mustTemplate(t, template).Key("", message(body))
		text, err2 := whole.Key("", message(body))
		if err != nil || err2 != nil || of != text {
			t.Errorf("%s of %s is %q, %v; the text is %q, %v", template, body, of.ID, err, text.ID, err2)
		}
	}
}

func TestAmbiguousTemplateValuesAreFound(t *testing.T) {
	t.Parallel()
	tests := []struct {
		template string
		want     []Ambiguity
	}{
		{"order-{.id}-placed", []Ambiguity{{`.id 7`, `.id "7"`, "order-7-placed", "", true}}},
		{"{header:a}!", nil},
		{"{header:a}/{record-key}", []Ambiguity{{`header:a "x/y", record-key "z"`, `header:a "x", record-key "y/z"`, "x/y/z", "/", false}}},
		{"{.a}{.b}", []Ambiguity{{`.a 7`, `.a "7"`, "71", "", true}, {`.a "xy", .b "z"`, `.a "x", .b "yz"`, "xyz", "", false}}},
		{"{.a}-{.b}{.c}", []Ambiguity{{`.a 7`, `.a "7"`, "7-11", "", true}, {`.b "xy", .c "z"`, `.b "x", .c "yz"`, "1-xyz", "", false}}},
	}
	for _, tt := range tests {
		if got := mustTemplate(t, tt.template).Ambiguous(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.template, got, tt.want)
		}
	}
	all, err := All(mustRule(t, ".a"), mustRule(t, ".b"))
	if err != nil || all.Ambiguous() != nil {
		t.Errorf("a composite is ambiguous: %v, %v", all.Ambiguous(), err)
	}
	for template, bodies := range map[string][2]string{
		"{.a}-{.b}": {`{"a":"x-y","b":"z"}`, `{"a":"x","b":"y-z"}`},
		"{.a}{.b}":  {`{"a":"xy","b":"z"}`, `{"a":"x","b":"yz"}`},
		"{.a}":      {`{"a":7}`, `{"a":"7"}`},
	} {
		rule := mustTemplate(t, template)
		one, err := rule.Key("", message(bodies[0]))
		two, err2 := rule.Key("", message(bodies[1]))
		if one != two || err != nil || err2 != nil {
			t.Errorf("the example of %s is not an example: %q and %q", template, one.ID, two.ID)
		}
	}
}

func TestInvalidTemplateErrorNamesTheColumn(t *testing.T) {
	t.Parallel()
	for text, column := range map[string]int{
		"": 1, "order": 6, "a}b{.c}": 2, "{": 2, "{}": 2, "{.a": 4, "{.a b}": 4, "{hash(.)}": 2, "{line}": 2, "{offset}": 2,
		"x{{.a}}": 8, "{.a}{": 6,
	} {
		_, err := Template(text)
		var wrong *RuleError
		if !errors.As(err, &wrong) || wrong.Column != column || wrong.Text != text {
			t.Errorf("%q: %v, want column %d", text, err, column)
		}
	}
	if _, err := mustTemplate(t, "order-{.id}").Key("", message(`{}`)); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), ".id") {
		t.Errorf("a missing value gives %v", err)
	}
}
