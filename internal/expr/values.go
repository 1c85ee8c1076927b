package expr

import (
	"fmt"
	"reflect"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/semel-dev/semel/internal/jsontext"
)

// entries are the entries of a map, in an order that does not change. The maps of CEL
// have no order, and a record that is read again must become the same output.
type entries interface {
	// find returns the entry with the name.
	find(name string) (ref.Val, bool)
	// count returns the number of entries, and entry returns one of them.
	count() int
	entry(i int) (k, v ref.Val)
}

// mapping is a map of CEL.
type mapping struct{ entries }

var _ traits.Mapper = (*mapping)(nil)

// Find implements traits.Mapper.
func (m *mapping) Find(k ref.Val) (ref.Val, bool) {
	if name, ok := k.(types.String); ok {
		v, found := m.find(string(name))
		if types.IsError(v) {
			return v, false
		}
		return v, found
	}
	if f, ok := m.entries.(*fields); ok {
		return f.findKey(k)
	}
	return nil, false
}

// Contains implements traits.Container.
func (m *mapping) Contains(k ref.Val) ref.Val {
	v, found := m.Find(k)
	if types.IsError(v) {
		return v
	}
	return types.Bool(found)
}

// Get implements traits.Indexer.
func (m *mapping) Get(k ref.Val) ref.Val {
	v, found := m.Find(k)
	if !found && !types.IsError(v) {
		return types.NewErr("no such key: %v", k)
	}
	return v
}

// Size implements traits.Sizer.
func (m *mapping) Size() ref.Val { return types.Int(m.count()) }

// Iterator implements traits.Iterable.
func (m *mapping) Iterator() traits.Iterator {
	return &iterator{count: m.count(), at: func(i int) ref.Val {
		k, _ := m.entry(i)
		return k
	}}
}

// Equal implements ref.Val.
func (m *mapping) Equal(other ref.Val) ref.Val {
	o, ok := other.(traits.Mapper)
	if !ok || o.Size() != m.Size() {
		return types.False
	}
	for i := range m.count() {
		k, v := m.entry(i)
		if types.IsError(k) {
			return k
		}
		w, found := o.Find(k)
		if types.IsError(w) {
			return w
		}
		if !found {
			return types.False
		}
		if equal := equal(v, w); equal != types.True {
			return equal
		}
	}
	return types.True
}

// ConvertToNative implements ref.Val.
func (m *mapping) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("a map cannot become a %v", to)
}

// ConvertToType implements ref.Val.
func (m *mapping) ConvertToType(to ref.Type) ref.Val { return converted(m, to) }

// Type implements ref.Val.
func (m *mapping) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (m *mapping) Value() any { return m.entries }

// equal compares two values. One that cannot be read is neither equal nor unequal.
func equal(v, w ref.Val) ref.Val {
	if types.IsError(v) {
		return v
	}
	if types.IsError(w) {
		return w
	}
	a, isExact := v.(*exact)
	b, areExact := w.(*exact)
	if isExact && areExact {
		return types.Bool(same(a.text, b.text))
	}
	return types.Equal(rounded(v), rounded(w))
}

// converted converts a container, which can only be itself.
func converted(v ref.Val, to ref.Type) ref.Val {
	switch to {
	case v.Type():
		return v
	case types.TypeType:
		return v.Type().(ref.Val)
	}
	return types.NewErr("type conversion error from '%s' to '%s'", v.Type().TypeName(), to.TypeName())
}

// fields are the entries of a map that an expression makes, and the headers.
type fields struct {
	keys, vals []ref.Val
	caseless   bool // find ignores case
}

// set sets an entry. Of equal keys the last one counts.
func (f *fields) set(k, v ref.Val) {
	for i, known := range f.keys {
		if known.Equal(k) == types.True {
			f.vals[i] = v
			return
		}
	}
	f.keys, f.vals = append(f.keys, k), append(f.vals, v)
}

func (f *fields) find(name string) (ref.Val, bool) {
	for i, k := range f.keys {
		if s, ok := k.(types.String); ok && (string(s) == name || f.caseless && strings.EqualFold(string(s), name)) {
			return f.vals[i], true
		}
	}
	return nil, false
}

func (f *fields) findKey(k ref.Val) (ref.Val, bool) {
	for i, known := range f.keys {
		if types.Equal(known, k) == types.True {
			return f.vals[i], true
		}
	}
	return nil, false
}

func (f *fields) count() int                 { return len(f.keys) }
func (f *fields) entry(i int) (k, v ref.Val) { return f.keys[i], f.vals[i] }

// list is a JSON array.
type list struct {
	text  []byte
	read  bool
	texts [][]byte // of the elements
	vals  []ref.Val
}

var _ traits.Lister = (*list)(nil)

func (l *list) index() {
	if l.read {
		return
	}
	l.read = true
	for _, text, at := jsontext.Next(l.text, 0); text != nil; _, text, at = jsontext.Next(l.text, at) {
		l.texts = append(l.texts, text)
	}
	l.vals = make([]ref.Val, len(l.texts))
}

func (l *list) value(i int) ref.Val {
	if l.vals[i] == nil {
		l.vals[i] = valueOf(l.texts[i])
	}
	return l.vals[i]
}

// Add implements traits.Adder.
func (l *list) Add(other ref.Val) ref.Val {
	more, ok := other.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(other)
	}
	var all []ref.Val
	for _, from := range []traits.Lister{l, more} {
		for it := from.Iterator(); it.HasNext() == types.True; {
			all = append(all, it.Next())
		}
	}
	return types.NewRefValList(types.DefaultTypeAdapter, all)
}

// Contains implements traits.Container.
func (l *list) Contains(v ref.Val) ref.Val {
	l.index()
	for i := range l.texts {
		if equal := equal(v, l.value(i)); equal != types.False {
			return equal
		}
	}
	return types.False
}

// Get implements traits.Indexer.
func (l *list) Get(index ref.Val) ref.Val {
	l.index()
	i, err := types.GetOrError(index)
	if err != nil {
		return types.WrapErr(err)
	}
	if i < 0 || i >= len(l.texts) {
		return types.NewErr("index out of bounds: %d", i)
	}
	return l.value(i)
}

// Size implements traits.Sizer.
func (l *list) Size() ref.Val {
	l.index()
	return types.Int(len(l.texts))
}

// Iterator implements traits.Iterable.
func (l *list) Iterator() traits.Iterator {
	l.index()
	return &iterator{count: len(l.texts), at: l.value}
}

// Equal implements ref.Val.
func (l *list) Equal(other ref.Val) ref.Val {
	o, ok := other.(traits.Lister)
	if !ok || o.Size() != l.Size() {
		return types.False
	}
	for i := range l.texts {
		if equal := equal(l.value(i), o.Get(types.Int(i))); equal != types.True {
			return equal
		}
	}
	return types.True
}

// ConvertToNative implements ref.Val.
func (l *list) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("a list cannot become a %v", to)
}

// ConvertToType implements ref.Val.
func (l *list) ConvertToType(to ref.Type) ref.Val { return converted(l, to) }

// Type implements ref.Val.
func (l *list) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (l *list) Value() any { return l.texts }

// iterator is an iterator over a container that is not changed.
type iterator struct {
	next, count int
	at          func(i int) ref.Val
}

// HasNext implements traits.Iterator.
func (it *iterator) HasNext() ref.Val { return types.Bool(it.next < it.count) }

// Next implements traits.Iterator.
func (it *iterator) Next() ref.Val {
	if it.next >= it.count {
		return nil
	}
	it.next++
	return it.at(it.next - 1)
}

// ConvertToNative implements ref.Val.
func (it *iterator) ConvertToNative(to reflect.Type) (any, error) {
	return nil, fmt.Errorf("an iterator cannot become a %v", to)
}

// ConvertToType implements ref.Val.
func (it *iterator) ConvertToType(ref.Type) ref.Val { return types.NewErr("no such overload") }

// Equal implements ref.Val.
func (it *iterator) Equal(ref.Val) ref.Val { return types.NewErr("no such overload") }

// Type implements ref.Val.
func (it *iterator) Type() ref.Type { return types.IteratorType }

// Value implements ref.Val.
func (it *iterator) Value() any { return nil }
