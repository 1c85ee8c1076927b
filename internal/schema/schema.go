package schema

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
type Mapping struct {
	// Doc says in a sentence what the mapping is, where it is one of several kinds.
	Doc    string
	Fields []Field
	// oneOf are groups of fields, of each of which exactly one must be there.
	OneOf [][]string
	// check reports what is wrong between fields that are each right.
	Check func(v Value, there Members)
	// short is a list that may stand in place of the fields of a kind.
	Short *Shorthand
}

// shorthand is a list that says the same as the fields of a kind.
type Shorthand struct {
	Form Form
	Read func(v Value)
}

// members are the fields of a mapping that are there.
type Members map[string]Value

// field is one member of a mapping.
type Field struct {
	Name string
	// doc is one or two sentences.
	Doc  string
	Read func(v Value)
	Form Form
	// initial is read if the field is not there; shown is the default of
	// whoever uses the value, which is told and not read.
	Initial, Shown string
	// implied: a mapping that is not there is read as an empty one.
	implied  bool
	Required bool
}

// form says what a value looks like. One of its members is set.
type Form struct {
	// scalar is the name of what is written as one word.
	Scalar Scalar
	// words are all that may be written.
	Words []string
	// members are those of a mapping. It is a function because a mapping
	// binds its fields to where they are read to. title is what a mapping is
	// called that stands in several places.
	Members func() Mapping
	Title   string
	// named is what the user gives names to, element what a list has.
	Named, Element *Form
	// either: one of several.
	Either []Form
}

// scalar is the name of a form as the reference page has it.
type Scalar string

const (
	ScalarText      Scalar = "text"
	ScalarSecret    Scalar = "secret"
	ScalarPath      Scalar = "path"
	ScalarAddress   Scalar = "address"
	ScalarDuration  Scalar = "duration"
	ScalarWindow    Scalar = "duration or forever"
	ScalarSize      Scalar = "size"
	ScalarCount     Scalar = "count"
	ScalarNumber    Scalar = "number"
	ScalarRate      Scalar = "rate"
	ScalarHours     Scalar = "hours"
	ScalarTruth     Scalar = "true or false"
	ScalarStoreName Scalar = "name of a store"
	ScalarRule      Scalar = "rule"
	ScalarStatus    Scalar = "status"
	ScalarValue     Scalar = "value"
)

// need makes a field required.
func (f Field) Need() Field { f.Required = true; return f }

// or gives a field a default, as it would be written.
func (f Field) Or(written string) Field { f.Initial = written; return f }

// means tells the default of whoever uses the value.
func (f Field) Means(written string) Field { f.Shown = written; return f }

// always has a mapping that is not there read as an empty one, for the defaults
// in it.
func (f Field) Always() Field { f.implied = true; return f }

// fallback is the default that people are told, "" if there is none.
func (f *Field) Fallback() string {
	if f.Initial != "" {
		return f.Initial
	}
	return f.Shown
}

func TextField(name string, target *string, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarText}, Read: func(v Value) { v.Text(target) }}
}

func SecretField(name string, target *Secret, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarSecret}, Read: func(v Value) { v.Secret(target) }}
}

func PathField(name string, target *string, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarPath}, Read: func(v Value) { v.FilePath(target) }}
}

func DurationField(name string, target *time.Duration, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarDuration}, Read: func(v Value) { v.duration(target) }}
}

// pauseField is a duration that may be 0.
func PauseField(name string, target *time.Duration, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarDuration}, Read: func(v Value) { v.pause(target) }}
}

func WindowField(name string, target *time.Duration, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarWindow}, Read: func(v Value) { v.window(target) }}
}

func SizeField(name string, target *int64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarSize}, Read: func(v Value) { v.size(target) }}
}

func CountField(name string, target *int64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarCount}, Read: func(v Value) { v.count(target) }}
}

func NumberField(name string, target *int, least, most int64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarNumber}, Read: func(v Value) { v.number(target, least, most) }}
}

func RateField(name string, target *float64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarRate}, Read: func(v Value) { v.rate(target) }}
}

func HoursField(name string, target *Hours, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarHours}, Read: func(v Value) { Quantity(v, target, "hours", ParseHours) }}
}

func TruthField(name string, target *bool, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarTruth}, Read: func(v Value) { v.Truth(target) }}
}

func ChoiceField(name string, target *string, doc string, words ...string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Words: words}, Read: func(v Value) { v.choice(target, words...) }}
}

func StoreField(name string, target *Reference, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarStoreName}, Read: func(v Value) { *target = v.reference() }}
}

// listField is a list of what read reads, one element at a time.
func ListField(name string, element Form, read func(v Value), doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Element: &element}, Read: read}
}

func TextsField(name string, target *[]string, doc string) Field {
	return ListField(name, Form{Scalar: ScalarText}, func(v Value) {
		v.List(func(element Value) {
			var text string
			if element.Text(&text); text != "" {
				*target = append(*target, text)
			}
		})
	}, doc)
}

// partField is a mapping of its own. members binds it to where it is read to.
func PartField(name string, members func() Mapping, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Members: members}, Read: func(v Value) { v.Mapping(members()) }}
}

// titled gives a mapping that stands in several places a name of its own.
func (f Field) Titled(title string) Field { f.Form.Title = title; return f }

// kindField is one of several kinds of a thing, each with fields of its own.
// make returns a new value of the kind and the fields that fill it in.
func KindField[T any](name string, target *T, make func() (T, Mapping), doc string) Field {
	_, shown := make()
	f := Field{
		Name: name, Doc: doc,
		Form: Form{Members: func() Mapping { _, m := make(); return m }},
		Read: func(v Value) {
			made, m := make()
			*target = made
			if _, short := v.Node.(*ast.SequenceNode); short && m.Short != nil {
				m.Short.Read(v)
				return
			}
			v.Mapping(m)
		},
	}
	if shown.Short != nil {
		f.Form = Form{Either: []Form{shown.Short.Form, f.Form}}
	}
	return f
}

// kindsOf is a mapping that has one of several kinds.
func KindsOf(kinds ...Field) Mapping {
	m := Mapping{Fields: kinds}
	m.OneOf = [][]string{m.names()}
	return m
}

// kind reads which of several kinds something is.
func (v Value) Kind(m Mapping, what, example string) {
	if text, ok := v.Node.(*ast.StringNode); ok {
		hint := "write the kind of the " + what + " and its settings, as in " + example
		if slices.Contains(m.names(), text.Value) {
			hint = "write { " + text.Value + ": {} } with its settings between the inner braces"
		}
		v.Wrong("fields are wanted, not a text: %s", hint)
		return
	}
	v.Mapping(m)
}

// mapping reads the members of a mapping and returns those that are there.
func (v Value) Mapping(m Mapping) Members {
	there := Members{}
	entries, _ := v.Entries()
	unknown := false
	for _, e := range entries {
		i := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Name == e.Name })
		if i < 0 {
			names := m.names()
			v.WrongAt(e.At, "unknown field %s: %s", v.unknown(e, names), OneOf(e.Name, names))
			unknown = true
			continue
		}
		member := v.Value(e.Value, Within(v.Path, e.Name))
		there[e.Name] = member
		v.Places[member.Path] = member.at
		m.Fields[i].Read(member)
	}
	if v.Node == nil {
		return there
	}
	for _, f := range m.Fields {
		if _, ok := there[f.Name]; ok {
			continue
		}
		if f.Required {
			v.Wrong("%s is missing", f.Name)
			continue
		}
		f.fillIn(Value{v.Document, nil, v.at, Within(v.Path, f.Name)})
	}
	for _, group := range m.OneOf {
		v.oneOf(there, unknown, group...)
	}
	if m.Check != nil {
		m.Check(v, there)
	}
	return there
}

// fillIn reads the default of a field that is not there.
func (f *Field) fillIn(absent Value) {
	switch {
	case f.implied:
		absent.Node = &ast.NullNode{}
	case f.Initial != "":
		absent.Node = &ast.StringNode{Value: f.Initial}
	default:
		return
	}
	f.Read(absent)
}

func (m *Mapping) names() []string {
	names := make([]string, len(m.Fields))
	for i, f := range m.Fields {
		names[i] = f.Name
	}
	return names
}

// oneOf reports that none of the names is there, or more than one. An unknown
// field may have been meant to be one of them.
func (v Value) oneOf(there Members, unknown bool, names ...string) {
	found := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := there[name]; return !ok })
	switch {
	case len(found) == 0 && v.Node != nil && !unknown:
		v.Wrong("one of %s is missing", strings.Join(names, ", "))
	case len(found) > 1:
		there.exclude(names...)
	}
}

// exclude reports that more than one of the names is there.
func (m Members) exclude(names ...string) {
	found := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(name string) bool { return !slices.Contains(names, name) })
	slices.SortStableFunc(found, func(a, b string) int { return m[a].at.Compare(m[b].at) })
	if len(found) > 1 {
		m[found[len(found)-1]].Wrong("%s exclude each other: leave one", strings.Join(found, " and "))
	}
}
