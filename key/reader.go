package key

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// Key applies the rule to a message. It is safe for concurrent use. A worker
// with many messages is faster with its own [Reader]. Errors are those of
// [Reader.AppendID]. If scope or id are too long, the error wraps
// semel.ErrInvalidKey.
//
// Ids of two rules may be equal by chance. A program that claims such keys itself binds
// the scope to the rule before the first claim: see [semel.BindScope], which takes the
// text of the rule. A pipeline does so for its rule.
func (r *Rule) Key(scope string, m *semel.Message) (semel.Key, error) {
	x, _ := r.readers.Get().(*Reader)
	if x == nil {
		x = r.Reader(nil)
	}
	id, err := x.AppendID(nil, m)
	x.message = nil
	r.readers.Put(x)
	if err != nil {
		return semel.Key{}, err
	}
	k := semel.Key{Scope: scope, ID: string(id)}
	return k, k.Validate()
}

// Reader applies one rule to one message after the other. It makes one pass
// over the body for any number of places in the rule. After its buffers have
// grown it allocates nothing. A Reader is not safe for concurrent use.
type Reader struct {
	top     reading
	finder  *Finder
	left    []leaving // the members that no hash of the rule counts
	text    []byte    // of a template, or what a print is made of
	value   []byte    // a value of a template
	message *semel.Message
	// searched is set once the finder has read the body of the message.
	searched bool
}

// reading is a rule as a Reader applies it.
type reading struct {
	*Rule
	path  int         // number of the rule's first path in the Finder
	left  [][]leaving // for Rule.without
	parts []reading   // for the rules in Rule.rules
	// missing are the errors of the rule, allocated in advance.
	missing [IsEmpty + 1]MissingError
}

// Reader returns a Reader of the rule. The options are those of its [Finder],
// and nil is valid.
func (r *Rule) Reader(opts *FinderOptions) *Reader {
	var paths []Path
	x := new(Reader)
	x.top = x.reading(r, &paths)
	x.finder = newFinder(paths, opts)
	return x
}

func (x *Reader) reading(r *Rule, paths *[]Path) reading {
	n := reading{Rule: r, path: len(*paths)}
	*paths = append(*paths, r.paths...)
	for _, without := range r.without {
		var list []leaving
		for _, member := range without {
			object, name := member.Split()
			list = append(list, leaving{len(*paths), appendCanonicalName(nil, name)})
			*paths = append(*paths, object)
		}
		n.left, x.left = append(n.left, list), append(x.left, list...)
	}
	for _, part := range r.rules {
		n.parts = append(n.parts, x.reading(part, paths))
	}
	for reason := range n.missing {
		n.missing[reason] = MissingError{Rule: r.text, Reason: Reason(reason)}
	}
	return n
}

// AppendID appends the id of the message. The error is a [*MissingError], a
// [*NotScalarError], a [*SyntaxError], or for a hash a [*DuplicateNameError],
// and then dst is returned unchanged. AppendID reads the body only if the rule
// needs a place in it.
func (x *Reader) AppendID(dst []byte, m *semel.Message) ([]byte, error) {
	x.message, x.searched = m, false
	id, err := x.append(dst, &x.top)
	if err != nil {
		return dst, err
	}
	return id, nil
}

// Print returns the fingerprint of the body of the last message, if
// FinderOptions.Content is set: [Finder.Print], or a print of the bytes if the
// body is not JSON. Members that a hash of the rule leaves out do not count.
func (x *Reader) Print() uint64 {
	f := x.finder
	if x.find() != nil {
		return f.mixer.bytes(f.mixer.value, x.message.Body, 0, len(x.message.Body))
	}
	if f.content && len(x.left) > 0 {
		var err error
		if x.text, err = f.canon.append(x.text[:0], f.doc, f.leave(x.left, 0)); err == nil {
			return f.mixer.bytes(f.mixer.value, x.text, 0, len(x.text))
		}
	}
	return f.Print()
}

// find runs the finder on the body, once for each message.
func (x *Reader) find() error {
	if x.searched {
		return x.finder.err
	}
	x.searched = true
	return x.finder.Find(x.message.Body)
}

func (x *Reader) append(dst []byte, n *reading) ([]byte, error) {
	switch n.form {
	case FormPath:
		if x.message.Body == nil {
			return dst, &n.missing[Absent]
		}
		if err := x.find(); err != nil {
			return dst, err
		}
		return x.finder.appendValue(dst, n.path)
	case FormLine:
		if len(x.message.Body) == 0 {
			return appendPresent(dst, x.message.Body, n)
		}
		return AppendLine(dst, x.message.Body), nil
	case FormHash:
		return x.appendHash(dst, n)
	case FormHeader:
		value, ok := x.message.Header(n.name)
		if !ok {
			return x.appendEncoded(dst, n)
		}
		if value == nil {
			value = []byte{} // the header exists
		}
		return appendPresent(dst, value, n)
	case FormRecordKey:
		return appendPresent(dst, x.message.RecordKey, n)
	case FormMessageID:
		if x.message.ID == "" {
			return dst, &n.missing[Absent]
		}
		return AppendString(dst, x.message.ID), nil
	case FormTemplate:
		return x.appendTemplate(dst, n)
	case FormShaped:
		return x.appendShaped(dst, n)
	case FormFirst:
		return x.appendFirst(dst, n)
	case FormAll:
		return x.appendAll(dst, n)
	}
	return x.appendUnstable(dst, n)
}

// keyHeader is the header in which a pipeline names the id of a key. An id that is not
// printable, such as that of a number, is in encodedKeyHeader.
const keyHeader, encodedKeyHeader = "semel-key", "semel-key-base64"

// appendEncoded appends the id of a message without the header of a rule. For the header
// semel-key, semel-key-base64 has it, so that the key is that of the pipeline before.
func (x *Reader) appendEncoded(dst []byte, n *reading) ([]byte, error) {
	if n.name == keyHeader || x.message.CaselessHeaders && strings.EqualFold(n.name, keyHeader) {
		if value, ok := x.message.Header(encodedKeyHeader); ok {
			if id, err := base64.StdEncoding.AppendDecode(dst, value); err == nil && len(id) > len(dst) {
				return id, nil
			}
		}
	}
	return dst, &n.missing[Absent]
}

// appendPresent appends a string, which is missing if it is nil or empty.
func appendPresent(dst, value []byte, n *reading) ([]byte, error) {
	switch {
	case value == nil:
		return dst, &n.missing[Absent]
	case len(value) == 0:
		return dst, &n.missing[IsEmpty]
	}
	return AppendString(dst, value), nil
}

func (x *Reader) appendHash(dst []byte, n *reading) ([]byte, error) {
	if x.message.Body == nil {
		return dst, &n.missing[Absent]
	}
	if err := x.find(); err != nil {
		return dst, err
	}
	return x.finder.appendHash(dst, n.path, len(n.paths), n.left)
}

func (x *Reader) appendShaped(dst []byte, n *reading) ([]byte, error) {
	id, err := x.append(dst, &n.parts[0])
	if err != nil {
		return dst, err
	}
	return n.AppendShaped(dst, id[len(dst):])
}

func (x *Reader) appendFirst(dst []byte, n *reading) ([]byte, error) {
	var other error
	for i := range n.parts {
		id, err := x.append(dst, &n.parts[i])
		if err == nil {
			return id, nil
		}
		if _, missing := err.(*MissingError); !missing && other == nil {
			other = err
		}
	}
	if other != nil {
		return dst, other
	}
	return dst, &n.missing[Absent]
}

func (x *Reader) appendAll(dst []byte, n *reading) ([]byte, error) {
	dst = append(dst, mark, markComposite)
	for i := range n.parts {
		start := len(dst)
		var err error
		if dst, err = x.append(dst, &n.parts[i]); err != nil {
			return dst, err
		}
		dst = prefixLength(dst, start)
	}
	return dst, nil
}

// appendUnstable appends the value of an unstable rule that the caller forced.
func (x *Reader) appendUnstable(dst []byte, n *reading) ([]byte, error) {
	m := x.message
	switch n.name {
	case "timestamp", "time":
		if m.Time.IsZero() {
			return dst, &n.missing[Absent]
		}
		return m.Time.UTC().AppendFormat(dst, time.RFC3339Nano), nil
	case "random", "uuid":
		return append(dst, newUUIDv4().String()...), nil
	}
	if m.Origin.Identity == "" {
		return dst, &n.missing[Absent]
	}
	if n.name == "delivery-id" {
		return appendPosition(dst, m, string(AppendNumber(nil, strconv.Itoa(m.Origin.Delivery)))), nil
	}
	return appendPosition(dst, m), nil
}

// AppendPosition appends the id of the position of a message, as the rule offset has it.
// The error is a [*MissingError] if the source has no positions, and then dst is returned
// unchanged.
func AppendPosition(dst []byte, m *semel.Message) ([]byte, error) {
	if m.Origin.Identity == "" {
		return dst, &MissingError{Rule: "offset", Reason: Absent}
	}
	return appendPosition(dst, m), nil
}

// appendPosition appends a composite of the position and further parts. The name of the
// source is not in it: a file keeps its positions when it is renamed, and two topics of one
// name have different identities. The content is in it: if the source was wrong about the
// identity, a message with other content still has another id.
func appendPosition(dst []byte, m *semel.Message, further ...string) []byte {
	o := &m.Origin
	return AppendComposite(dst, append([]string{
		string(AppendString(nil, o.Identity)),
		string(AppendNumber(nil, strconv.Itoa(int(o.Partition)))),
		string(AppendNumber(nil, strconv.FormatInt(o.Offset, 10))),
		string(AppendBytes(nil, m.Body)),
	}, further...)...)
}

// prefixLength inserts the length of dst[start:] before it.
func prefixLength(dst []byte, start int) []byte {
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(len(dst)-start))
	dst = append(dst, length[:n]...)
	copy(dst[start+n:], dst[start:len(dst)-n])
	copy(dst[start:], length[:n])
	return dst
}
