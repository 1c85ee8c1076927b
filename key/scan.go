package key

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// frame is an open container.
type frame struct {
	name, sum uint64 // print of the member's name, and of the text scanned so far
	seen      uint64 // in an object the sum of the prints of names, in an array the index of the next element
	at        int32  // place of the container
	object    bool
}

// scan validates doc and fills f.found and f.print. If doc is not JSON, it
// returns false and f.fault says why. It is not built on internal/jsontext, because it must do
// all this in a single pass and allocate nothing.
//
// Each iteration of the loop scans one value and, inside an object, the name
// before it. Then it closes the containers that end after the value. There is
// no recursion, so each level costs one frame. scan is one function and repeats
// the skipping of white space, because a call costs as much as a token. It
// keeps in variables what each token needs, and everything else in memory,
// because there are few registers.
func (f *Finder) scan(doc []byte) bool {
	var (
		i      int
		last   = &f.begin
		depth  int        // f.stack[depth] is the innermost open container
		object bool       // the container is an object
		at     = nowhere  // place of the container
		to     = wholeDoc // place of the scanned value
		start  int        // start of the value
		c      byte       // the byte at i
		print  uint64     // of the last scanned value
	)
	for {
		if object {
			m := last.next
			if i+2*wordBytes <= len(doc) &&
				m.matches(binary.LittleEndian.Uint64(doc[i:i+8]), binary.LittleEndian.Uint64(doc[i+8:i+16]), at) &&
				m.endMatches(doc, i) {
				i += m.size
			} else if i, m = f.member(doc, i, last, at); i < 0 {
				return false
			}
			last, to = m, m.to
			if m.renews {
				f.forget(to)
			}
			if f.content {
				in := &f.stack[depth]
				in.name = last.hash
				in.seen += last.hash
			}
		} else if at != nowhere {
			to = f.elementAt(at, depth)
		}
		c, i = next(doc, i)
		start = i
		switch c {
		case '"':
			if f.content {
				if i, print = f.stringPrint(doc, i+1); i < 0 {
					return false
				}
				break
			}
			for i++; i+wordBytes <= len(doc); i += wordBytes {
				if m := stops(binary.LittleEndian.Uint64(doc[i : i+wordBytes])); m != 0 {
					i += bits.TrailingZeros64(m) / 8
					break
				}
			}
			if i < len(doc) && doc[i] == '"' {
				i++
			} else if i = f.string(doc, i); i < 0 {
				return false
			}
		case '1', '2', '3', '4', '5', '6', '7', '8', '9', '-', '0':
			var ok bool
			if i, ok = numberEnd(doc, i); !ok {
				return f.fail(doc, i, badNumber)
			}
			if f.content {
				print = f.mixer.bytes(f.mixer.number, doc, start, i)
			}
		case 't', 'f', 'n':
			var kind Kind
			if kind, i = literalEnd(doc, i); kind == Missing {
				return f.fail(doc, i, badValue)
			}
			print = f.mixer.literal[kind]
		case '{', '[':
			if depth == maxDepth {
				return f.fail(doc, i, badTooNested)
			}
			if to != nowhere {
				f.record(to, i, i)
			}
			if depth++; depth == len(f.stack) {
				f.stack = append(f.stack, frame{})
			}
			object, at = c == '{', to
			f.stack[depth] = frame{at: to, object: object}
			shut := c + 2 // '}' and ']' are two after their opening bracket
			if c, i = next(doc, i+1); c == shut {
				goto closing
			}
			continue
		default:
			return f.fail(doc, i, badValue)
		}
		if to != nowhere {
			f.record(to, start, i)
		}
	after:
		if f.content {
			if in := &f.stack[depth]; object {
				in.sum += f.mixer.member(in.name, print)
			} else {
				in.sum = mum(in.sum^print, f.mixer.word)
			}
		}
		c, i = next(doc, i)
		if depth == 0 {
			f.print = print
			return i >= len(doc) || f.fail(doc, i, badTrailing)
		}
		if c == ',' {
			i++
			continue
		}
	closing:
		if object {
			if c != '}' {
				return f.fail(doc, i, badInObject)
			}
			in := &f.stack[depth]
			print = mum(in.sum^f.mixer.object, f.mixer.word)
			if f.content && f.names[nameSet(in.seen)] != in.seen && !f.knows(in.seen) {
				f.unsure = true
			}
		} else {
			if c != ']' {
				return f.fail(doc, i, badInArray)
			}
			print = mum(f.stack[depth].sum^f.mixer.array, f.mixer.value)
		}
		i++
		if at != nowhere {
			f.recordEnd(at, i)
		}
		depth--
		object, at = f.stack[depth].object, f.stack[depth].at
		goto after
	}
}

// fail records the error of the document and returns false.
func (f *Finder) fail(doc []byte, i int, problem string) bool {
	if i >= len(doc) {
		problem = badEnd
	}
	f.fault = SyntaxError{Offset: i, Problem: problem}
	return false
}

// string is stringEnd. If there is no valid string, end is -1.
func (f *Finder) string(doc []byte, i int) (end int) {
	end, _, bad := stringEnd(doc, i)
	if bad != "" {
		f.fail(doc, end, bad)
		return -1
	}
	return end
}

// next skips white space. It returns the byte that follows and its position. At
// the end the byte is 0, with which no part of the grammar begins.
func next(doc []byte, i int) (byte, int) {
	if i < len(doc) && doc[i] > ' ' {
		return doc[i], i
	}
	return nextAfterSpace(doc, i)
}

func nextAfterSpace(doc []byte, i int) (byte, int) {
	for ; i < len(doc); i++ {
		if c := doc[i]; !isSpace(c) {
			return c, i
		}
	}
	return 0, i
}

func isSpace(c byte) bool { return c <= ' ' && (c == ' ' || c == '\n' || c == '\r' || c == '\t') }

// literalEnd scans true, false or null. For anything else the kind is Missing.
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

// member scans the name of a member and the colon, finds its place and
// remembers it. If the text is not a member, end is -1.
func (f *Finder) member(doc []byte, i int, last *memo, at int32) (end int, m *memo) {
	if m = last.other; i+2*wordBytes <= len(doc) &&
		m.matches(binary.LittleEndian.Uint64(doc[i:i+8]), binary.LittleEndian.Uint64(doc[i+8:i+16]), at) && m.endMatches(doc, i) {
		return i + m.size, m
	}
	begin := i
	c, i := next(doc, i)
	if c != '"' {
		f.fail(doc, i, badName)
		return -1, nil
	}
	i++
	start := i
	if i = f.string(doc, i); i < 0 {
		return -1, nil
	}
	m, slot := f.recall(doc, begin, start-1, i-1, at)
	if m != nil {
		last.follow(m)
		return begin + m.size, m
	}
	var hash uint64
	if f.content {
		_, hash = f.stringPrint(doc, start)
	}
	to := nowhere
	if at != nowhere {
		to = f.memberAt(&f.places[at], doc[start:i-1])
	}
	if c, i = next(doc, i); c != ':' {
		f.fail(doc, i, badColon)
		return -1, nil
	}
	i++
	return i, f.remember(last, slot, doc, begin, i, at, to, hash)
}

// memberAt returns the place of a member of p from the text of its name.
func (f *Finder) memberAt(p *place, text []byte) int32 {
	if bytes.IndexByte(text, '\\') >= 0 {
		// A lone surrogate cannot match. Its replacement is not valid UTF-8,
		// and the names of paths are valid.
		f.text, _ = appendUnescaped(f.text[:0], text)
		text = f.text
	}
	for m := range p.members {
		if p.members[m].name == string(text) {
			return p.members[m].to
		}
	}
	return nowhere
}

// forget drops the values of an earlier member of this name, because the last
// one counts.
func (f *Finder) forget(at int32) {
	for _, path := range f.places[at].below {
		f.found[path].kind = Missing
	}
}

// elementAt returns the place of the next element of the array at a place.
func (f *Finder) elementAt(at int32, depth int) int32 {
	in := &f.stack[depth]
	index := int32(in.seen)
	in.seen++
	for _, e := range f.places[at].elements {
		if e.index == index {
			return e.to
		}
	}
	return nowhere
}

// record records a value for the paths that end at its place.
func (f *Finder) record(at int32, start, end int) {
	for _, path := range f.places[at].here {
		f.found[path] = found{start, end, kindOf[f.doc[start]]}
	}
}

// recordEnd completes the record of a container at its end.
func (f *Finder) recordEnd(at int32, end int) {
	for _, path := range f.places[at].here {
		f.found[path].end = end
	}
}

// kindOf gives the kind of a value from its first byte.
var kindOf = [256]Kind{
	'{': Object, '[': Array, '"': String, 't': True, 'f': False, 'n': Null, '-': Number,
	'0': Number, '1': Number, '2': Number, '3': Number, '4': Number,
	'5': Number, '6': Number, '7': Number, '8': Number, '9': Number,
}

// stringPrint scans a string whose text starts at start, and prints its value.
// If there is no valid string, end is -1.
func (f *Finder) stringPrint(doc []byte, start int) (end int, print uint64) {
	m := &f.mixer
	h := m.text
	i := start
	for ; i+wordBytes <= len(doc); i += wordBytes {
		w := binary.LittleEndian.Uint64(doc[i : i+wordBytes])
		if stop := stops(w); stop != 0 {
			n := bits.TrailingZeros64(stop) &^ 7
			i += n / 8
			if doc[i] == '"' {
				return i + 1, m.last(h, w&(1<<n-1), i-start)
			}
			break
		}
		h = mum(h^w, m.word)
	}
	i = plainEnd(doc, i)
	f.text = append(f.text[:0], doc[start:i]...)
	for i+1 < len(doc) && doc[i] == '\\' && isLetter[doc[i+1]] {
		f.text = append(f.text, unescape(doc[i+1]))
		i += 2
		end = plainEnd(doc, i)
		f.text = append(f.text, doc[i:end]...)
		i = end
	}
	if i < len(doc) && doc[i] == '"' {
		return i + 1, m.bytes(m.text, f.text, 0, len(f.text))
	}
	end, _, bad := stringEnd(doc, i)
	if bad != "" {
		f.fail(doc, end, bad)
		return -1, 0
	}
	h = m.text
	var lone bool
	if f.text, lone = appendUnescaped(f.text[:0], doc[start:end-1]); lone {
		h = m.literal[Null] // as for a string without bytes
	}
	return end, m.bytes(h, f.text, 0, len(f.text))
}
