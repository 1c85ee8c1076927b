package key

import (
	"bytes"
	"slices"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/semel-dev/semel/internal/decimal"
)

// shape is a function around a path.
type shape struct {
	name string
	// ignores is what differs between values that it makes equal.
	ignores string
	// text changes a text, or returns it. The text is the value, or the part of it between
	// two lone halves of surrogate pairs; first and last say whether it has the value's ends.
	text func(text []byte, first, last bool) []byte
}

var shapes = []shape{
	{"lower", "upper and lower case", func(text []byte, _, _ bool) []byte { return lower(text) }},
	{"trim", "white space at the ends", trim},
	{"nfc", "the Unicode composition of characters", func(text []byte, _, _ bool) []byte { return compose(text) }},
	{"number", `the spelling of a number, as 7, 7.0 and "7"`, func(text []byte, _, _ bool) []byte { return text }},
}

// parseShaped reads functions around a path or another value, such as lower(.email). It returns
// nil if the text does not begin with a function.
func parseShaped(p *parser) (*Rule, error) {
	at := slices.IndexFunc(shapes, func(s shape) bool { return p.take(s.name + "(") })
	if at < 0 {
		return nil, nil
	}
	s := &shapes[at]
	p.spaces()
	r, err := parseShaped(p)
	start := p.pos
	switch {
	case err != nil:
		return nil, err
	case r != nil:
	case p.peek() == '.':
		path, err := p.path()
		if err != nil {
			return nil, err
		}
		value := pathRule(path)
		r = &Rule{form: FormShaped, text: value.text, rules: []*Rule{value}}
	default:
		for !p.done() && p.peek() != ')' {
			p.pos++
		}
		text := p.text[start:p.pos]
		value, err := ParseRule(text)
		if _, notPath := ParsePath("." + text); err != nil && unstable[text] == "" && notPath == nil {
			p.pos = start
			return nil, p.errorf("a path begins with '.': write %s(.%s)", s.name, text)
		}
		if err != nil || !value.isValue() {
			p.pos = start
			return nil, p.errorf("%s() is around one value: a path that begins with '.', header:NAME, record-key or property:message-id", s.name)
		}
		r = &Rule{form: FormShaped, text: value.text, rules: []*Rule{value}}
	}
	p.spaces()
	if !p.take(")") {
		return nil, p.errorf("expected ')', found %s; %s", p.here(), quoteHint)
	}
	r.text, r.shapes = s.name+"("+r.text+")", append(r.shapes, s)
	return r, nil
}

// replace replaces the id of a value, which is dst[start:]. It reports whether nothing is left
// of a text.
func (s *shape) replace(dst []byte, start int) (_ []byte, isEmpty bool) {
	id := dst[start:]
	number := s.name == "number"
	if len(id) >= 2 && id[0] == mark {
		switch text := id[2:]; id[1] {
		case markString:
			id = text
		case markNumber:
			if n, ok := decimal.Parse(text); number && ok {
				dst = AppendNumber(dst[:start], n.Append(nil))
			}
			return dst, false
		case markUnpaired:
			text = s.unpaired(text[1 : len(text)-1])
			return append(append(append(dst[:start], mark, markUnpaired, '"'), text...), '"'), false
		default:
			return dst, false
		}
	}
	if number {
		if n, ok := decimal.Parse(unsigned(id)); ok {
			dst = AppendNumber(dst[:start], n.Append(nil))
		}
		return dst, false
	}
	text := s.text(id, true, true)
	if len(text) > 0 && text[0] == mark {
		text = bytes.Clone(text) // the mark of a string would overwrite its start
	}
	return AppendString(dst[:start], text), len(text) == 0
}

// unsigned returns the text of a number without a plus sign.
func unsigned(text []byte) []byte {
	if len(text) > 1 && text[0] == '+' && text[1] != '-' {
		return text[1:]
	}
	return text
}

// unpaired changes the canonical text of a string with lone halves of surrogate pairs, which
// are escapes there and stay.
func (s *shape) unpaired(text []byte) []byte {
	var out []byte
	for first := true; ; first = false {
		end := loneHalf(text)
		last := end == len(text)
		part, _ := appendUnescaped(nil, text[:end])
		out = appendCanonicalName(out, s.text(part, first, last))
		if last {
			return out
		}
		half := end + len(`\ud800`)
		out = append(out, text[end:half]...)
		text = text[half:]
	}
}

// loneHalf returns the position of the first escape of half of a surrogate pair in a canonical
// text, or the length of the text.
func loneHalf(text []byte) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(text[i+1:], []byte("ud")) {
			return i
		}
		i++ // the escaped character may be a backslash
	}
	return len(text)
}

// lower maps each character to lower case, wherever the text comes from: there are languages
// with other rules. Invalid UTF-8 stays as it is.
func lower(text []byte) []byte {
	from := 0
	for from < len(text) && text[from] < utf8.RuneSelf && (text[from] < 'A' || 'Z' < text[from]) {
		from++
	}
	if from == len(text) {
		return text
	}
	out := append(make([]byte, 0, len(text)+utf8.UTFMax), text[:from]...)
	for from < len(text) {
		r, size := utf8.DecodeRune(text[from:])
		if r == utf8.RuneError {
			out = append(out, text[from:from+size]...)
		} else {
			out = utf8.AppendRune(out, unicode.ToLower(r))
		}
		from += size
	}
	return out
}

// trim removes the characters that Unicode calls white space.
func trim(text []byte, first, last bool) []byte {
	if first {
		text = bytes.TrimLeftFunc(text, unicode.IsSpace)
	}
	if last {
		text = bytes.TrimRightFunc(text, unicode.IsSpace)
	}
	return text
}

// compose returns the Unicode normalization form C of a text. Invalid UTF-8 stays as it is, and
// combines with nothing.
//
// Package norm puts a character between marks if more than 30 follow each other. Two different
// texts could become one by that, so compose takes only the tables from it.
func compose(text []byte) []byte {
	if norm.NFC.QuickSpan(text) == len(text) {
		return text
	}
	var (
		all []character
		one []byte
	)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			all = append(all, character{r: -1 - rune(text[i]), alone: true})
			i++
			continue
		}
		one = norm.NFD.Append(one[:0], text[i:i+size]...)
		i += size
		for j := 0; j < len(one); {
			r, size := utf8.DecodeRune(one[j:])
			p := norm.NFC.Properties(one[j:])
			all = append(all, character{r, p.CCC(), p.BoundaryBefore()})
			j += size
		}
	}
	for i := 0; i < len(all); i++ {
		end := i
		for end < len(all) && all[end].class != 0 {
			end++
		}
		slices.SortStableFunc(all[i:end], func(a, b character) int { return int(a.class) - int(b.class) })
		i = end
	}
	kept, starter := all[:0], -1
	for _, c := range all {
		if starter >= 0 && !c.alone {
			// What stands between the two must have a lower class than c.
			if last := kept[len(kept)-1]; starter == len(kept)-1 || last.class < c.class {
				if pair, ok := composite(kept[starter].r, c.r); ok {
					kept[starter].r = pair
					continue
				}
			}
		}
		if c.class == 0 {
			starter = len(kept)
		}
		kept = append(kept, c)
	}
	out := make([]byte, 0, len(text))
	for _, c := range kept {
		if c.r < 0 {
			out = append(out, byte(-1-c.r))
		} else {
			out = utf8.AppendRune(out, c.r)
		}
	}
	return out
}

// character is a character of a decomposed text, or a byte of invalid UTF-8 as -1 minus the byte.
type character struct {
	r     rune
	class uint8 // the canonical combining class
	alone bool  // it never combines with the character before it
}

// composite returns the character that is composed of two.
func composite(a, b rune) (rune, bool) {
	if a < 0 {
		return 0, false
	}
	var buf [2 * utf8.UTFMax]byte
	both := utf8.AppendRune(utf8.AppendRune(buf[:0], a), b)
	both = norm.NFC.Bytes(both)
	r, size := utf8.DecodeRune(both)
	return r, size == len(both)
}
