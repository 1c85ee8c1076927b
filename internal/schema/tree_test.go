package schema_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/schema"
)

// TestExponentialYAMLAliasesAreRefused would not end if one of the texts were
// expanded.
func TestExponentialYAMLAliasesAreRefused(t *testing.T) {
	t.Parallel()
	var laughs, merges strings.Builder
	laughs.WriteString("x-a0: &a0 [l, l, l, l, l, l, l, l, l, l]\n")
	merges.WriteString("x-m0: &m0 { k0: 1 }\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&laughs, "x-a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
		fmt.Fprintf(&merges, "x-m%d: &m%d { k%d: 1, <<: [%s] }\n", i, i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*m%d, ", i-1), 10), ", "))
	}
	for name, c := range map[string]struct{ text, want string }{
		"aliases of lists":  {laughs.String() + "shop: { name: n, tags: *a11 }", "expected a text, got a list"},
		"aliases of merges": {merges.String() + "shop: { name: n, limits: { <<: *m11 } }", "the aliases of this file expand to too much"},
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
		"itself":            {"shop: &s { name: n, limits: &a { max: *s } }", "this alias has no anchor before it"},
	} {
		doc, err := schema.Parse("c.yaml", []byte(c.text), func(string) string { return "" })
		if err == nil {
			doc.Root().Sections([]schema.Field{schema.PartField("shop", (&shop{}).mapping, "The shop.")}, "x-")
			err = doc.Err()
		}
		var wrong *schema.Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 4<<10 {
			t.Errorf("%s: got %.500v, want %s", name, err, c.want)
		}
	}
}

func TestByteOrderMarkAndDirectiveAreSkipped(t *testing.T) {
	t.Parallel()
	if s := valid(t, "\ufeff%YAML 1.2\n---\nname: corner # end\n"); s.Name != "corner" {
		t.Errorf("%+v", s)
	}
}

// TestTextsThatAreNotYAMLSayWhereAndWhatToDo has the mistakes that people make.
func TestTextsThatAreNotYAMLSayWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"", `c.yaml: the file is empty: name a store under "stores"`},
		{"# nothing\n", `c.yaml: the file is empty: name a store under "stores"`},
		{"stores: [", "c.yaml:1:9: not valid YAML: sequence end token ']' not found"},
		{"a: 1\n---\nb: 2\n", "c.yaml:3:1: a second document begins here: a configuration is one document"},
		{"a: 'b\nc: d\n", "c.yaml:1:4: not valid YAML: the quote that begins here is not closed"},
		{"a:\n\tb: c\n", "c.yaml:2:1: not valid YAML: a tab before a field: indent with spaces"},
		{"a: { b: c\nd: e\n", "c.yaml:2:1: not valid YAML: expected ',' or '}' before this: a bracket of an earlier line is not closed"},
		{"a: b: c\n", "c.yaml:1:4: not valid YAML: a second field in one line: write it in a line of its own, or in braces as in source: { file: … }"},
		{"a:\n  b:\n    c: 1\n   d: 2\n", "c.yaml:4:4: not valid YAML: this line is indented by 3 spaces, and no field before it is: expected 4, as in the lines before it"},
	} {
		if _, err := schema.Parse("c.yaml", []byte(c.text), func(string) string { return "" }); err == nil || err.Error() != c.want {
			t.Errorf("in:\n%s\ngot:  %v\nwant: %s", c.text, err, c.want)
		}
	}
}

func TestAnAddressInAListNeedsNoQuotes(t *testing.T) {
	t.Parallel()
	s := valid(t, "name: n\nservers: [h:9092, i:9093]")
	if strings.Join(s.Servers, " ") != "h:9092 i:9093" {
		t.Errorf("%q", s.Servers)
	}
	_, doc := read(t, "name: n\nservers: [h: 9092]", nil)
	if err := doc.Err(); err == nil || !strings.HasSuffix(err.Error(), "servers[0]: expected a text, got fields") {
		t.Errorf("a real mapping in the list: %v", err)
	}
}
