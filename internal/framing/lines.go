package framing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Lines reads a stream of JSON documents as lines, one document on each. A document that spans
// lines loses the white space between its parts.
type Lines struct {
	from      io.Reader
	most      int
	documents Documents
	data      []byte // read and not yet divided
	offset    int64  // of data in the stream
	lines     []byte // not yet returned
	room      []byte // lines begins in it
	err       error  // of from; io.EOF at its end
}

// NewLines returns a reader of the documents in a stream. A document of more than most bytes is an
// error, and so is malformed JSON behind which no document can be found. The error is a
// *StreamError, whose Offset is that in the stream.
func NewLines(from io.Reader, most int) *Lines { return &Lines{from: from, most: most} }

// Read implements io.Reader. It does not wait for more documents than one.
func (l *Lines) Read(p []byte) (int, error) {
	for len(l.lines) == 0 {
		if err := l.divide(); err != nil {
			return 0, err
		}
		switch {
		case len(l.lines) > 0:
		case l.err != nil:
			return 0, l.err
		case len(l.data) > l.most:
			return 0, &StreamError{int(l.offset), fmt.Sprintf("the document is longer than %d MiB", l.most>>20)}
		default:
			l.more()
		}
	}
	n := copy(p, l.lines)
	l.lines = l.lines[n:]
	return n, nil
}

// more reads more data.
func (l *Lines) more() {
	const size = 64 << 10
	if cap(l.data)-len(l.data) < size {
		l.data = append(make([]byte, 0, 2*len(l.data)+2*size), l.data...)
	}
	n, err := l.from.Read(l.data[len(l.data) : len(l.data)+size])
	l.data, l.err = l.data[:len(l.data)+n], err
}

// divide makes lines of the documents that are whole.
func (l *Lines) divide() error {
	l.lines = l.room[:0]
	at := 0
	for {
		before := l.documents
		doc, next, ok, err := l.documents.Next(l.data, at, l.err == io.EOF)
		if malformed, is := errors.AsType[*StreamError](err); is {
			if len(l.lines) > 0 {
				l.documents = before
				break // they come first
			}
			return &StreamError{int(l.offset) + malformed.Offset, malformed.Problem}
		}
		if at = next; !ok {
			break
		}
		l.lines = appendLine(l.lines, l.data[doc.Start:doc.End])
	}
	l.offset += int64(at)
	l.data = l.data[:copy(l.data, l.data[at:])]
	l.room = l.lines
	return nil
}

// appendLine appends a document as a line.
func appendLine(dst, document []byte) []byte {
	if bytes.IndexByte(document, '\n') < 0 && bytes.IndexByte(document, '\r') < 0 {
		return append(append(dst, document...), '\n')
	}
	var compact bytes.Buffer
	if json.Compact(&compact, document) == nil {
		return append(append(dst, compact.Bytes()...), '\n')
	}
	start := len(dst)
	dst = append(append(dst, document...), '\n')
	for i := start; i < len(dst)-1; i++ {
		if dst[i] == '\n' || dst[i] == '\r' {
			dst[i] = ' ' // it stays malformed
		}
	}
	return dst
}
