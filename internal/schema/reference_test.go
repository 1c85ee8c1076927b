package schema_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/schema"
)

func TestReferencesAreResolvedAfterParsing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	password := write("password", "from: a } file\r\n")
	write("empty", "\n")
	write("large", strings.Repeat("x", schema.MaxSecretBytes+1))
	env := map[string]string{"SET": "value", "YAML": "a\nb: {", "REF": "${env:SET}"}
	parse := func(written string) (string, error) {
		doc, err := schema.Parse(filepath.Join(dir, "c.yaml"), []byte("name: '"+written+"'"), func(name string) string { return env[name] })
		if err != nil {
			t.Fatal(err)
		}
		s := &shop{}
		doc.Root().Mapping(s.mapping())
		return s.Name, doc.Err()
	}
	for _, c := range []struct{ written, want string }{
		{"${env:SET}", "value"},
		{"a${env:SET}b${env:SET}", "avaluebvalue"},
		{"${env:UNSET:-default}", "default"},
		{"${env:SET:-default}", "value"},
		{"x${env:UNSET:-}", "x"},
		{"${env:YAML}", "a\nb: {"},
		{"${env:REF}", "${env:SET}"},
		{"$${env:SET}", "${env:SET}"},
		{"$ {$", "$ {$"},
		{"${file:" + password + "}", "from: a } file"},
		{"${file:password}", "from: a } file"},
	} {
		if got, err := parse(c.written); err != nil || got != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.written, got, err, c.want)
		}
	}
	for _, c := range []struct{ written, want string }{
		{"${env:UNSET}", "the environment variable UNSET is not set, or empty: set it, name a file that has it with --env-file FILE, or write ${env:UNSET:-default}"},
		{"${SET}", "${SET} is not a reference: write ${env:SET} for the environment variable, or $${ for the text itself"},
		{"${vault:x}", "is not a known reference"},
		{"${env:}", "does not name an environment variable"},
		{"${env:A B}", "does not name an environment variable"},
		{"${env:SET", "a reference ${… has no }"},
		{"${file:" + dir + "/none}", "${file:" + dir + "/none} cannot be read: no such file or directory"},
		{"${file:" + dir + "}", "cannot be read: is a directory"},
		{"${file:empty}", "is empty"},
		{"${file:large}", "is larger than 64 KiB"},
		{"${file:}", "names no file"},
	} {
		if _, err := parse(c.written); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "c.yaml:1:7: name: ") {
			t.Errorf("%s: got %v, want %s", c.written, err, c.want)
		}
	}
}

// TestPlaceholdersReplaceMissingVariables reads a file that is for another machine.
func TestPlaceholdersReplaceMissingVariables(t *testing.T) {
	t.Parallel()
	doc, err := schema.Parse("c.yaml", []byte(`
name: "${env:NAME}"
table: "${env:TABLE}"
wait: "${env:WAIT}"
tags: [a, "${env:TAG}"]
workers: 99
`), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	doc.Placeholders = true
	s := &shop{}
	doc.Root().Mapping(s.mapping())
	if s.Name != "${env:NAME}" || s.Table != "${env:TABLE}" || strings.Join(s.Tags, " ") != "a ${env:TAG}" {
		t.Errorf("%+v", s)
	}
	if err, want := doc.ErrOfRest(), `c.yaml:6:10: workers: "99": must be between 1 and 8`; fmt.Sprint(err) != want {
		t.Errorf("the problems of the rest are %v, want %s", err, want)
	}
	lacking := doc.Lacking()
	for path, name := range map[string]string{"name": "NAME", "table": "TABLE", "wait": "WAIT", "tags[1]": "TAG"} {
		if got := lacking[path].Text; !strings.HasPrefix(got, path+": the environment variable "+name+" is not set") {
			t.Errorf("%s lacks %q", path, got)
		}
	}
	for path, want := range map[string]bool{"name": true, "tags": true, "tags[0]": true, "workers": false} {
		if got := doc.Lacks(path); got != want {
			t.Errorf("%s lacks a value: %v, want %v", path, got, want)
		}
	}
}

// TestMissingVariablesOfUnusedSectionsAreIgnored has a value that this machine lacks in two parts.
func TestMissingVariablesOfUnusedSectionsAreIgnored(t *testing.T) {
	t.Parallel()
	s, doc := read(t, "name: n\nlimits: { max: '${env:MAX}' }\npay: { card: ['${env:BRAND}'] }\nworkers: 9", nil)
	doc.WrongAt(schema.Place{Line: 2, Column: 20}, "limits.max: it is too small") // perhaps because the value is missing
	for needed, want := range map[string][]string{
		"limits":     {"MAX is not set", "limits.max: it is too small", "workers"},
		"pay":        {"BRAND is not set", "workers"},
		"limits pay": {"MAX is not set", "limits.max: it is too small", "BRAND is not set", "workers"},
		"":           {"workers"},
	} {
		err := doc.ErrWithout(func(path string) (string, bool) {
			name, _, _ := strings.Cut(strings.TrimPrefix(path, "shop."), ".")
			return name, !strings.Contains(needed, name)
		})
		lines := strings.Split(fmt.Sprint(err), "\n")
		for i, line := range lines {
			if len(lines) != len(want) || !strings.Contains(line, want[i]) {
				t.Errorf("needed %q: %q, want %q", needed, lines, want)
				break
			}
		}
	}
	if s.Limits.Max != 0 {
		t.Errorf("a value that is missing was read as %d", s.Limits.Max)
	}
}

func TestEnvironmentVariableNamesAreChecked(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"A": true, "_a1": true, "": false, "1a": false, "a-b": false, "a b": false} {
		if got := schema.IsVariable(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

func TestCauseLeavesOutTheFileName(t *testing.T) {
	t.Parallel()
	_, err := os.Open(filepath.Join(t.TempDir(), "none"))
	if got := schema.Cause(fmt.Errorf("open it: %w", err)); got.Error() != "no such file or directory" {
		t.Errorf("%v", got)
	}
	if got := schema.Cause(os.ErrClosed); got != os.ErrClosed {
		t.Errorf("%v", got)
	}
}
