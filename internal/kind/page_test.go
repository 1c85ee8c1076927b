package kind_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest/toy"
	"github.com/semel-dev/semel/internal/schema"
)

var update = flag.Bool("update", false, "write the documents that are made of the schema")

// examples are configurations with most kinds.
func examples(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(names) < 4 {
		t.Fatal(names, err)
	}
	all := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(name), ".yaml")] = string(text)
	}
	return all
}

func TestReferencePageIsCurrent(t *testing.T) {
	t.Parallel()
	name := filepath.Join("..", "..", "docs", "configuration.md")
	w := &pageWriter{}
	page := w.page(kind.All())
	if *update {
		if err := os.WriteFile(name, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != page {
		t.Errorf("%s is not what the schema says (%v): go test ./internal/kind -run ReferencePage -update", name, err)
	}
}

// TestReferencePageHasKindsFromOutside adds a kind to the list.
func TestReferencePageHasKindsFromOutside(t *testing.T) {
	t.Parallel()
	kinds := kind.All()
	kinds.Sources = append(kinds.Sources, toy.NewSource)
	page := (&pageWriter{}).page(kinds)
	for _, want := range []string{"Numbers, each twice.", "- `last` (number, `3`): The last number."} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// TestEveryFieldIsExplained keeps the page and the editor hints complete.
func TestEveryFieldIsExplained(t *testing.T) {
	t.Parallel()
	var visit func(path string, m schema.Mapping)
	visitForm := func(path string, f *schema.Form) {
		if f.Members != nil {
			visit(path, f.Members())
		}
	}
	visit = func(path string, m schema.Mapping) {
		for _, f := range m.Fields {
			at := schema.Within(path, f.Name)
			if !strings.HasSuffix(f.Doc, ".") {
				t.Errorf("%s: its sentence is %q", at, f.Doc)
			}
			if f.Required && f.Fallback() != "" {
				t.Errorf("%s is required and has a default", at)
			}
			visitForm(at, &f.Form)
			for _, inner := range append([]schema.Form{}, f.Form.Either...) {
				visitForm(at, &inner)
			}
			if f.Form.Named != nil {
				visitForm(at+".NAME", f.Form.Named)
			}
		}
	}
	visit("", schema.Mapping{Fields: kind.All().Sections(&config.File{})})
}

// pageWriter writes the reference page.
type pageWriter struct {
	out     strings.Builder
	shared  []schema.Form     // mappings with a title, described at the end
	printed map[string]string // the section of each printed row
}

const pageIntro = `# Configuration

<!-- Generated: edits are lost. Write it again with: go test ./internal/kind -run ReferencePage -update -->

This page lists every field. It is generated from the schema that reads configurations. ` + "`semel schema`" + ` prints the same schema as JSON Schema, for editors, and ` + "`semel init`" + ` commented configurations that work. The [contract of the program](cli.md#4-configuration) has the rules for a whole file, secrets and references.

To get completion and checks in an editor, run ` + "`semel schema > semel.schema.json`" + ` and start your file with

` + "```yaml\n# yaml-language-server: $schema=./semel.schema.json\n```" + `

## Values

In parentheses behind a field are the form of its value and its default. Without a form it is a text. Without a default, a boolean is false, and other fields are off.

- **text, path, address, secret:** a text. Quote a text that looks like a number or a boolean. A relative path starts at the directory of the file. Semel shows neither secrets nor passwords in addresses.
- **duration:** ` + "`90s`, `36h`, `7d`, `2w`, `1h30m`" + `.
- **size:** bytes, ` + "`4096`, `64KiB`, `10MB`" + `.
- **count, number:** ` + "`10000`, `1e6`" + `.
- **rate:** a number above 0 and below 1. A **share** is a number from 0 to 1.
- **rule:** a place in a message: ` + "`.a.b`, `.items[0].id`, `.[\"odd.name\"]` (in a JSON body), `line` (the whole body), `hash(.)`, `hash(.a,.b)` (canonical content), `hash(. - .received - .b.c)` (without some members), `header:NAME`, `record-key`, `property:message-id`, `lower(.a)`, `trim(.a)`, `nfc(.a)`, `number(.a)` (around a path, a header or another function). [Values](../key/VALUES.md) shows what each makes of a value." + `
- **value:** of a column or argument: ` + "`.a.b`, `header:NAME`, `record-key`, `property:message-id`, `body`, `key`, `scope`, `time`, `attempt`, `token`, `source`, `partition`, `offset`" + `.
- **status:** HTTP statuses, ` + "`404`, `400-409`, `4xx`" + `.

`

func (w *pageWriter) page(kinds *config.Kinds) string {
	w.out.WriteString(pageIntro)
	w.out.WriteString("## Sections\n\nSections whose names start with `x-` are ignored. Use them for YAML anchors.\n\n")
	w.mapping("", schema.Mapping{Fields: kinds.Sections(&config.File{})}, "")
	for i := 0; i < len(w.shared); i++ {
		w.section("", w.shared[i].Title, w.shared[i].Members())
	}
	return strings.TrimSuffix(w.out.String(), "\n")
}

func (w *pageWriter) section(path, title string, m schema.Mapping) {
	fmt.Fprintf(&w.out, "### %s\n\n", title)
	w.mapping(path, m, title)
}

// mapping writes the list of a mapping's fields, followed by its nested mappings.
func (w *pageWriter) mapping(path string, m schema.Mapping, title string) {
	for _, group := range m.OneOf {
		fmt.Fprintf(&w.out, "Exactly one of `%s`.\n\n", strings.Join(group, "`, `"))
	}
	if len(m.Fields) == 0 {
		w.out.WriteString("It has no fields.\n\n")
		return
	}
	inherited := map[string][]string{} // names by the path of the mapping that describes them
	own := slices.DeleteFunc(slices.Clone(m.Fields), func(f schema.Field) bool {
		if f.Inherits != "" {
			inherited[f.Inherits] = append(inherited[f.Inherits], f.Name)
		}
		return f.Inherits != ""
	})
	rows := make([]string, len(own))
	words := map[string]int{} // of the rows that an earlier section has
	for i, f := range own {
		rows[i] = w.row(schema.Within(path, f.Name), f)
		words[w.printed[rows[i]]] += len(strings.Fields(rows[i]))
	}
	again := map[string][]string{} // names by the section that has their rows
	for i, f := range own {
		if section := w.printed[rows[i]]; section != "" && words[section] > 20 {
			again[section] = append(again[section], f.Name)
			continue
		}
		w.out.WriteString(rows[i])
		if w.printed == nil {
			w.printed = map[string]string{}
		}
		if w.printed[rows[i]] == "" {
			w.printed[rows[i]] = title
		}
	}
	for _, section := range slices.Sorted(maps.Keys(again)) {
		fmt.Fprintf(&w.out, "- As in %s: `%s`.\n", link(section, strings.Trim(section, "`")), strings.Join(again[section], "`, `"))
	}
	w.out.WriteString("\n")
	for _, of := range slices.Sorted(maps.Keys(inherited)) {
		fmt.Fprintf(&w.out, "These fields of %s can be set as well. The others have their values from there: `%s`.\n\n", link("`"+of+"`", of), strings.Join(inherited[of], "`, `"))
	}
	for _, f := range own {
		at := schema.Within(path, f.Name)
		w.inner(at, &f.Form)
	}
}

// row returns the line of a field: its name, the form of its value, its default, and its
// explanation.
func (w *pageWriter) row(path string, f schema.Field) string {
	form := w.form(path, &f.Form)
	name := "`" + f.Name + "`"
	if f.Form.Members != nil {
		form, name = "", strings.Replace(form, "["+f.Form.Title, "["+name, 1)
		if f.Form.Title == "" {
			name = link("`"+f.Name+"`", path)
		}
	}
	var facts []string
	if form != "" && form != "text" {
		facts = append(facts, form)
	}
	fallback := f.Fallback()
	switch {
	case f.Required:
		facts = append(facts, "**required**")
	case f.Unless != nil:
		facts = append(facts, "**required** unless `"+strings.Join(f.Unless, "` or `")+"` brings it")
	case fallback == "", fallback == "off", fallback == "none", form == "boolean" && fallback == "false":
	case f.Initial != "" && f.Form.Words == nil:
		facts = append(facts, "`"+fallback+"`")
	case f.Initial != "":
		facts = append(facts, "default `"+fallback+"`")
	default:
		facts = append(facts, "default "+fallback)
	}
	if len(facts) > 0 {
		name += " (" + strings.Join(facts, ", ") + ")"
	}
	return "- " + name + ": " + f.Doc + "\n"
}

// inner writes the sections of the mappings in a form.
func (w *pageWriter) inner(path string, f *schema.Form) {
	switch {
	case f.Members != nil && f.Title == "":
		w.section(path, "`"+path+"`", f.Members())
	case f.Members != nil:
		if !slices.ContainsFunc(w.shared, func(s schema.Form) bool { return s.Title == f.Title }) {
			w.shared = append(w.shared, *f)
		}
	case f.Named != nil:
		w.inner(path+".NAME", f.Named)
	}
	for _, one := range f.Either {
		w.inner(path, &one)
	}
}

// form returns how a value is written.
func (w *pageWriter) form(path string, f *schema.Form) string {
	switch {
	case f.Scalar == "true or false":
		return "boolean"
	case f.Scalar != "":
		return string(f.Scalar)
	case f.Words != nil:
		return "`" + strings.Join(f.Words, "`, `") + "`"
	case f.Element != nil:
		return "list of " + w.form(path, f.Element)
	case f.Named != nil:
		return "names and " + w.form(path+".NAME", f.Named)
	case f.Title != "":
		return link(f.Title, f.Title)
	case f.Members != nil:
		return link("fields", path)
	}
	var list []string
	for _, one := range f.Either {
		if text := w.form(path, &one); !slices.Contains(list, text) && !slices.ContainsFunc(list, func(said string) bool { return strings.HasSuffix(said, ", or "+text) }) {
			list = append(list, text)
		}
	}
	return strings.Join(list, ", or ")
}

// link links to a section by the anchor of its title.
func link(text, title string) string {
	anchor := strings.ToLower(strings.NewReplacer(".", "", " ", "-").Replace(title))
	return "[" + text + "](#" + anchor + ")"
}

// TestTheDocumentedConfigurationIsRight reads the example in docs/cli.md. It
// checks that the rows of store kinds in the page have each of their fields.
func TestTheDocumentedConfigurationIsRight(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(text), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("postgres://app@localhost/app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	example = strings.ReplaceAll(example, "/run/secrets/database-url", secret)
	if _, err := kind.All().Parse("c.yaml", []byte(example), func(string) string { return "x" }); err != nil || len(example) < 100 {
		t.Errorf("%v in:\n%s", err, example)
	}
	rows := 0
	for _, newStore := range kind.All().Stores {
		name := newStore().Kind()
		_, row, has := strings.Cut(string(text), "\n- `"+name+"`:")
		if !has { // a kind that is not part of the contract yet: the reference page has it
			continue
		}
		rows++
		row, _, _ = strings.Cut(row, "\n")
		_, err := kind.All().Parse("c.yaml", []byte("stores: { a: { "+name+": { zzzzzzzzz: 1 } } }"), func(string) string { return "" })
		_, list, _ := strings.Cut(fmt.Sprint(err), "write one of ")
		list, _, _ = strings.Cut(list, "\n")
		fields := strings.Split(list, ", ")
		for _, field := range fields {
			if !strings.Contains(row, field) || field == "" {
				t.Errorf("the row of %s lacks %q", name, field)
			}
		}
	}
	if rows < 6 {
		t.Errorf("the page has %d kinds of stores", rows)
	}
}
