package schema

import (
	"encoding/json"
	"strconv"
	"strings"
)

// JSONSchema returns the JSON Schema (draft 2020-12) of a configuration. Editors
// use it to complete and check a file. At least one of the needed sections must
// be present. The schema accepts what it cannot express, such as a reference to a
// store that does not exist.
func JSONSchema(title string, sections []Field, needed ...string) ([]byte, error) {
	s := &schemaWriter{defs: object{}}
	for name, form := range scalars() {
		s.defs[refName(string(name))] = form
	}
	var oneNeeded []object
	for _, name := range needed {
		oneNeeded = append(oneNeeded, object{"required": []string{name}})
	}
	properties := object{}
	for _, section := range sections {
		properties[section.Name] = s.field(&section)
	}
	return json.MarshalIndent(object{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"title":                title,
		"type":                 "object",
		"properties":           properties,
		"patternProperties":    object{"^x-": true},
		"additionalProperties": false,
		"anyOf":                oneNeeded,
		"$defs":                s.defs,
	}, "", "  ")
}

type object = map[string]any

type schemaWriter struct{ defs object }

// namePattern matches the names of stores and pipelines; isName checks it.
const namePattern = "^[A-Za-z0-9_-]{1,64}$"

// reference is the pattern of a reference to a value outside the file.
const reference = `\$\{`

// scalars are the forms written as one word.
func scalars() map[Scalar]object {
	const duration = `[0-9.]+(ns|us|µs|ms|s|m|h|d|w)`
	text := object{"type": "string", "minLength": 1}
	either := func(pattern string, other object) object {
		return object{"anyOf": []object{other, {"type": "string", "pattern": pattern + "|" + reference}}}
	}
	durations := object{"type": "string", "pattern": `^(` + duration + `)+$|` + reference}
	return map[Scalar]object{
		ScalarText: text, ScalarSecret: text, ScalarPath: text, ScalarAddress: text, ScalarRule: text, ScalarValue: text,
		ScalarStoreName: {"type": "string", "pattern": namePattern + "|" + reference},
		ScalarDuration:  {"anyOf": []object{{"const": 0}, durations}},
		ScalarWindow:    {"type": "string", "pattern": `^forever$|^(` + duration + `)+$|` + reference},
		ScalarSize:      either(`^[0-9.]+([kKMGT]?B|[KMGT]iB)?$`, object{"type": "integer", "minimum": 1}),
		ScalarCount:     either(`^[0-9.]+([eE][+]?[0-9]+)?$`, object{"type": "number", "minimum": 1}),
		ScalarNumber:    either(`^[0-9]+$`, object{"type": "number", "minimum": 0}),
		ScalarRate:      either(`^[0-9.eE-]+$`, object{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
		ScalarShare:     either(`^[0-9.eE-]+$`, object{"type": "number", "minimum": 0, "maximum": 1}),
		ScalarTruth:     either(`^(true|false)$`, object{"type": "boolean"}),
		ScalarStatus:    either(`^[2-5]([xX]{2}|[0-9]{2}(-[2-5][0-9]{2})?)$`, object{"type": "integer", "minimum": 200, "maximum": 599}),
	}
}

// refName returns a name as used in a schema reference.
func refName(title string) string {
	return strings.ReplaceAll(strings.ToLower(title), " ", "-")
}

// field describes a field and its purpose.
func (s *schemaWriter) field(f *Field) object {
	described := s.form(&f.Form)
	described["description"] = f.Doc
	if fallback := f.Fallback(); fallback != "" {
		described["description"] = f.Doc + " Default: " + fallback + "."
	}
	return described
}

func (s *schemaWriter) form(f *Form) object {
	switch {
	case f.Scalar != "":
		return object{"$ref": "#/$defs/" + refName(string(f.Scalar))}
	case f.Words != nil:
		return choiceSchema(f.Words)
	case f.Element != nil:
		list := object{"type": "array", "items": s.form(f.Element)}
		if !f.MayBeEmpty {
			list["minItems"] = 1
		}
		return list
	case f.Named != nil:
		return s.named(f.Named)
	case f.Either != nil:
		var list []object
		for _, form := range f.Either {
			list = append(list, s.form(&form))
		}
		return object{"anyOf": list}
	case f.Title == "":
		return s.mapping(f.Members())
	}
	name := refName(f.Title)
	if _, ok := s.defs[name]; !ok {
		s.defs[name] = s.mapping(f.Members())
	}
	return object{"$ref": "#/$defs/" + name}
}

// named describes a mapping with user-chosen names. The names of stores and
// pipelines follow a pattern; others are free.
func (s *schemaWriter) named(f *Form) object {
	described := object{"type": "object", "additionalProperties": s.form(f)}
	if f.Members != nil {
		described["propertyNames"] = object{"pattern": namePattern}
		described["minProperties"] = 1
	}
	return described
}

// choiceSchema is one of several words. A word that is a number may be unquoted.
func choiceSchema(words []string) object {
	var values []any
	for _, word := range words {
		values = append(values, word)
		if n, err := strconv.Atoi(word); err == nil {
			values = append(values, n)
		}
	}
	return object{"anyOf": []object{{"enum": values}, {"type": "string", "pattern": reference}}}
}

func (s *schemaWriter) mapping(m Mapping) object {
	properties := object{}
	var required []string
	for _, f := range m.Fields {
		properties[f.Name] = s.field(&f)
		if f.Required {
			required = append(required, f.Name)
		}
	}
	described := object{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		described["required"] = required
	}
	if required == nil && m.OneOf == nil {
		described["type"] = []string{"object", "null"}
	}
	var groups []object
	for _, group := range m.OneOf {
		var one []object
		for _, name := range group {
			one = append(one, object{"required": []string{name}})
		}
		groups = append(groups, object{"oneOf": one})
	}
	for _, f := range m.Fields {
		if f.Unless != nil {
			either := []object{{"required": []string{f.Name}}}
			for _, path := range f.Unless {
				either = append(either, present(strings.Split(path, ".")))
			}
			groups = append(groups, object{"anyOf": either})
		}
	}
	if groups != nil {
		described["allOf"] = groups
	}
	return described
}

// present describes a mapping that has a field at a path.
func present(path []string) object {
	described := object{"required": []string{path[0]}}
	if len(path) > 1 {
		described["properties"] = object{path[0]: present(path[1:])}
	}
	return described
}
