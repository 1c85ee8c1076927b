package config

import (
	"encoding/json"
	"strconv"
	"strings"
)

// JSONSchema returns the JSON Schema (draft 2020-12) of a configuration, by
// which editors complete and check it. What a schema cannot say, such as that a
// store of some name is there, it accepts.
func JSONSchema() ([]byte, error) {
	s := &schemaWriter{defs: object{}}
	for name, form := range scalars() {
		s.defs[refName(string(name))] = form
	}
	properties := object{}
	for _, section := range sections(&File{}) {
		properties[section.name] = s.field(&section)
	}
	return json.MarshalIndent(object{
		"$schema":              "https://json-schema.org/draft/2020-12/schema",
		"title":                "Configuration of semel",
		"type":                 "object",
		"properties":           properties,
		"patternProperties":    object{"^x-": true},
		"additionalProperties": false,
		"anyOf":                []object{{"required": []string{"stores"}}, {"required": []string{"pipelines"}}},
		"$defs":                s.defs,
	}, "", "  ")
}

type object = map[string]any

type schemaWriter struct{ defs object }

// namePattern is that of names of stores and pipelines; isName checks it.
const namePattern = "^[A-Za-z0-9_-]{1,64}$"

// reference is the pattern of a text that stands for another.
const reference = `\$\{`

// scalars are the forms that are written as one word.
func scalars() map[scalar]object {
	const duration = `[0-9.]+(ns|us|µs|ms|s|m|h|d|w)`
	text := object{"type": "string", "minLength": 1}
	either := func(pattern string, other object) object {
		return object{"anyOf": []object{other, {"type": "string", "pattern": pattern + "|" + reference}}}
	}
	durations := object{"type": "string", "pattern": `^(` + duration + `)+$|` + reference}
	return map[scalar]object{
		aText: text, aSecret: text, aPath: text, aAddress: text, aRule: text, aValue: text,
		aStoreName: {"type": "string", "pattern": namePattern + "|" + reference},
		aDuration:  {"anyOf": []object{{"const": 0}, durations}},
		aWindow:    {"type": "string", "pattern": `^forever$|^(` + duration + `)+$|` + reference},
		aSize:      either(`^[0-9.]+([kKMGT]?B|[KMGT]iB)?$`, object{"type": "integer", "minimum": 1}),
		aCount:     either(`^[0-9.]+([eE][+]?[0-9]+)?$`, object{"type": "number", "minimum": 1}),
		aNumber:    either(`^[0-9]+$`, object{"type": "number", "minimum": 0}),
		aRate:      either(`^[0-9.eE-]+$`, object{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
		aHours:     {"type": "string", "pattern": `^([01][0-9]|2[0-3]):00-([01][0-9]|2[0-4]):00$|` + reference},
		aTruth:     either(`^(true|false)$`, object{"type": "boolean"}),
		aStatus:    either(`^[2-5]([xX]{2}|[0-9]{2}(-[2-5][0-9]{2})?)$`, object{"type": "integer", "minimum": 200, "maximum": 599}),
	}
}

// refName is a name as it stands in a reference within a schema.
func refName(title string) string {
	return strings.ReplaceAll(strings.ToLower(title), " ", "-")
}

// field describes a field with what it is for.
func (s *schemaWriter) field(f *field) object {
	described := s.form(&f.form)
	described["description"] = f.doc
	if fallback := f.fallback(); fallback != "" {
		described["description"] = f.doc + " Default: " + fallback + "."
	}
	return described
}

func (s *schemaWriter) form(f *form) object {
	switch {
	case f.scalar != "":
		return object{"$ref": "#/$defs/" + refName(string(f.scalar))}
	case f.words != nil:
		return choiceSchema(f.words)
	case f.element != nil:
		return object{"type": "array", "minItems": 1, "items": s.form(f.element)}
	case f.named != nil:
		return s.named(f.named)
	case f.either != nil:
		var list []object
		for _, form := range f.either {
			list = append(list, s.form(&form))
		}
		return object{"anyOf": list}
	case f.title == "":
		return s.mapping(f.members())
	}
	name := refName(f.title)
	if _, ok := s.defs[name]; !ok {
		s.defs[name] = s.mapping(f.members())
	}
	return object{"$ref": "#/$defs/" + name}
}

// named describes a mapping whose names are the user's: those of stores and
// pipelines are bound, others are free.
func (s *schemaWriter) named(f *form) object {
	described := object{"type": "object", "additionalProperties": s.form(f)}
	if f.members != nil {
		described["propertyNames"] = object{"pattern": namePattern}
		described["minProperties"] = 1
	}
	return described
}

// choiceSchema is one of several words. One that is a number may stand without
// quotes.
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

func (s *schemaWriter) mapping(m mapping) object {
	properties := object{}
	var required []string
	for _, f := range m.fields {
		properties[f.name] = s.field(&f)
		if f.required {
			required = append(required, f.name)
		}
	}
	described := object{"type": "object", "properties": properties, "additionalProperties": false}
	if required != nil {
		described["required"] = required
	}
	if required == nil && m.oneOf == nil {
		described["type"] = []string{"object", "null"}
	}
	var groups []object
	for _, group := range m.oneOf {
		var one []object
		for _, name := range group {
			one = append(one, object{"required": []string{name}})
		}
		groups = append(groups, object{"oneOf": one})
	}
	if groups != nil {
		described["allOf"] = groups
	}
	return described
}
