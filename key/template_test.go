package key

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

func mustTemplate(t testing.TB, text string) *Rule {
	t.Helper()
	r, err := Template(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestATemplateKeepsItsIDReadable(t *testing.T) {
	t.Parallel()
	tests := []struct{ template, body, want string }{
		{"order-{.id}-placed", `{"id":"17"}`, "order-17-placed"},
		{"order-{.id}-placed", `{"id":17}`, "order-'17'-placed"},
		{"order-{.id}-placed", `{"id":"a-placed"}`, "order-a-placed-placed"},
		{"{.id}", `{"id":"x"}`, "x"},
		{"{.id}", `{"id":true}`, "'true'"},
		{"{.id}", `{"id":"'true'"}`, `"'true'"`},
		{"{.id}", `{"id":"\"x\\"}`, `"\"x\\"`},
		{"{.id}", `{"id":"\u0000n1"}`, "\x00s\x00n1"},
		{"{.id}!", `{"id":"\ud800"}`, `'"\ud800"'!`},
		{"{.a}-{.b}", `{"a":"x","b":"y-z"}`, "x-y-z"},
		{"{.a}-{.b}", `{"a":"x-y","b":"z"}`, `"x-y"-z`},
		{"{.a}{.b}", `{"a":"x","b":"y"}`, `"x"y`},
		{"{.a}-{.b}", `{"a":1e-5,"b":false}`, "'1e-5'-'false'"},
		{"{{{.a}}}/{header:Id}:{record-key}/{property:message-id}", `{"a":"x"}`, "{x}/h-1:r-1/m-1"},
		{`{.["}"]}`, `{"}":"x"}`, "x"},
	}
	for _, tt := range tests {
		k, err := mustTemplate(t, tt.template).Key("", message(tt.body))
		if err != nil || k.ID != tt.want {
			t.Errorf("%s of %s is %q, %v; want %q", tt.template, tt.body, k.ID, err, tt.want)
		}
	}
}

func TestATemplateGivesTwoMessagesOneIDOnlyIfAllValuesAreEqual(t *testing.T) {
	t.Parallel()
	// These are all strings of up to three characters that could confuse it.
	values := []string{"1", "true"}
	level := []string{""}
	for range 3 {
		var longer []string
		for _, s := range level {
			for _, c := range []string{"x", "-", `"`, "'", `\`} {
				longer = append(longer, s+c)
			}
		}
		values, level = append(values, longer...), longer
	}
	var texts []string // of the values, as JSON
	for _, v := range values {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	texts = append(texts, "1", "true", "false", "1e-1", "-1")
	for _, template := range []string{"{.a}-{.b}", "{.a}{.b}", "{.a}--{.b}-", "x{.a}x-x{.b}", `{.a}"{.b}`, "{.a}'{.b}'"} {
		x := mustTemplate(t, template).Reader(nil)
		seen := make(map[string]string, len(texts)*len(texts))
		for _, a := range texts {
			for _, b := range texts {
				body := `{"a":` + a + `,"b":` + b + `}`
				id, err := x.AppendID(nil, &semel.Message{Body: []byte(body)})
				if err != nil {
					t.Fatal(err)
				}
				if other, ok := seen[string(id)]; ok {
					t.Fatalf("%s makes %q of %s and of %s", template, id, other, body)
				}
				seen[string(id)] = body
			}
		}
	}
}

func TestATemplateThatIsWrongIsRefusedWithItsColumn(t *testing.T) {
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
