package kind_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/schema"
)

// validator checks a document against the part of JSON Schema that our schema
// uses.
type object = map[string]any

type validator struct {
	root object
	used map[string]bool
}

func (v *validator) check(path string, wanted any, value any) []string {
	s, ok := wanted.(object)
	if !ok {
		return nil // true
	}
	var wrong []string
	bad := func(format string, args ...any) { wrong = append(wrong, path+": "+fmt.Sprintf(format, args...)) }
	for keyword, argument := range s {
		v.used[keyword] = true
		switch keyword {
		case "$ref":
			name := strings.TrimPrefix(argument.(string), "#/$defs/")
			target, ok := v.root["$defs"].(object)[name]
			if !ok {
				bad("there is no definition %s", name)
			}
			wrong = append(wrong, v.check(path, target, value)...)
		case "type":
			types, ok := argument.([]any)
			if !ok {
				types = []any{argument}
			}
			fits := false
			for _, name := range types {
				fits = fits || hasType(value, name.(string))
			}
			if !fits {
				bad("%v is no %v", value, argument)
			}
		case "enum", "const":
			list, ok := argument.([]any)
			if !ok {
				list = []any{argument}
			}
			fits := false
			for _, one := range list {
				fits = fits || fmt.Sprintf("%T%v", one, one) == fmt.Sprintf("%T%v", value, value)
			}
			if !fits {
				bad("%v is none of %v", value, list)
			}
		case "pattern":
			if text, ok := value.(string); ok && !regexp.MustCompile(argument.(string)).MatchString(text) {
				bad("%q does not match %s", text, argument)
			}
		case "minLength":
			if text, ok := value.(string); ok && len(text) < 1 {
				bad("empty")
			}
		case "minimum", "exclusiveMinimum":
			if n, ok := value.(float64); ok && (n < argument.(float64) || keyword != "minimum" && n == argument.(float64)) {
				bad("%v is too small", n)
			}
		case "maximum", "exclusiveMaximum":
			if n, ok := value.(float64); ok && (n > argument.(float64) || keyword != "maximum" && n == argument.(float64)) {
				bad("%v is too large", n)
			}
		case "anyOf", "oneOf", "allOf":
			wrong = append(wrong, v.several(path, keyword, argument.([]any), value)...)
		case "items":
			list, _ := value.([]any)
			for i, element := range list {
				wrong = append(wrong, v.check(fmt.Sprintf("%s[%d]", path, i), argument, element)...)
			}
		case "minItems":
			if list, ok := value.([]any); ok && len(list) < 1 {
				bad("empty")
			}
		case "properties", "patternProperties", "additionalProperties", "propertyNames", "required", "minProperties":
			if members, ok := value.(object); ok {
				wrong = append(wrong, v.members(path, keyword, s, members)...)
			}
		case "$schema", "title", "description", "$defs":
		default:
			bad("the keyword %s is not known to this test", keyword)
		}
	}
	return wrong
}

func (v *validator) several(path, keyword string, list []any, value any) []string {
	fits := 0
	var all []string
	for _, one := range list {
		wrong := v.check(path, one, value)
		if len(wrong) == 0 {
			fits++
		}
		all = append(all, wrong...)
	}
	if keyword == "anyOf" && fits > 0 || keyword == "oneOf" && fits == 1 || fits == len(list) {
		return nil
	}
	return append(all, fmt.Sprintf("%s: %s has %d of %d", path, keyword, fits, len(list)))
}

func (v *validator) members(path, keyword string, wanted, members object) (wrong []string) {
	properties, _ := wanted["properties"].(object)
	patterns, _ := wanted["patternProperties"].(object)
	switch keyword {
	case "required":
		for _, name := range wanted["required"].([]any) {
			if _, ok := members[name.(string)]; !ok {
				wrong = append(wrong, path+": "+name.(string)+" is missing")
			}
		}
		return wrong
	case "minProperties":
		if len(members) < 1 {
			wrong = append(wrong, path+": empty")
		}
		return wrong
	}
	for name, member := range members {
		at := schema.Within(path, name)
		own, known := properties[name]
		patterned := false
		for pattern := range patterns {
			patterned = patterned || regexp.MustCompile(pattern).MatchString(name)
		}
		switch {
		case keyword == "propertyNames":
			wrong = append(wrong, v.check(at, wanted[keyword], name)...)
		case keyword == "properties" && known:
			wrong = append(wrong, v.check(at, own, member)...)
		case keyword == "additionalProperties" && !known && !patterned:
			if wanted[keyword] == false {
				wrong = append(wrong, at+": not known")
				continue
			}
			wrong = append(wrong, v.check(at, wanted[keyword], member)...)
		}
	}
	return wrong
}

func hasType(value any, name string) bool {
	switch value := value.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case float64:
		return name == "number" || name == "integer" && value == float64(int64(value))
	case []any:
		return name == "array"
	case object:
		return name == "object"
	}
	return false
}

func newValidator(t *testing.T) *validator {
	t.Helper()
	text, err := kind.All().JSONSchema()
	if err != nil {
		t.Fatal(err)
	}
	v := &validator{used: map[string]bool{}}
	if err := json.Unmarshal(text, &v.root); err != nil {
		t.Fatal(err)
	}
	return v
}

// accepts returns the faults that the schema finds in a configuration.
func (v *validator) accepts(t *testing.T, text string) []string {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	return v.check("", v.root, document)
}

func TestExamplesPassParserLintAndSchema(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(secret, []byte("postgres://app@localhost/app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := newValidator(t)
	for name, text := range examples(t) {
		if wrong := v.accepts(t, text); wrong != nil {
			t.Errorf("%s: by the schema: %v", name, wrong)
		}
		text = strings.ReplaceAll(text, "/run/secrets/database-url", secret)
		f, err := kind.All().Parse(name+".yaml", []byte(text), func(string) string { return "value" })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, finding := range f.Lint() {
			if finding.Severity > 1 {
				t.Errorf("%s: %+v", name, finding)
			}
		}
	}
}

// TestJSONSchemaAndParserAgree has configurations that both accept or both refuse.
func TestJSONSchemaAndParserAgree(t *testing.T) {
	t.Parallel()
	v := newValidator(t)
	const ends = "source: { file: { paths: [a] } }, sink: { stdout: {} }"
	for _, c := range []struct {
		text string
		fine bool
	}{
		{"stores: { a: { memory: } }", true},
		{"stores: { a: { memory: {} }, b: { embedded: { path: x } }, c: { tiered: [a, b] } }\nx-mine: 1", true},
		{"stores: { b: { embedded: { path: x } }, a: { memory: {} }, c: { tiered: { layers: [a, b], max_age: forever } } }", true},
		{"stores: { a: { memory: { max_keys: 1e6 } } }", true},
		{"stores: { a: { postgres: { dsn: 'host=h', partitions: '${env:N:-5}', keep_ids: '${env:B:-true}' } } }", true},
		{"stores: { a: { redis: { cluster: ['h:1'], tls: {}, compact: { window: 7d } } } }", true},
		{"stores: { a: { filter: { rate: 0.01, expect: 1e6, window: 1w12h } } }", true},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .a }, store: a, " + ends + " } }", true},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: [.a, { all: [.b, .c] }, 'hash(.)', { template: 'x{.d}' }] }, store: a, " + ends + " } }", true},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .a }, store: a, source: { file: { paths: [a] } }, sink: { webhook: { url: 'https://h', allow_private: true, retry: [404, 4xx] } } } }", true},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .a }, store: a, source: { file: { paths: [a] } }, sink: { kafka: { brokers: ['h:1'], topic: t, compression: zstd } } } }", true},
		{"{}", false},
		{"stores: {}", false},
		{"storse: {}", false},
		{"stores: { a: {} }", false},
		{"stores: { 'a b': { memory: {} } }", false},
		{"stores: { a: { memory: {}, embedded: { path: x } } }", false},
		{"stores: { a: { embedded: {} } }", false},
		{"stores: { a: { embedded: { path: x, fsync: sometimes } } }", false},
		{"stores: { a: { embedded: { path: 7 } } }", false},
		{"stores: { a: { memory: { max_keys: many } } }", false},
		{"stores: { a: { memory: { keep_ids: yes } } }", false},
		{"stores: { a: { filter: { rate: 1, expect: 1, window: 1d } } }", false},
		{"stores: { a: { filter: { rate: 0.1, expect: 1, window: 1 day } } }", false},
		{"stores: { a: { memory: {} } }\npipelines: { p: { store: a, " + ends + " } }", false},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .a }, store: a, windwo: 1d, " + ends + " } }", false},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: { cel: x } }, store: a, " + ends + " } }", false},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .a }, store: a, source: { pulsar: {} }, sink: { stdout: {} } } }", false},
		{"stores: { a: { memory: {} } }\npipelines: { p: { key: { id: .a }, store: a, source: { file: { paths: [] } }, sink: { stdout: {} } } }", false},
		{"stores: { a: { memory: {} } }\nlog: { level: loud }", false},
	} {
		wrong := v.accepts(t, c.text)
		_, err := kind.All().Parse("c.yaml", []byte(c.text), func(string) string { return "" })
		if (err == nil) != c.fine || (wrong == nil) != c.fine {
			t.Errorf("%s\nfine: %t\nby the parser: %v\nby the schema: %v", c.text, c.fine, err, wrong)
		}
	}
	for _, keyword := range []string{"$ref", "allOf", "oneOf", "anyOf", "enum", "const", "pattern", "required", "propertyNames", "minItems"} {
		if !v.used[keyword] {
			t.Errorf("no configuration came to the keyword %s", keyword)
		}
	}
}
