package key

import (
	"bytes"
	"strings"
)

// Template returns the rule of a text with values in it, as in
// "order-{.order_id}-placed" or "{header:tenant}/{.id}". A value is a path,
// header:NAME, record-key or property:message-id. {{ and }} stand for the
// braces themselves. The id is the text with the values filled in:
//
//   - A string stays as it is, which keeps the id readable.
//   - A number, true or false is in single quotes, because 42 is not "42".
//   - A string is in double quotes if it begins with a quote of either kind,
//     or if the end of the value would otherwise not be clear. A backslash
//     escapes its quotes and backslashes.
//
// So two messages have the same id exactly if all values are equal. With
// "{.a}-{.b}" the values "x-y" and "z" give "x-y"-z in double quotes, and "x"
// and "y-z" give x-y-z.
//
// Errors are [*RuleError].
func Template(text string) (*Rule, error) {
	r := &Rule{form: FormTemplate, text: text}
	p := parser{text: text}
	var literal strings.Builder
	for !p.done() {
		switch c := p.peek(); {
		case p.take("{{"):
			literal.WriteByte('{')
		case p.take("}}"):
			literal.WriteByte('}')
		case c == '{':
			value, err := p.field()
			if err != nil {
				return nil, err
			}
			r.texts = append(r.texts, literal.String())
			r.rules = append(r.rules, value)
			literal.Reset()
		case c == '}':
			return nil, p.errorf("'}' has no '{' before it; write }} for the brace itself")
		default:
			literal.WriteByte(c)
			p.pos++
		}
	}
	if len(r.rules) == 0 {
		return nil, p.errorf("the template has no value, so every message would have one id: write {.path}")
	}
	r.texts = append(r.texts, literal.String())
	return r, nil
}

// field reads a value and the braces around it.
func (p *parser) field() (*Rule, error) {
	p.pos++ // the '{'
	start := p.pos
	if p.peek() == '.' {
		if _, err := p.path(); err != nil {
			return nil, err
		}
	} else if n := strings.IndexByte(p.text[p.pos:], '}'); n >= 0 {
		p.pos += n
	} else {
		p.pos = len(p.text)
	}
	if p.peek() != '}' {
		return nil, p.errorf("expected '}', found %s", p.here())
	}
	rule, err := ParseRule(p.text[start:p.pos])
	if err != nil {
		p.pos = start
		return nil, p.errorf("%v", err)
	}
	switch rule.form {
	case FormPath, FormHeader, FormRecordKey, FormMessageID:
	default:
		p.pos = start
		return nil, p.errorf("%s is not allowed in a template: use a path, header:NAME, record-key or property:message-id", rule)
	}
	p.pos++ // the '}'
	return rule, nil
}

func (x *Reader) appendTemplate(dst []byte, n *reading) ([]byte, error) {
	start := len(dst)
	dst = append(dst, n.texts[0]...)
	for i := range n.parts {
		value := len(dst)
		var err error
		if dst, err = x.append(dst, &n.parts[i]); err != nil {
			return dst, err
		}
		last := i == len(n.parts)-1
		dst = append(x.delimit(dst, value, n.texts[i+1], last), n.texts[i+1]...)
	}
	if dst[start] == mark {
		x.text = append(x.text[:0], dst[start:]...)
		dst = AppendString(dst[:start], x.text)
	}
	return dst, nil
}

// delimit converts the id dst[start:] to its form in a template before the
// following text. The last value needs no end, because the text after it always
// has the same length.
func (x *Reader) delimit(dst []byte, start int, following string, last bool) []byte {
	id := append(x.text[:0], dst[start:]...)
	x.text = id
	if id[0] == mark && id[1] != markString {
		return appendQuotedID(dst[:start], id[1], id[2:])
	}
	if id[0] == mark {
		id = id[2:]
	}
	if id[0] != '"' && id[0] != '\'' {
		if dst = append(dst[:start], id...); last {
			return dst
		}
		dst = append(dst, following...)
		if bytes.Index(dst[start:], []byte(following)) == len(id) {
			return dst[:start+len(id)]
		}
	}
	dst = append(dst[:start], '"')
	for _, c := range id {
		if c == '"' || c == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
}

// appendQuotedID appends a value in single quotes that is not a string, or a
// string without bytes of its own.
func appendQuotedID(dst []byte, kind byte, text []byte) []byte {
	dst = append(dst, '\'')
	switch kind {
	case markTrue:
		dst = append(dst, "true"...)
	case markFalse:
		dst = append(dst, "false"...)
	default: // the text of a number, or the canonical JSON of a string with a lone surrogate
		dst = append(dst, text...)
	}
	return append(dst, '\'')
}
