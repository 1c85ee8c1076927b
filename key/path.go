package key

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxPathSteps bounds the length of a path. It is far more than anyone uses and
// far less than a document may nest.
const maxPathSteps = 1000

// Path is a place in a JSON document. The zero Path is the whole document. A
// Path is immutable and safe for concurrent use.
type Path struct{ steps []step }

// step goes to a member or, if the name is empty, to an element.
type step struct {
	name    string
	index   int
	element bool
}

// ParsePath reads a path in the notation of jq: ".a.b", ".items[0].id", ".[0]",
// ".[\"odd.name\"]", and "." for the whole document. A name without quotes
// consists of letters, digits, '_', '-', '$', '@' and non-ASCII characters. A
// name in quotes is a JSON string. Errors are [*RuleError].
func ParsePath(text string) (Path, error) {
	p := parser{text: text}
	path, err := p.path()
	if err != nil {
		return Path{}, err
	}
	if !p.done() {
		return Path{}, p.errorf("%s cannot follow the path; %s", p.here(), quoteHint)
	}
	return path, nil
}

// String returns the path in the notation of ParsePath.
func (p Path) String() string {
	if len(p.steps) == 0 {
		return "."
	}
	var b strings.Builder
	for i, s := range p.steps {
		switch {
		case s.element || !isPlainName(s.name):
			if i == 0 {
				b.WriteByte('.')
			}
			b.WriteByte('[')
			if s.element {
				b.WriteString(strconv.Itoa(s.index))
			} else {
				b.Write(appendCanonicalString(nil, []byte(s.name)))
			}
			b.WriteByte(']')
		default:
			b.WriteByte('.')
			b.WriteString(s.name)
		}
	}
	return b.String()
}

// Name returns the name of the member if the path is one member of the
// document, as in ".event_id". In CSV this is the name of a column.
func (p Path) Name() (name string, ok bool) {
	if len(p.steps) != 1 || p.steps[0].element {
		return "", false
	}
	return p.steps[0].name, true
}

// Split returns the path of the object that has the member to which the path
// leads, and the name of that member. The name is "" if the path is the whole
// document or leads to an element of an array.
func (p Path) Split() (parent Path, name string) {
	last := len(p.steps) - 1
	if last < 0 {
		return Path{}, ""
	}
	return Path{p.steps[:last:last]}, p.steps[last].name
}

const quoteHint = `other names are written .["name"]`

func (p *parser) path() (Path, error) {
	if p.peek() != '.' {
		return Path{}, p.errorf("a path begins with '.', not with %s", p.here())
	}
	p.pos++
	var path Path
	if c := p.peek(); !p.done() && c != '[' && isPlainByte(c) {
		name, err := p.plainName()
		if err != nil {
			return Path{}, err
		}
		path.steps = append(path.steps, step{name: name})
	} else if c != '[' {
		return path, nil
	}
	for len(path.steps) < maxPathSteps {
		var s step
		var err error
		switch {
		case p.peek() == '[':
			s, err = p.bracket()
		case p.peek() == '.':
			p.pos++
			s.name, err = p.plainName()
		default:
			return path, nil
		}
		if err != nil {
			return Path{}, err
		}
		path.steps = append(path.steps, s)
	}
	return Path{}, p.errorf("a path has at most %d steps", maxPathSteps)
}

func (p *parser) plainName() (string, error) {
	start := p.pos
	for !p.done() && isPlainByte(p.peek()) {
		p.pos++
	}
	name := p.text[start:p.pos]
	if name == "" {
		return "", p.errorf("expected a name after '.', found %s; %s", p.here(), quoteHint)
	}
	if !utf8.ValidString(name) {
		p.pos = start
		return "", p.errorf("the name is not valid UTF-8")
	}
	return name, nil
}

func (p *parser) bracket() (step, error) {
	p.pos++ // the '['
	var s step
	start := p.pos
	if p.peek() == '"' {
		name, err := p.quoted()
		if err != nil {
			return s, err
		}
		s.name = name
	} else {
		for !p.done() && '0' <= p.peek() && p.peek() <= '9' {
			p.pos++
		}
		digits := p.text[start:p.pos]
		index, err := strconv.ParseInt(digits, 10, 31)
		switch {
		case digits == "":
			return s, p.errorf(`expected an index from 0 or a name in double quotes after '[', found %s`, p.here())
		case err != nil || len(digits) > 1 && digits[0] == '0':
			p.pos = start
			return s, p.errorf("%q is not an index: use digits without leading zeros, up to %d", digits, 1<<30)
		}
		s = step{index: int(index), element: true}
	}
	if p.peek() != ']' || p.done() {
		return s, p.errorf("expected ']', found %s", p.here())
	}
	p.pos++
	return s, nil
}

// quoted reads a JSON string. It refuses names that are not valid Unicode,
// because a person writes paths.
func (p *parser) quoted() (string, error) {
	start := p.pos
	raw := []byte(p.text[start:])
	end, escaped, bad := stringEnd(raw, 1)
	if bad != "" {
		p.pos = start + end
		return "", p.errorf("%s", bad)
	}
	name, lone := raw[1:end-1], false
	if escaped {
		name, lone = appendUnescaped(nil, raw[1:end-1])
	}
	if lone || !utf8.Valid(name) {
		return "", p.errorf("the name is not valid Unicode")
	}
	p.pos += end
	return string(name), nil
}

func isPlainName(name string) bool {
	for i := range len(name) {
		if !isPlainByte(name[i]) {
			return false
		}
	}
	return name != ""
}

func isPlainByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '_' || c == '-' || c == '$' || c == '@' || c >= utf8.RuneSelf
}
