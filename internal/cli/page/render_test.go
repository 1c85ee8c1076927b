package page

import (
	"bytes"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

// TestValuesStandOnlyWhereTheyAreEscaped reads the templates: a value stands in text or in a quoted
// attribute. In a link it is a whole link, which a program made, or it is escaped for a query.
func TestValuesStandOnlyWhereTheyAreEscaped(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(embedded, "assets/*.html")
	if err != nil || len(names) < 10 {
		t.Fatal(err, names)
	}
	action := regexp.MustCompile(`{{[^}]*}}`)
	control := regexp.MustCompile(`^{{(if|else|end|with|range|define|template)\b`)
	link := regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
	whole := regexp.MustCompile(`^{{(\.(Link|KeyLink|Before|After|Back|Action)|asset "[a-z.]+")}}$`)
	for _, name := range names {
		content, err := fs.ReadFile(embedded, name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			for _, value := range action.FindAllString(found[1], -1) {
				if !whole.MatchString(found[1]) && !strings.HasPrefix(value, "{{query ") {
					t.Errorf("%s: %s", name, found[0])
				}
			}
		}
		inTag, quoted := false, false
		for at := 0; at < len(text); {
			if place := action.FindStringIndex(text[at:]); place != nil && place[0] == 0 {
				value := text[at : at+place[1]]
				if inTag && !quoted && !control.MatchString(value) {
					t.Errorf("%s: %s stands in a tag, outside quotes", name, value)
				}
				at += place[1]
				continue
			}
			switch c := text[at]; {
			case !inTag && c == '<':
				inTag = true
			case inTag && c == '"':
				quoted = !quoted
			case inTag && !quoted && c == '>':
				inTag = false
			case inTag && c == '\'':
				t.Errorf("%s has an attribute in single quotes", name)
			}
			at++
		}
		if inTag || quoted {
			t.Errorf("%s ends within a tag", name)
		}
		for _, element := range []string{"<script>", "<style", " style=", " onclick="} {
			if strings.Contains(text, element) {
				t.Errorf("%s has %s, which the policy forbids", name, element)
			}
		}
	}
}

func TestTemplatesAreRendered(t *testing.T) {
	t.Parallel()
	type item struct{ Name string }
	data := struct {
		Items []item
		Of    any
		None  []string
		N     int
	}{[]item{{"a<b"}, {`"c"`}}, &item{"deep"}, nil, 7}
	for text, want := range map[string]string{
		`{{range $i, $x := .Items}}{{if $i}}, {{end}}{{$x.Name}}{{end}}`: "a&lt;b, &#34;c&#34;",
		`{{$n := .N}}{{range .Items}}{{$n}}{{end}}{{$n}}`:                "777",
		`{{range .None}}x{{else}}none{{end}}`:                            "none",
		`{{with .Of}}{{.Name}}{{end}}{{with .None}}x{{else}}y{{end}}`:    "deepy",
		`{{define "d"}}[{{.}}]{{end}}{{template "d" .N}}`:                "[7]",
		`{{if and .N}}yes{{end}}`:                                        "yes",
		`{{/* a comment */}}{{$.N}}`:                                     "7",
	} {
		funcs := map[string]func([]any) any{"and": func(a []any) any { return isTrue(a[0]) }}
		set, err := parseTemplates(fstest.MapFS{"assets/x.html": {Data: []byte(text)}}, "assets/*.html", funcs)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := set.render(&out, "x.html", &data); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", text, out.String(), err, want)
		}
	}
	for _, text := range []string{`{{.Missing}}`, `{{.N.X}}`, `{{range .N}}{{end}}`, `{{.N | and}}`, `{{template "none"}}`} {
		set, err := parseTemplates(fstest.MapFS{"assets/x.html": {Data: []byte(text)}}, "assets/*.html", map[string]func([]any) any{"and": nil})
		if err == nil {
			err = set.render(&bytes.Buffer{}, "x.html", &data)
		}
		if err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}
