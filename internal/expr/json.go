package expr

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/semel-dev/semel/internal/jsontext"
)

// The functions below read JSON that package key has found valid.

// valueOf returns the value of a JSON text without space around it. A container is read
// when a member or an element is asked for.
func valueOf(text []byte) ref.Val {
	switch text[0] {
	case '{':
		return &mapping{entries: &object{text: text}}
	case '[':
		return &list{text: text}
	case '"':
		s, err := textOf(text[1 : len(text)-1])
		if err != nil {
			return types.WrapErr(err)
		}
		return types.String(s)
	case 't':
		return types.True
	case 'f':
		return types.False
	case 'n':
		return types.NullValue
	}
	n, err := numberOf(text)
	if err != nil {
		return types.WrapErr(err)
	}
	return n
}

// errText is the error of a text that CEL, whose strings are Unicode, cannot hold. A
// replacement character would change the message in silence.
var errText = errors.New("a text of the body is not valid Unicode")

// textOf returns the value of a string without its quotes.
func textOf(text []byte) (string, error) {
	if !utf8.Valid(text) {
		return "", errText
	}
	if bytes.IndexByte(text, '\\') < 0 {
		return string(text), nil
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			out = append(out, text[i])
			i++
			continue
		}
		c := text[i+1]
		if c != 'u' {
			if short := bytes.IndexByte([]byte("bfnrt"), c); short >= 0 {
				c = "\b\f\n\r\t"[short]
			}
			out = append(out, c)
			i += 2
			continue
		}
		r := escaped(text[i:])
		i += 6
		if utf16.IsSurrogate(r) {
			if i+6 > len(text) || text[i] != '\\' || text[i+1] != 'u' {
				return "", errText
			}
			if r = utf16.DecodeRune(r, escaped(text[i:])); r == utf8.RuneError {
				return "", errText
			}
			i += 6
		}
		out = utf8.AppendRune(out, r)
	}
	return string(out), nil
}

// escaped returns the number of the \u escape at the start of a text.
func escaped(text []byte) rune {
	n, _ := strconv.ParseUint(string(text[2:6]), 16, 16) // the text is valid
	return rune(n)
}

// numberOf returns an integer as it is, and any other number as a double, with its text if it
// would change.
func numberOf(text []byte) (ref.Val, error) {
	if bytes.ContainsAny(text, ".eE") || string(text) == "-0" {
		x, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			return nil, fmt.Errorf("the number %s of the body is too large for a double", shortened(text))
		}
		return exactly(types.Double(x), text), nil
	}
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return types.Int(n), nil
	}
	if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		return types.Uint(n), nil
	}
	return nil, fmt.Errorf("the integer %s of the body has more than 64 bits", shortened(text))
}

// shortened returns a text that may be long.
func shortened(text []byte) string {
	if len(text) > 40 {
		return string(text[:40]) + "…"
	}
	return string(text)
}

// member is a member of an object.
type member struct {
	name []byte // without its quotes
	text []byte // of the value
	val  ref.Val
}

// object is a JSON object. Of members with the same name the last one counts, as in
// encoding/json and in key rules.
type object struct {
	text    []byte
	read    bool
	members []member
	// last is the place of the last member of each name. It is nil until it is needed.
	last map[string]int
	// own are the places of the members that count, once all are asked for.
	own []int
}

// few is the number of members up to which one is found by comparing.
const few = 24

func (o *object) index() {
	if o.read {
		return
	}
	o.read = true
	for name, text, at := jsontext.Next(o.text, 0); text != nil; name, text, at = jsontext.Next(o.text, at) {
		o.members = append(o.members, member{name: name[1 : len(name)-1], text: text})
	}
}

// value returns the value of a member.
func (o *object) value(i int) ref.Val {
	m := &o.members[i]
	if m.val == nil {
		m.val = valueOf(m.text)
	}
	return m.val
}

func (o *object) find(name string) (ref.Val, bool) {
	o.index()
	if len(o.members) > few {
		o.byName()
		i, ok := o.last[name]
		if !ok {
			return nil, false
		}
		return o.value(i), true
	}
	for i := len(o.members) - 1; i >= 0; i-- {
		m := &o.members[i]
		if string(m.name) == name || bytes.IndexByte(m.name, '\\') >= 0 && isName(m.name, name) {
			return o.value(i), true
		}
	}
	return nil, false
}

func isName(text []byte, name string) bool {
	s, err := textOf(text)
	return err == nil && s == name
}

// byName fills last.
func (o *object) byName() {
	if o.last != nil {
		return
	}
	o.last = make(map[string]int, len(o.members))
	for i := range o.members {
		if name, err := textOf(o.members[i].name); err == nil {
			o.last[name] = i
		}
	}
}

func (o *object) count() int {
	o.index()
	if o.own == nil {
		o.byName()
		o.own = make([]int, 0, len(o.last))
		for i := range o.members {
			if name, err := textOf(o.members[i].name); err != nil || o.last[name] == i {
				o.own = append(o.own, i)
			}
		}
	}
	return len(o.own)
}

func (o *object) entry(i int) (k, v ref.Val) {
	at := o.own[i]
	name, err := textOf(o.members[at].name)
	if err != nil {
		return types.WrapErr(err), nil
	}
	return types.String(name), o.value(at)
}
