package framing

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// AppendDocument appends a row as a JSON object: each column by its name, with its value as a
// string. A row may lack the last columns. Bytes that are not UTF-8 stay as they are.
func AppendDocument(dst []byte, names []string, fields [][]byte) ([]byte, error) {
	if len(fields) > len(names) {
		return dst, fmt.Errorf("the row has %d columns, and the header %d", len(fields), len(names))
	}
	dst = append(dst, '{')
	for i, field := range fields {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(append(appendString(dst, names[i]), ':'), field)
	}
	return append(dst, '}'), nil
}

// appendString appends a JSON string.
func appendString[T string | []byte](dst []byte, text T) []byte {
	dst = append(dst, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// Header returns the names of the columns of a header without its line end. A column without a
// name has its number. The record may have text behind a closing quote if good is not set.
func Header(record []byte, good bool, comma byte) ([]string, error) {
	flaw := ErrQuotes
	if good {
		flaw = Flaw(record)
	}
	if flaw != nil {
		return nil, fmt.Errorf("the header: %w", flaw)
	}
	fields, _ := AppendFields(nil, nil, record, comma, len(record)+1)
	names := make([]string, len(fields))
	for i, field := range fields {
		names[i] = string(field)
		if len(field) == 0 {
			names[i] = strconv.Itoa(i + 1)
		}
		if first := slices.Index(names[:i], names[i]); first >= 0 {
			return nil, fmt.Errorf("the header has two columns %q, %d and %d: rename one of them", names[i], first+1, i+1)
		}
	}
	if len(names) == 1 {
		for _, other := range []byte(";\t|,") {
			if other != comma && bytes.IndexByte(record, other) >= 0 {
				remedy := "set the delimiter"
				switch other {
				case '\t':
					remedy = "write format: tsv, without a delimiter"
				case ',':
					remedy = "write format: csv, without a delimiter"
				}
				return nil, fmt.Errorf("the header is one column, %q, and %q may be what separates its columns: %s", names[0], other, remedy)
			}
		}
	}
	return names, nil
}

// StreamError says where a stream of JSON documents is malformed.
type StreamError struct {
	// Offset is the place in the data.
	Offset  int
	Problem string
}

func (e *StreamError) Error() string { return fmt.Sprintf("%s at byte %d", e.Problem, e.Offset) }

// Documents finds the documents in a stream of JSON: documents one after the other, which may
// span lines, and the elements of arrays. It finds their ends by brackets and quotes, and does not
// validate them. The record separators of RFC 7464 and byte order marks may stand between them.
type Documents struct {
	// InArray: the place is between two elements of an array.
	InArray bool

	// These fields describe the part of a document that was scanned before more data came.
	scanned int
	depth   int
	quoted  bool
}

// Span is a part of data.
type Span struct{ Start, End int }

// Next returns the first document in data at or after the place from, and the place behind it. It
// is not ok if the rest of data has no whole document; next is then the place up to which there
// is no document. last says that no more data follows. A caller that has more data continues at
// next, even if the data begins there.
func (d *Documents) Next(data []byte, from int, last bool) (doc Span, next int, ok bool, err error) {
	i := from
	for {
		if i = d.between(data, i); i == len(data) {
			if last && d.InArray {
				return doc, i, false, &StreamError{i, "the array has no end: the input was cut short"}
			}
			return doc, i, false, nil
		}
		switch {
		case data[i] == '[' && !d.InArray:
			d.InArray = true
		case data[i] == ']' && d.InArray:
			d.InArray = false
		default:
			return d.value(data, i, last)
		}
		i++
	}
}

// between returns the first place at or after i that has no white space, and no other sign that may
// stand between two documents.
func (d *Documents) between(data []byte, i int) int {
	for i < len(data) {
		switch data[i] {
		case ' ', '\n', '\r', '\t':
			i++
			continue
		}
		switch {
		case d.InArray:
		case data[i] == recordSeparator:
			i++
			continue
		case bytes.HasPrefix(data[i:], []byte(mark)):
			i += len(mark)
			continue
		}
		return i
	}
	return i
}

const (
	recordSeparator = 0x1e
	mark            = "\ufeff"
)

// value returns the document that starts at a place.
func (d *Documents) value(data []byte, start int, last bool) (doc Span, next int, ok bool, err error) {
	if bytes.IndexByte([]byte(",:}]"), data[start]) >= 0 {
		return doc, start, false, &StreamError{start, fmt.Sprintf("%q stands where a JSON document begins", data[start])}
	}
	end := d.end(data, start)
	if end < 0 || end == len(data) && !last && isScalar(data[start]) {
		if last {
			return doc, start, false, &StreamError{start, "the document has no end: the input was cut short"}
		}
		return doc, start, false, nil
	}
	if !d.InArray {
		return Span{start, end}, end, true, nil
	}
	// The element is whole, and so is the comma behind it: a reader that continues at an element
	// knows by the sign before it that it is in an array.
	switch i := d.between(data, end); {
	case i == len(data) && last:
		return doc, start, false, &StreamError{i, "the array has no end: the input was cut short"}
	case i == len(data):
		return doc, start, false, nil
	case data[i] == ',':
		return Span{start, end}, i + 1, true, nil
	case data[i] == ']':
		d.InArray = false
		return Span{start, end}, i + 1, true, nil
	default:
		return doc, start, false, &StreamError{i, "neither a comma nor ] follows an element of the array"}
	}
}

func isScalar(c byte) bool { return c != '{' && c != '[' && c != '"' }

// end returns the end of the value that starts at a place, or -1 if data does not have it. The end
// of a scalar that data ends with may follow.
func (d *Documents) end(data []byte, start int) int {
	if isScalar(data[start]) {
		for i := start; i < len(data); i++ {
			if bytes.IndexByte([]byte(" \n\r\t,]}[{\"\x1e"), data[i]) >= 0 {
				return i
			}
		}
		return len(data)
	}
	i := start + d.scanned
	for i < len(data) {
		switch c := data[i]; {
		case d.quoted && c == '\\':
			if i+1 == len(data) {
				d.scanned = i - start
				return -1
			}
			i++
		case c == '"':
			d.quoted = !d.quoted
		case d.quoted:
		case c == '{' || c == '[':
			d.depth++
		case c == '}' || c == ']':
			d.depth--
		}
		if i++; !d.quoted && d.depth == 0 {
			d.scanned, d.depth = 0, 0
			return i
		}
	}
	d.scanned = i - start
	return -1
}

// ArrayBefore reports whether the place behind data is between the elements of an array. data ends
// where Documents may continue. known is not set if data has only white space: more of it is needed.
func ArrayBefore(data []byte) (inArray, known bool) {
	data = bytes.TrimRight(data, " \n\r\t")
	if len(data) == 0 {
		return false, false
	}
	c := data[len(data)-1]
	return c == ',' || c == '[', true
}
