package key

import (
	"bytes"
	"errors"
	"fmt"
)

// Kind is the type of a JSON value.
type Kind uint8

const (
	// Missing means that there is no value.
	Missing Kind = iota
	Null
	False
	True
	Number
	String
	Object
	Array
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case Missing:
		return "missing"
	case Null:
		return "null"
	case False:
		return "false"
	case True:
		return "true"
	case Number:
		return "number"
	case String:
		return "string"
	case Object:
		return "object"
	case Array:
		return "array"
	}
	return "invalid"
}

// maxDepth is the deepest nesting of a document, as in encoding/json.
const maxDepth = 10_000

// FinderOptions are the options of [NewFinder].
type FinderOptions struct {
	// Content computes [Finder.Print] for each document. Defaults to false.
	Content bool
	// Seed selects the function of [Finder.Print]. Only prints of the same seed
	// can be compared, and 0 is a seed like any other. Defaults to 0.
	Seed uint64
}

// Finder finds values in JSON documents, one document after the other, and
// validates each document in the same pass. It allocates only to grow its
// buffers to the largest document. A Finder is not safe for concurrent use:
// give each worker its own.
type Finder struct {
	places []place
	faults []faults // errors of each path
	mixer  mixer
	// content is FinderOptions.Content.
	content bool
	// names are the sums of the names of objects without repeated names. unsure
	// is set if the sum of an object in this document is not among them. See
	// printLast.
	names  *[nameSets]uint64
	unsure bool

	// These fields describe the current document.
	doc   []byte
	found []found // of each path
	print uint64
	err   error
	fault SyntaxError // the error that scan found

	// These fields carry over from earlier documents. begin is the memo before
	// the first name. unkept is the memo of a name that cannot be remembered.
	memos         [memoSlots]memo
	begin, unkept memo

	// These are buffers.
	stack []frame
	text  []byte
	canon canonizer
	left  []left
	// These are buffers of printLast.
	open    []container
	members []memberPrint
}

// place is a node of the tree that the paths form. Place 0 means that no path
// leads here. Place 1 is the whole document.
type place struct {
	members  []member
	elements []element
	// here has the paths that end at this place. below has the paths that end
	// here or further down.
	here, below []int32
}

type member struct {
	name string
	to   int32
}

type element struct {
	index int32
	to    int32
}

// found is the value of one path in the current document.
type found struct {
	start, end int
	kind       Kind
}

// faults are the errors of one path. They are allocated in advance, so that a
// line without an id allocates nothing. They never change.
type faults struct {
	missing   [IsEmpty + 1]MissingError
	notScalar [2]NotScalarError // for an object and for an array
	whole     bool              // the path is the whole document
}

const (
	nowhere  = int32(0)
	wholeDoc = int32(1)
)

// maxPaths bounds the paths of one Finder, because the Finder compares each
// member with the names in turn.
const maxPaths = 1000

var (
	errNoDocument = errors.New("key: call Find before reading values")
	errNoPaths    = errors.New("key: a finder without paths cannot find an id")
)

// NewFinder returns a Finder for paths. Without paths it only validates and
// prints documents. More than 1000 paths are an error.
func NewFinder(paths []Path, opts *FinderOptions) (*Finder, error) {
	if len(paths) > maxPaths {
		return nil, fmt.Errorf("key: a finder has at most %d paths, not %d", maxPaths, len(paths))
	}
	return newFinder(paths, opts), nil
}

func newFinder(paths []Path, opts *FinderOptions) *Finder {
	if opts == nil {
		opts = new(FinderOptions)
	}
	f := &Finder{
		places:  make([]place, wholeDoc+1),
		found:   make([]found, len(paths)),
		faults:  make([]faults, len(paths)),
		content: opts.Content,
		mixer:   newMixer(opts.Seed),
		stack:   make([]frame, 1), // the frame around the document
		err:     errNoDocument,
	}
	if f.content {
		f.names = new([nameSets]uint64)
	}
	for i := range f.memos {
		f.memos[i].next, f.memos[i].other = &f.begin, &f.begin
	}
	f.begin.at, f.unkept.at = -1, -1 // these memos never match
	f.begin.next, f.begin.other, f.unkept.next, f.unkept.other = &f.begin, &f.begin, &f.begin, &f.begin
	for i, p := range paths {
		f.add(int32(i), p)
		text := p.String()
		for r := range f.faults[i].missing {
			f.faults[i].missing[r] = MissingError{Rule: text, Reason: Reason(r)}
		}
		f.faults[i].whole = len(p.steps) == 0
		f.faults[i].notScalar = [2]NotScalarError{{text, Object}, {text, Array}}
	}
	return f
}

// add puts a path into the tree.
func (f *Finder) add(path int32, p Path) {
	at := wholeDoc
	f.places[at].below = append(f.places[at].below, path)
	for _, s := range p.steps {
		at = f.child(at, s)
		f.places[at].below = append(f.places[at].below, path)
	}
	f.places[at].here = append(f.places[at].here, path)
}

// child returns the place one step below, and creates it if it does not exist.
func (f *Finder) child(at int32, s step) int32 {
	to := int32(len(f.places))
	p := &f.places[at]
	if s.element {
		for _, e := range p.elements {
			if e.index == int32(s.index) {
				return e.to
			}
		}
		p.elements = append(p.elements, element{int32(s.index), to})
	} else {
		for _, m := range p.members {
			if m.name == s.name {
				return m.to
			}
		}
		p.members = append(p.members, member{s.name, to})
	}
	f.places = append(f.places, place{})
	return to
}

// Find validates doc, which must be one JSON value with optional white space
// around it, and finds the values of all paths. It accepts the same documents
// as encoding/json.Valid. The error is a [*SyntaxError]. After an error there
// are no values.
//
// doc must not change while the values of this call are in use.
func (f *Finder) Find(doc []byte) error {
	f.doc, f.err, f.unsure = doc, nil, false
	clear(f.found)
	if !f.scan(doc) {
		clear(f.found)
		f.print = 0
		fault := f.fault
		f.err = &fault
	} else if f.unsure {
		f.print = f.printLast(doc)
	}
	return f.err
}

// Raw returns the text of the value of path i in the document, and its kind.
// The text of a string has quotes and escapes. The text is nil if the value is
// Missing.
func (f *Finder) Raw(i int) (raw []byte, kind Kind) {
	v := f.found[i]
	if v.kind == Missing {
		return nil, Missing
	}
	return f.doc[v.start:v.end], v.kind
}

// Print returns a 64-bit fingerprint of the content of the document if
// FinderOptions.Content is set, and 0 after an error. The print does not depend
// on white space, on the order of members or on the escaping of strings. Of
// members with the same name the last one counts. Numbers are compared by their
// text, and the order of arrays matters.
//
// Use prints to notice that one key came with different content. Two contents
// have the same print by chance once in 2^64. Prints do not protect against
// someone who builds documents with equal prints.
//
// The function of a seed never changes, so prints may be stored.
func (f *Finder) Print() uint64 { return f.print }

// AppendID appends the id that the values of the paths form: the id of one
// path's value, or the composite of several. The package documentation
// describes both. The error is that of Find, a [*MissingError] or a
// [*NotScalarError], and then dst is returned unchanged.
func (f *Finder) AppendID(dst []byte) ([]byte, error) {
	switch {
	case f.err != nil:
		return dst, f.err
	case len(f.found) == 0:
		return dst, errNoPaths // otherwise all documents would have one id
	case len(f.found) == 1:
		return f.appendValue(dst, 0)
	}
	start := len(dst)
	dst = append(dst, mark, markComposite)
	for i := range f.found {
		part := len(dst)
		var err error
		if dst, err = f.appendValue(dst, i); err != nil {
			return dst[:start], err
		}
		dst = prefixLength(dst, part)
	}
	return dst, nil
}

// appendValue appends the id of the value of path i alone. Errors are those of
// AppendID.
func (f *Finder) appendValue(dst []byte, i int) ([]byte, error) {
	if f.err != nil {
		return dst, f.err
	}
	v := &f.found[i]
	switch v.kind {
	case String:
		if v.end-v.start == len(`""`) {
			return dst, &f.faults[i].missing[IsEmpty]
		}
		text := f.doc[v.start+1 : v.end-1]
		if bytes.IndexByte(text, '\\') < 0 {
			return AppendString(dst, text), nil
		}
		var lone bool
		if f.text, lone = appendUnescaped(f.text[:0], text); lone {
			dst = append(dst, mark, markUnpaired, '"')
			return append(appendCanonicalText(dst, text), '"'), nil
		}
		return AppendString(dst, f.text), nil
	case Number:
		return AppendNumber(dst, f.doc[v.start:v.end]), nil
	case True, False:
		return appendBool(dst, v.kind == True), nil
	case Null:
		return dst, &f.faults[i].missing[IsNull]
	case Object, Array:
		return dst, &f.faults[i].notScalar[v.kind-Object]
	}
	return dst, &f.faults[i].missing[Absent]
}
