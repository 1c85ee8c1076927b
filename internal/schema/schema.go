package schema

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Mapping declares the fields of one mapping. It is the only declaration of them:
// values are read by it, and the JSON Schema and the reference page are generated
// from it.
type Mapping struct {
	// Doc describes the mapping in one sentence, if it is one of several kinds.
	Doc    string
	Fields []Field
	// OneOf lists groups of fields. Exactly one field of each group must be
	// present.
	OneOf [][]string
	// Check reports conflicts between fields that are valid on their own.
	Check func(v Value, there Members)
	// Refused are fields that people may expect, with what to do instead.
	Refused map[string]string
	// Short is a list that may replace the fields of a kind.
	Short *Shorthand
}

// Shorthand is a list that means the same as the fields of a kind.
type Shorthand struct {
	Form Form
	Read func(v Value)
}

// Members are the fields that are present in a mapping.
type Members map[string]Value

// Field is one member of a mapping.
type Field struct {
	Name string
	// Doc is one or two sentences.
	Doc  string
	Read func(v Value)
	Form Form
	// Initial is read if the field is absent. Shown is the default of the code that
	// uses the value; it is documented and not read.
	Initial, Shown string
	// Inherits is the path of a mapping whose field of the same name holds if this one is
	// absent, or "".
	Inherits string
	// implied means that an absent mapping is read as an empty one.
	implied  bool
	Required bool
	// Unless are the paths, within the mapping, of fields that may bring the value of this
	// one. Without all of them, this one is required; with one, the reader of the mapping
	// decides.
	Unless []string
}

// Form describes the values of a field. Exactly one of its members is set, in addition to members
// that qualify another one.
type Form struct {
	// Scalar is the name of a form written as one word.
	Scalar Scalar
	// Words are the only allowed values.
	Words []string
	// Members returns the fields of a mapping. It is a function because a mapping
	// binds its fields to their targets. Title names a mapping that is used in
	// several places.
	Members func() Mapping
	Title   string
	// Named is the form of values under user-chosen names. Element is the form of
	// list elements.
	Named, Element *Form
	// MayBeEmpty permits a list without elements.
	MayBeEmpty bool
	// Either lists alternative forms.
	Either []Form
}

// Scalar is the name of a form on the reference page.
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
	ScalarShare     Scalar = "share"
	ScalarTruth     Scalar = "true or false"
	ScalarStoreName Scalar = "name of a store"
	ScalarRule      Scalar = "rule"
	ScalarStatus    Scalar = "status"
	ScalarValue     Scalar = "value"
)

// Need makes a field required.
func (f Field) Need() Field { f.Required = true; return f }

// NeedUnless makes a field required unless another one may bring its value.
func (f Field) NeedUnless(paths ...string) Field { f.Unless = paths; return f }

// Or sets the default of a field, as a user would write it.
func (f Field) Or(written string) Field { f.Initial = written; return f }

// Means documents the default of the code that uses the value.
func (f Field) Means(written string) Field { f.Shown = written; return f }

// Always reads an absent mapping as an empty one, so that its defaults apply.
func (f Field) Always() Field { f.implied = true; return f }

// Fallback returns the documented default, or "" if none exists.
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
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarDuration}, Read: func(v Value) { v.duration(target, false) }}
}

// PauseField is a duration that may be 0.
func PauseField(name string, target *time.Duration, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarDuration}, Read: func(v Value) { v.duration(target, true) }}
}

func WindowField(name string, target *time.Duration, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarWindow}, Read: func(v Value) { Quantity(v, target, "a duration", ParseWindow) }}
}

func SizeField(name string, target *int64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarSize}, Read: func(v Value) { Quantity(v, target, "a size", atLeast1(ParseSize)) }}
}

func CountField(name string, target *int64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarCount}, Read: func(v Value) { Quantity(v, target, "a number", atLeast1(ParseCount)) }}
}

func NumberField(name string, target *int, least, most int64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarNumber}, Read: func(v Value) { v.number(target, least, most) }}
}

func RateField(name string, target *float64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarRate}, Read: func(v Value) { v.rate(target) }}
}

// ShareField is a number from 0 to 1.
func ShareField(name string, target *float64, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Scalar: ScalarShare}, Read: func(v Value) { v.share(target) }}
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

// ListField is a list whose elements read reads one at a time.
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

// PartField is a nested mapping. members binds it to its target.
func PartField(name string, members func() Mapping, doc string) Field {
	return Field{Name: name, Doc: doc, Form: Form{Members: members}, Read: func(v Value) { v.Mapping(members()) }}
}

// Titled names a mapping that is used in several places.
func (f Field) Titled(title string) Field { f.Form.Title = title; return f }

// KindField is one of several kinds of a thing, each with its own fields. make
// returns a new value of the kind and the fields that fill it.
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

// KindsOf is a mapping that contains exactly one of several kinds.
func KindsOf(kinds ...Field) Mapping {
	m := Mapping{Fields: kinds}
	m.OneOf = [][]string{m.names()}
	return m
}

// Kind reads the kind that the mapping contains.
func (v Value) Kind(m Mapping, what, example string) {
	if text, ok := v.Node.(*ast.StringNode); ok {
		hint := "write the kind of the " + what + " and its settings, as in " + example
		if slices.Contains(m.names(), text.Value) {
			hint = "write { " + text.Value + ": {} } with its settings between the inner braces"
		}
		v.Wrong("expected fields, got a text: %s", hint)
		return
	}
	v.Mapping(m)
}

// Mapping reads the members of a mapping and returns those that are present.
func (v Value) Mapping(m Mapping) Members {
	there := Members{}
	entries, ok := v.entries(m.instead(v))
	unknown := !ok
	for _, e := range entries {
		i := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Name == e.Name })
		if i < 0 {
			names := m.names()
			if why := m.Refused[e.Name]; why != "" {
				v.WrongAt(e.At, "%s is not possible: %s", Within(v.Path, e.Name), why)
				unknown = true
				continue
			}
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
			if ok { // otherwise the problem is that there are no fields
				v.Wrong("%s is missing", f.Name)
			}
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

// instead returns a hint for a text in the place of the mapping, if only one of the fields
// is required: how to write the text as the value of that field. It shows a path or rule,
// and no text that may be secret.
func (m *Mapping) instead(v Value) string {
	text, ok := v.Node.(*ast.StringNode)
	at := slices.IndexFunc(m.Fields, func(f Field) bool { return f.Required })
	if !ok || at < 0 || slices.ContainsFunc(m.Fields[at+1:], func(f Field) bool { return f.Required }) {
		return ""
	}
	form, value := m.Fields[at].Form, "%s"
	if form.Element != nil {
		form, value = *form.Element, "[%s]"
	}
	if len(form.Either) > 0 {
		form = form.Either[0]
	}
	written := "…"
	switch {
	case form.Scalar != ScalarPath && form.Scalar != ScalarRule:
	case strings.ContainsAny(text.Value, "[]{},:#&*!|>'\"%@` "):
		written = strconv.Quote(text.Value)
	default:
		written = text.Value
	}
	name := v.Path[strings.LastIndexByte(v.Path, '.')+1:]
	return ": write " + name + ": { " + m.Fields[at].Name + ": " + fmt.Sprintf(value, written) + " }"
}

// fillIn reads the default of an absent field.
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

// oneOf reports that none of the names is present, or more than one. An unknown
// field may be a misspelling of one of them.
func (v Value) oneOf(there Members, unknown bool, names ...string) {
	found := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := there[name]; return !ok })
	switch {
	case len(found) == 0 && v.Node != nil && !unknown:
		v.Wrong("one of %s is missing", strings.Join(names, ", "))
	case len(found) > 1:
		there.exclude(names...)
	}
}

// exclude reports that more than one of the names is present.
func (m Members) exclude(names ...string) {
	found := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(name string) bool { return !slices.Contains(names, name) })
	slices.SortStableFunc(found, func(a, b string) int { return m[a].at.Compare(m[b].at) })
	if len(found) > 1 {
		m[found[len(found)-1]].Wrong("%s exclude each other: keep one", strings.Join(found, " and "))
	}
}
