package key

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math"
	"slices"
	"sync"
)

// appendCanonical appends the canonical form of a JSON document. Two documents
// have the same canonical form exactly if they have the same content.
//
//   - There is no white space. Members are sorted by the bytes of their
//     canonical names.
//   - Numbers keep their text: 1, 1.0 and 1e0 differ, as do
//     12345678901234567890 and its neighbour. (RFC 8785 rounds them to
//     doubles, and merges them.)
//   - Strings are compared after escapes. A backslash escapes quotes and
//     backslashes, and control characters are \b \f \n \r \t or \u00xx. All
//     other characters, also invalid UTF-8, stay as they are. Half of a
//     surrogate pair stays an escape, \ud800.
//
// An object with two members of the same name gives a [*DuplicateNameError],
// and invalid JSON a [*SyntaxError]. After an error dst is returned unchanged.
// Time grows with n log n, and memory is at most about five times the document.
func appendCanonical(dst, doc []byte) ([]byte, error) {
	f := documents.Get().(*Finder)
	defer documents.Put(f)
	if err := f.Find(doc); err != nil {
		return dst, err
	}
	return f.canon.append(dst, doc, nil)
}

// documents has Finders without paths. Each has some 20 KiB, far more than most documents.
var documents = sync.Pool{New: func() any { return newFinder(nil, nil) }}

// AppendContent appends the id of the content of a JSON document: the SHA-256
// of its canonical form. An object with two members of the same name gives a
// [*DuplicateNameError], and invalid JSON a [*SyntaxError]. For many
// documents, [Finder.AppendContent] is faster.
func AppendContent(dst, doc []byte) ([]byte, error) {
	canonical, err := appendCanonical(nil, doc)
	if err != nil {
		return dst, err
	}
	return appendContentOf(dst, canonical), nil
}

// AppendContent appends the id of the content of the document that Find was
// given. It ignores the paths. The id is the SHA-256 of the canonical form. The
// error is that of Find or a [*DuplicateNameError], and then dst is returned
// unchanged.
func (f *Finder) AppendContent(dst []byte) ([]byte, error) {
	if f.err != nil {
		return dst, f.err
	}
	var err error
	if f.text, err = f.canon.append(f.text[:0], f.doc, nil); err != nil {
		return dst, err
	}
	return appendContentOf(dst, f.text), nil
}

// leaving is a member that does not count in a hash: the number of the path of its
// object, and its canonical name.
type leaving struct {
	object int
	name   []byte
}

// left is a member that a canonical form leaves out: where its object starts, and its
// canonical name.
type left struct {
	start uint32
	name  []byte
}

// leave returns the members of the document that a canonical form leaves out. They are
// of the value that starts at start.
func (f *Finder) leave(list []leaving, start int) []left {
	f.left = f.left[:0]
	for _, l := range list {
		if v := &f.found[l.object]; v.kind == Object {
			f.left = append(f.left, left{uint32(v.start - start), l.name})
		}
	}
	return f.left
}

// appendHash appends the id of the content of n places, without the members that leaving
// has for each of them. A missing or null value is an error, because documents that lack
// the value must not get one id.
func (f *Finder) appendHash(dst []byte, first, n int, without [][]leaving) ([]byte, error) {
	f.text = f.text[:0]
	if n > 1 {
		f.text = append(f.text, mark, markComposite)
	}
	for i := first; i < first+n; i++ {
		raw, kind := f.Raw(i)
		switch {
		case kind == Missing:
			return dst, &f.faults[i].missing[Absent]
		case kind == Null && !f.faults[i].whole:
			return dst, &f.faults[i].missing[IsNull]
		}
		start := len(f.text)
		var err error
		if f.text, err = f.canon.append(f.text, raw, f.leave(without[i-first], f.found[i].start)); err != nil {
			return dst, err
		}
		if n > 1 {
			f.text = prefixLength(f.text, start)
		}
	}
	return appendContentOf(dst, f.text), nil
}

func appendContentOf(dst, canonical []byte) []byte {
	sum := sha256.Sum256(canonical)
	return append(append(dst, mark, markContent), sum[:]...)
}

// canonizer writes canonical forms and keeps its buffers from one document to
// the next. The first pass records the members of the objects. The second pass
// sorts them and writes the result.
type canonizer struct {
	doc     []byte
	left    []left
	objects []object
	members []memberText
	names   []byte // canonical names of members whose name has escapes
	open    []opened
	order   []int32 // members of the objects being written, sorted
	writing []writing
}

// object is an object with members. Objects are numbered in the order in which
// they start.
type object struct {
	start, end uint32
	first      int32 // first member
	next       int32 // number of the first object after this one and everything in it
}

// memberText is a member. It has the position of the name, in the document or
// in canonizer.names, and that of the value, which may have white space around
// it.
type memberText struct {
	name, nameEnd   uint32
	value, valueEnd uint32
	next            int32 // next member of the object, or -1
	object          int32 // number of the first object at or after the value
	escaped         bool
}

// opened is a container that the first pass has not yet left.
type opened struct {
	object, last int32 // object is -1 in an array; last is the last member, or -1
}

// writing is an object that the second pass has not yet finished. The members
// from at on are still to be written. After the object, the text continues at
// resume.
type writing struct {
	object          int32
	low, at         int
	resume, textEnd int
}

var errTooLarge = errors.New("key: no canonical form: the document is larger than 2 GiB")

// append appends the canonical form of doc, which must be valid, without the members in
// left.
func (c *canonizer) append(dst, doc []byte, left []left) ([]byte, error) {
	if len(doc) > math.MaxInt32 {
		return dst, errTooLarge
	}
	c.doc, c.left = doc, left
	c.objects, c.members, c.names, c.open = c.objects[:0], c.members[:0], c.names[:0], c.open[:0]
	c.note()
	start := len(dst)
	dst, err := c.write(dst)
	c.doc, c.left = nil, nil
	if err != nil {
		return dst[:start], err
	}
	return dst, nil
}

// note is the first pass.
func (c *canonizer) note() {
	doc := c.doc
	in := opened{-1, -1}
	named := true // the next token is not a name
	for i := 0; i < len(doc); {
		switch doc[i] {
		case '"':
			end, escaped, _ := stringEnd(doc, i+1)
			if named {
				i = end
				continue
			}
			in.last = c.noteMember(in, i+1, end-1, escaped)
			i = bytes.IndexByte(doc[end:], ':') + end + 1
			c.members[in.last].value = uint32(i)
			named = true
			continue
		case '{':
			if end := c.emptyEnd(i); end > 0 {
				i = end
				continue
			}
			c.open = append(c.open, in)
			in = opened{int32(len(c.objects)), -1}
			c.objects = append(c.objects, object{start: uint32(i)})
			named = false
		case '[':
			c.open = append(c.open, in)
			in = opened{-1, -1}
		case ',':
			if in.object >= 0 {
				c.members[in.last].valueEnd = uint32(i)
				named = false
			}
		case '}':
			c.members[in.last].valueEnd = uint32(i)
			o := &c.objects[in.object]
			o.end, o.next = uint32(i+1), int32(len(c.objects))
			fallthrough
		case ']':
			in = c.open[len(c.open)-1]
			c.open = c.open[:len(c.open)-1]
		}
		i++
	}
}

// emptyEnd returns the end of the object at i if the object is empty, or 0.
func (c *canonizer) emptyEnd(i int) int {
	for i++; isSpace(c.doc[i]); i++ {
	}
	if c.doc[i] != '}' {
		return 0
	}
	return i + 1
}

// noteMember adds a member to the open object and returns the member's number.
func (c *canonizer) noteMember(in opened, name, nameEnd int, escaped bool) int32 {
	if escaped {
		text := c.doc[name:nameEnd]
		name = len(c.names)
		c.names = appendCanonicalText(c.names, text)
		nameEnd = len(c.names)
	}
	n := int32(len(c.members))
	c.members = append(c.members, memberText{
		name: uint32(name), nameEnd: uint32(nameEnd), escaped: escaped,
		next: -1, object: int32(len(c.objects)),
	})
	if in.last < 0 {
		c.objects[in.object].first = n
	} else {
		c.members[in.last].next = n
	}
	return n
}

// name returns a member's canonical name.
func (c *canonizer) name(member int32) []byte {
	m := &c.members[member]
	if m.escaped {
		return c.names[m.name:m.nameEnd]
	}
	return c.doc[m.name:m.nameEnd]
}

// write is the second pass. It copies text up to the end of the document or of
// a member's value, and descends into objects on the way.
func (c *canonizer) write(dst []byte) ([]byte, error) {
	c.order, c.writing = c.order[:0], c.writing[:0]
	doc := c.doc
	next := int32(0) // number of the next object in the text
	for i, end := 0, len(doc); ; {
		if i == end {
			if len(c.writing) == 0 {
				return dst, nil
			}
			dst, i, end, next = c.writeMember(dst)
			continue
		}
		switch b := doc[i]; b {
		case ' ', '\t', '\r', '\n':
			i++
		case '"':
			after, escaped, _ := stringEnd(doc, i+1)
			if escaped {
				dst = append(appendCanonicalText(append(dst, '"'), doc[i+1:after-1]), '"')
			} else {
				dst = append(dst, doc[i:after]...)
			}
			i = after
		case '{':
			if after := c.emptyEnd(i); after > 0 {
				dst = append(dst, "{}"...)
				i = after
				continue
			}
			low := len(c.order)
			if err := c.sort(next); err != nil {
				return dst, err
			}
			c.writing = append(c.writing, writing{next, low, low, int(c.objects[next].end), end})
			dst = append(dst, '{')
			end = i // the members come first
		default:
			dst = append(dst, b)
			i++
		}
	}
}

// writeMember writes the name of the next member of the innermost object, or
// the end of the object. It returns where the text continues.
func (c *canonizer) writeMember(dst []byte) (_ []byte, i, end int, next int32) {
	w := &c.writing[len(c.writing)-1]
	if w.at == len(c.order) {
		c.order = c.order[:w.low]
		c.writing = c.writing[:len(c.writing)-1]
		return append(dst, '}'), w.resume, w.textEnd, c.objects[w.object].next
	}
	if w.at > w.low {
		dst = append(dst, ',')
	}
	m := &c.members[c.order[w.at]]
	dst = append(append(append(dst, '"'), c.name(c.order[w.at])...), `":`...)
	w.at++
	return dst, int(m.value), int(m.valueEnd), m.object
}

// sort pushes an object's members on c.order in their canonical order, without those that
// are left out.
func (c *canonizer) sort(n int32) error {
	low := len(c.order)
	for m := c.objects[n].first; m >= 0; m = c.members[m].next {
		if len(c.left) == 0 || !c.leaves(n, m) {
			c.order = append(c.order, m)
		}
	}
	members := c.order[low:]
	slices.SortFunc(members, func(a, b int32) int { return bytes.Compare(c.name(a), c.name(b)) })
	for i := 1; i < len(members); i++ {
		if name := c.name(members[i]); bytes.Equal(c.name(members[i-1]), name) {
			value, _ := appendUnescaped(nil, name)
			return &DuplicateNameError{Name: string(value), Offset: int(c.objects[n].start)}
		}
	}
	return nil
}

// leaves reports whether a member of an object is left out.
func (c *canonizer) leaves(object, member int32) bool {
	start, name := c.objects[object].start, c.name(member)
	return slices.ContainsFunc(c.left, func(l left) bool { return l.start == start && bytes.Equal(l.name, name) })
}
