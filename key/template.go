package key

import (
	"strconv"
	"strings"
)

// Template returns the rule of a text with values in it, as in
// "order-{.order_id}-placed" or "{header:tenant}/{.id}". A value is a path,
// header:NAME, record-key, property:message-id, or a function around one of them. {{ and }} stand for the
// braces themselves. The id is that of the string with the values filled in as people write
// them: a string without quotes, a number by its text in the body, true or false.
//
// So different values can have one id: 7 and "7", and with "{.a}-{.b}" the values "x-y"
// and "z" and the values "x" and "y-z". [Rule.Ambiguous] has examples. A rule made by [All]
// tells all values apart.
//
// Errors are [*RuleError].
func Template(text string) (*Rule, error) {
	r := &Rule{form: FormTemplate, text: "template " + text}
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
	} else if shaped, err := parseShaped(p); err != nil {
		return nil, err
	} else if shaped != nil {
		// p is behind it.
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
	if !rule.isValue() && rule.form != FormShaped {
		p.pos = start
		return nil, p.errorf("%s is not allowed in a template: use a path, header:NAME, record-key or property:message-id", rule)
	}
	p.pos++ // the '}'
	return rule, nil
}

func (x *Reader) appendTemplate(dst []byte, n *reading) ([]byte, error) {
	text, lone, err := x.fill(x.text[:0], n, false)
	if err == nil && lone {
		text, _, err = x.fill(text[:0], n, true)
	}
	x.text = text
	switch {
	case err != nil:
		return dst, err
	case lone:
		return append(append(append(dst, mark, markUnpaired, '"'), text...), '"'), nil
	}
	return AppendString(dst, text), nil
}

// fill appends the text of a template, or with escapes its canonical form in JSON. lone
// reports a value that has half of a surrogate pair, which only the latter can hold.
func (x *Reader) fill(dst []byte, n *reading, escapes bool) (_ []byte, lone bool, err error) {
	for i := range n.parts {
		dst = appendLiteral(dst, n.texts[i], escapes)
		if x.value, err = x.append(x.value[:0], &n.parts[i]); err != nil {
			return dst, false, err
		}
		switch id := x.value; {
		case len(id) > 2 && id[0] == mark && id[1] == markUnpaired:
			lone = true
			dst = append(dst, id[len("\x00u\""):len(id)-1]...)
		case escapes:
			dst = appendCanonicalName(dst, AppendText(nil, id))
		default:
			dst = AppendText(dst, id)
		}
	}
	return appendLiteral(dst, n.texts[len(n.parts)], escapes), lone, nil
}

func appendLiteral(dst []byte, text string, escapes bool) []byte {
	if escapes {
		return appendCanonicalName(dst, text)
	}
	return append(dst, text...)
}

// Ambiguity is an example of two lists of values of which a template makes one id.
type Ambiguity struct {
	// First and Second are the values, as in `.a "x-y", .b "z"`, and ID is the id of both.
	First, Second, ID string
	// Between is the text that stands between two values and may stand in a value too. It
	// is "" if nothing stands between them.
	Between string
	// OfTypes means that the values differ only in their types. Between is "" then.
	OfTypes bool
}

// Ambiguous returns what different values of a template can have one id, at most an example
// of types and one of neighbours. Other forms have none: their ids tell all values apart.
func (r *Rule) Ambiguous() []Ambiguity {
	if r.form != FormTemplate {
		return nil
	}
	var list []Ambiguity
	for i, value := range r.rules {
		if value.form == FormPath || value.form == FormShaped && value.shapes[0].name != "number" && len(value.Paths()) > 0 {
			list = append(list, Ambiguity{First: value.text + " 7", Second: value.text + ` "7"`, ID: r.example(i, "7"), OfTypes: true})
			break
		}
	}
	at := -1 // the left one of two neighbours, best of two without a text between them
	for i := range len(r.rules) - 1 {
		if at < 0 || r.texts[i+1] == "" {
			at = i
		}
		if r.texts[i+1] == "" {
			break
		}
	}
	if at < 0 {
		return list
	}
	between := r.texts[at+1]
	one, two := []string{"x" + between + "y", "z"}, []string{"x", "y" + between + "z"}
	return append(list, Ambiguity{First: r.values(at, one), Second: r.values(at, two), ID: r.example(at, one...), Between: between})
}

// values writes the values of neighbours from the one at i on.
func (r *Rule) values(i int, values []string) string {
	return r.rules[i].text + " " + strconv.Quote(values[0]) + ", " + r.rules[i+1].text + " " + strconv.Quote(values[1])
}

// example returns the id of a template for values from the one at i on. The others are 1.
func (r *Rule) example(i int, values ...string) string {
	var b strings.Builder
	for n := range r.rules {
		value := "1"
		if n >= i && n < i+len(values) {
			value = values[n-i]
		}
		b.WriteString(r.texts[n] + value)
	}
	return b.String() + r.texts[len(r.rules)]
}
