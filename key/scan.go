package key

import (
	"encoding/binary"
	"math/bits"
)

// frame is a container that is open. The innermost one is held in variables
// of scan and saved here while a container inside it is scanned.
type frame struct {
	start int
	// at is the container's place, name the hash of the member that is being
	// scanned, sum the hash of what was scanned.
	at        int32
	index     int32
	name, sum uint64
	object    bool
}

// scan checks doc and fills f.found and f.print. If doc is not JSON, bad says
// why and at is where.
//
// Each turn of the outer loop scans one value and, inside an object, the name
// before it; the inner loop then closes the containers that end after it.
// There is no recursion, so that depth costs 40 bytes a level. It is one
// function because a call for each token would cost as much as the token.
func (f *Finder) scan(doc []byte) (at int, bad string) {
	var (
		i      = 0
		in     frame         // the innermost open container
		to     = wholeDoc    // the place of the next value
		stack  = f.stack[:0] // the containers around it
		depth  = 0
		mix    = &f.mixer
		print  uint64 // of the value just scanned
		start  int
		kind   Kind
		escape bool
	)
	defer func() { f.stack = stack }()
	for {
		if in.object {
			for i < len(doc) && isSpace(doc[i]) {
				i++
			}
			if i == len(doc) {
				return i, badEnd
			}
			if doc[i] != '"' {
				return i, badName
			}
			start = i + 1
			if f.content {
				i, escape, print, bad = f.stringPrint(doc, start)
				in.name = print
			} else {
				i, escape, bad = stringEnd(doc, start)
			}
			if bad != "" {
				return i, bad
			}
			to = nowhere
			if in.at != nowhere {
				to = f.memberAt(in.at, doc[start:i-1], escape)
			}
			for i < len(doc) && isSpace(doc[i]) {
				i++
			}
			if i == len(doc) {
				return i, badEnd
			}
			if doc[i] != ':' {
				return i, badColon
			}
			i++
		} else if in.at != nowhere {
			to = f.elementAt(in.at, in.index)
			in.index++
		}
		for i < len(doc) && isSpace(doc[i]) {
			i++
		}
		if i == len(doc) {
			return i, badEnd
		}
		start, escape = i, false
		switch c := doc[i]; c {
		case '"':
			kind = String
			if f.content {
				i, escape, print, bad = f.stringPrint(doc, i+1)
			} else {
				i, escape, bad = stringEnd(doc, i+1)
			}
			if bad != "" {
				return i, bad
			}
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			kind = Number
			if i, bad = numberEnd(doc, i); bad != "" {
				return i, bad
			}
			if f.content {
				print = mix.bytes(mix.number, doc[start:i])
			}
		case 't', 'f', 'n':
			if kind, i = literalEnd(doc, i); kind == Missing {
				return i, badValue
			}
			print = mix.literal[kind]
		case '{', '[':
			if depth == MaxDepth {
				return i, badTooNested
			}
			depth++
			stack = append(stack, in)
			in = frame{start: i, at: to, object: c == '{', sum: mix.array}
			for i++; i < len(doc) && isSpace(doc[i]); i++ {
			}
			if i == len(doc) {
				return i, badEnd
			}
			if doc[i] != c+2 { // '}' and ']' follow their opening by two
				continue
			}
			// Empty: the loop below closes it.
			goto closing
		default:
			return i, badValue
		}
		if to != nowhere {
			f.record(to, found{start, i, kind, escape})
		}
	after:
		if depth > 0 {
			if f.content {
				if in.object {
					in.sum += mix.member(in.name, print)
				} else {
					in.sum = mum(in.sum^print, mix.word)
				}
			}
		}
		for i < len(doc) && isSpace(doc[i]) {
			i++
		}
		if i == len(doc) {
			if depth > 0 {
				return i, badEnd
			}
			f.print = print
			return i, ""
		}
		if depth == 0 {
			return i, badTrailing
		}
		if doc[i] == ',' {
			i++
			continue
		}
	closing:
		if in.object {
			if doc[i] != '}' {
				return i, badInObject
			}
			kind = Object
			print = mum(in.sum^mix.object, mix.word)
		} else {
			if doc[i] != ']' {
				return i, badInArray
			}
			kind = Array
			print = mum(in.sum^mix.array, mix.value)
		}
		i++
		if in.at != nowhere {
			f.record(in.at, found{in.start, i, kind, false})
		}
		depth--
		in = stack[depth]
		stack = stack[:depth]
		goto after
	}
}

func isSpace(c byte) bool { return c <= ' ' && (c == ' ' || c == '\n' || c == '\r' || c == '\t') }

// literalEnd scans true, false or null; the kind is Missing if it is none.
func literalEnd(doc []byte, i int) (Kind, int) {
	rest := doc[i:]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		return True, i + 4
	case len(rest) >= 4 && string(rest[:4]) == "null":
		return Null, i + 4
	case len(rest) >= 5 && string(rest[:5]) == "false":
		return False, i + 5
	}
	return Missing, i
}

// memberAt returns the place of a member, given its name's text. What an
// earlier member of that name gave is forgotten: the last one counts.
func (f *Finder) memberAt(at int32, text []byte, escaped bool) int32 {
	if escaped {
		// A lone surrogate cannot match: its stand-in is not valid UTF-8, and
		// the names of paths are.
		f.text, _ = appendUnescaped(f.text[:0], text)
		text = f.text
	}
	p := &f.places[at]
	if p.lengths>>min(len(text), 63)&1 == 0 {
		return nowhere
	}
	for m := range p.members {
		if p.members[m].name == string(text) {
			to := p.members[m].to
			for _, path := range f.places[to].below {
				f.found[path].kind = Missing
			}
			return to
		}
	}
	return nowhere
}

// elementAt returns the place of an element.
func (f *Finder) elementAt(at, index int32) int32 {
	for _, e := range f.places[at].elements {
		if e.index == index {
			return e.to
		}
	}
	return nowhere
}

func (f *Finder) record(at int32, v found) {
	for _, path := range f.places[at].here {
		f.found[path] = v
	}
}

// stringPrint is stringEnd that prints the string's value in passing.
func (f *Finder) stringPrint(doc []byte, start int) (end int, escaped bool, print uint64, bad string) {
	m := &f.mixer
	h := m.text
	i := start
	for ; i+wordBytes <= len(doc); i += wordBytes {
		w := binary.LittleEndian.Uint64(doc[i:])
		if stop := stops(w); stop != 0 {
			n := bits.TrailingZeros64(stop) &^ 7
			i += n / 8
			if doc[i] == '"' {
				return i + 1, false, m.last(h, w&(1<<n-1), i-start), ""
			}
			break
		}
		h = mum(h^w, m.word)
	}
	if end, escaped, bad = stringEnd(doc, start); bad != "" {
		return end, escaped, 0, bad
	}
	text := doc[start : end-1]
	h = m.text
	if escaped {
		var lone bool
		if f.text, lone = appendUnescaped(f.text[:0], text); lone {
			h = m.literal[Null]
		}
		text = f.text
	}
	return end, escaped, m.bytes(h, text), ""
}
