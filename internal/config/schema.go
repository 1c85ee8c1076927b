package config

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// mapping declares the fields of one mapping. It is the one place that says
// what may stand there: values are read by it, and the JSON Schema and the
// reference page are made of it.
type mapping struct {
	fields []field
	// oneOf are groups of fields, of each of which exactly one must be there.
	oneOf [][]string
	// planned are names that a later version may know.
	planned []string
	// check reports what is wrong between fields that are each right.
	check func(v value, there members)
}

// members are the fields of a mapping that are there.
type members map[string]value

// field is one member of a mapping.
type field struct {
	name string
	// doc is one or two sentences.
	doc  string
	read func(v value)
	form form
	// initial is read if the field is not there; shown is the default of
	// whoever uses the value, which is told and not read.
	initial, shown string
	// implied: a mapping that is not there is read as an empty one.
	implied  bool
	required bool
}

// form says what a value looks like. One of its members is set.
type form struct {
	// scalar is the name of what is written as one word.
	scalar scalar
	// words are all that may be written.
	words []string
	// members are those of a mapping. It is a function because a mapping
	// binds its fields to where they are read to. title is what a mapping is
	// called that stands in several places.
	members func() mapping
	title   string
	// named is what the user gives names to, element what a list has.
	named, element *form
	// either: one of several.
	either []form
}

// scalar is the name of a form as the reference page has it.
type scalar string

const (
	aText      scalar = "text"
	aSecret    scalar = "secret"
	aPath      scalar = "path"
	aAddress   scalar = "address"
	aDuration  scalar = "duration"
	aWindow    scalar = "duration or forever"
	aSize      scalar = "size"
	aCount     scalar = "count"
	aNumber    scalar = "number"
	aRate      scalar = "rate"
	aHours     scalar = "hours"
	aTruth     scalar = "true or false"
	aStoreName scalar = "name of a store"
	aRule      scalar = "rule"
	aStatus    scalar = "status"
	aValue     scalar = "value"
)

// need makes a field required.
func (f field) need() field { f.required = true; return f }

// or gives a field a default, as it would be written.
func (f field) or(written string) field { f.initial = written; return f }

// means tells the default of whoever uses the value.
func (f field) means(written string) field { f.shown = written; return f }

// always has a mapping that is not there read as an empty one, for the defaults
// in it.
func (f field) always() field { f.implied = true; return f }

// fallback is the default that people are told, "" if there is none.
func (f *field) fallback() string {
	if f.initial != "" {
		return f.initial
	}
	return f.shown
}

func textField(name string, target *string, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aText}, read: func(v value) { v.text(target) }}
}

func secretField(name string, target *Secret, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aSecret}, read: func(v value) { v.secret(target) }}
}

func pathField(name string, target *string, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aPath}, read: func(v value) { v.filePath(target) }}
}

func durationField(name string, target *time.Duration, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aDuration}, read: func(v value) { v.duration(target) }}
}

// pauseField is a duration that may be 0.
func pauseField(name string, target *time.Duration, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aDuration}, read: func(v value) { v.pause(target) }}
}

func windowField(name string, target *time.Duration, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aWindow}, read: func(v value) { v.window(target) }}
}

func sizeField(name string, target *int64, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aSize}, read: func(v value) { v.size(target) }}
}

func countField(name string, target *int64, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aCount}, read: func(v value) { v.count(target) }}
}

func numberField(name string, target *int, least, most int64, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aNumber}, read: func(v value) { v.number(target, least, most) }}
}

func rateField(name string, target *float64, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aRate}, read: func(v value) { v.rate(target) }}
}

func hoursField(name string, target *Hours, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aHours}, read: func(v value) { quantity(v, target, "hours", ParseHours) }}
}

func truthField(name string, target *bool, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aTruth}, read: func(v value) { v.truth(target) }}
}

func choiceField(name string, target *string, doc string, words ...string) field {
	return field{name: name, doc: doc, form: form{words: words}, read: func(v value) { v.choice(target, words...) }}
}

func storeField(name string, target *Reference, doc string) field {
	return field{name: name, doc: doc, form: form{scalar: aStoreName}, read: func(v value) { *target = v.reference() }}
}

// listField is a list of what read reads, one element at a time.
func listField(name string, element form, read func(v value), doc string) field {
	return field{name: name, doc: doc, form: form{element: &element}, read: read}
}

func textsField(name string, target *[]string, doc string) field {
	return listField(name, form{scalar: aText}, func(v value) {
		v.list(func(element value) {
			var text string
			if element.text(&text); text != "" {
				*target = append(*target, text)
			}
		})
	}, doc)
}

// partField is a mapping of its own. members binds it to where it is read to.
func partField(name string, members func() mapping, doc string) field {
	return field{name: name, doc: doc, form: form{members: members}, read: func(v value) { v.mapping(members()) }}
}

// titled gives a mapping that stands in several places a name of its own.
func (f field) titled(title string) field { f.form.title = title; return f }

// kindField is one of several kinds of a thing, each with fields of its own.
func kindField[T any](name string, target *T, kind func() (T, mapping), doc string) field {
	return field{
		name: name, doc: doc,
		form: form{members: func() mapping { _, m := kind(); return m }},
		read: func(v value) {
			read, m := kind()
			v.mapping(m)
			*target = read
		},
	}
}

// mapping reads the members of a mapping and returns those that are there.
func (v value) mapping(m mapping) members {
	there := members{}
	entries, _ := v.entries()
	later := false
	for _, e := range entries {
		if slices.Contains(m.planned, e.name) {
			v.reader.wrong(e.at, "%s: %s", within(v.path, e.name), notYet(e.name, m.names()))
			later = true
			continue
		}
		i := slices.IndexFunc(m.fields, func(f field) bool { return f.name == e.name })
		if i < 0 {
			names := m.names()
			v.reader.wrong(e.at, "%s is no field that is known: %s", v.unknown(e, names), OneOf(e.name, names))
			continue
		}
		member := v.value(e.value, within(v.path, e.name))
		there[e.name] = member
		v.places[member.path] = member.at
		m.fields[i].read(member)
	}
	if v.node == nil {
		return there
	}
	for _, f := range m.fields {
		if _, ok := there[f.name]; ok {
			continue
		}
		if f.required {
			v.wrong("%s is missing", f.name)
			continue
		}
		f.fillIn(value{v.reader, nil, v.at, within(v.path, f.name)})
	}
	for _, group := range m.oneOf {
		if !later {
			v.oneOf(there, group...)
		}
	}
	if m.check != nil {
		m.check(v, there)
	}
	return there
}

// fillIn reads the default of a field that is not there.
func (f *field) fillIn(absent value) {
	switch {
	case f.implied:
		absent.node = &ast.NullNode{}
	case f.initial != "":
		absent.node = &ast.StringNode{Value: f.initial}
	default:
		return
	}
	f.read(absent)
}

// notYet says that a later version may know a name.
func notYet(name string, known []string) string {
	if name == "cel" {
		// cel-go brings eight modules and 9 MB of program, and a text that was
		// computed no longer tells "42" from 42, nor where one value ends and
		// the next begins, as a template does: see package key.
		return "this version has no CEL: template, all and hash make keys of several values"
	}
	return "this version does not have it: there are " + strings.Join(known, ", ")
}

func (m *mapping) names() []string {
	names := make([]string, len(m.fields))
	for i, f := range m.fields {
		names[i] = f.name
	}
	return names
}

// oneOf reports that none of the names is there, or more than one.
func (v value) oneOf(there members, names ...string) {
	found := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := there[name]; return !ok })
	switch {
	case len(found) == 0 && v.node != nil:
		v.wrong("one of %s is missing", strings.Join(names, ", "))
	case len(found) > 1:
		there.exclude(names...)
	}
}

// exclude reports that more than one of the names is there.
func (m members) exclude(names ...string) {
	found := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(name string) bool { return !slices.Contains(names, name) })
	slices.SortStableFunc(found, func(a, b string) int { return m[a].at.compare(m[b].at) })
	if len(found) > 1 {
		m[found[len(found)-1]].wrong("%s exclude each other: leave one", strings.Join(found, " and "))
	}
}
