package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/framing"
)

// records are the messages of one read.
type records struct {
	positions []int64
	bodies    [][]byte
	errs      []error // of messages that cannot be read; nil for others
	used      int     // bytes of the data
}

func (r *records) add(at int64, body []byte, err error) {
	r.positions, r.bodies, r.errs = append(r.positions, at), append(r.bodies, body), append(r.errs, err)
}

// divider divides the data of one file into records.
type divider struct {
	opts *SourceOptions
	path string
	// header has the names of the columns, once the first row was read. inArray says that the
	// place is between two elements of an array of documents.
	header  []string
	inArray bool
}

// divide returns the records in data, which starts at an offset of the file. last says that no more
// data follows. It stops before a record that is too long or malformed, which is an error if it is
// the first.
func (f *divider) divide(data []byte, offset int64, last bool) (r records, err error) {
	if offset == 0 {
		if is := diagnose.ForeignFile(data); is != "" {
			return r, unusable("%s %s", f.path, is)
		}
	}
	if f.opts.Format == JSON {
		err = f.documents(&r, data, offset, last)
	} else {
		err = f.rows(&r, data, offset, last)
	}
	if len(r.bodies) > 0 {
		err = nil // it comes again
	}
	return r, err
}

// rows adds the rows in data. A row that cannot be read is a message of its own bytes.
func (f *divider) rows(r *records, data []byte, offset int64, last bool) error {
	opts := f.opts
	text := data
	if last && len(data) > 0 && data[len(data)-1] != '\n' {
		text = append(data[:len(data):len(data)], '\n')
	}
	scanner := framing.Rows{Comma: opts.comma()}
	var fields [][]byte
	for start := 0; start < len(text); {
		end, good := scanner.Next(text)
		if end < 0 {
			if !last {
				return nil
			}
			end, good = len(text), false // a quote has no end
		}
		at, row := offset+int64(start), withoutLineEnd(text[start:end])
		if at == 0 {
			row = bytes.TrimPrefix(row, []byte(utf8Mark))
		}
		if len(row) > opts.MaxLine {
			return tooLong(f.path, f.opts, at)
		}
		start = end
		if len(row) > 0 && f.header == nil {
			var err error
			if f.header, err = framing.Header(row, good, opts.comma()); err != nil {
				return unusable("%s: %w", f.path, err)
			}
		} else if len(row) > 0 {
			body, err := row, framing.ErrQuotes
			if good {
				err = framing.Flaw(row)
			}
			if err == nil {
				fields, _ = framing.AppendFields(fields[:0], nil, row, opts.comma(), len(row)+1)
				var document []byte
				if document, err = framing.AppendDocument(make([]byte, 0, 2*len(row)+64), f.header, fields); err == nil {
					body = document
				}
			}
			r.add(at, body, err)
		}
		r.used = min(end, len(data))
	}
	return nil
}

// documents adds the documents in data.
func (f *divider) documents(r *records, data []byte, offset int64, last bool) error {
	scanner := framing.Documents{InArray: f.inArray}
	for {
		doc, next, ok, err := scanner.Next(data, r.used, last)
		var malformed *framing.StreamError
		switch {
		case errors.As(err, &malformed):
			return unusable("%s, byte %d: %s", f.path, offset+int64(malformed.Offset), malformed.Problem)
		case ok && doc.End-doc.Start > f.opts.MaxLine:
			return tooLong(f.path, f.opts, offset+int64(doc.Start))
		}
		r.used, f.inArray = next, scanner.InArray
		if !ok {
			return nil
		}
		r.add(offset+int64(doc.Start), data[doc.Start:doc.End:doc.End], nil)
	}
}

func withoutLineEnd(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

// findContext finds what the records behind an offset need from before it: the header of rows, and
// whether documents are in an array. A compressed file is read up to the offset.
func (f *divider) findContext(file *os.File, packed io.Reader, offset int64) error {
	f.header, f.inArray = nil, false
	var before io.Reader = io.NewSectionReader(file, 0, offset)
	if packed != nil {
		before = io.LimitReader(packed, offset)
	}
	switch {
	case offset == 0:
	case f.opts.comma() != 0:
		if err := f.findHeader(before); err != nil {
			return err
		}
	case f.opts.Format == JSON && packed == nil:
		return f.findArray(file, offset)
	case f.opts.Format == JSON:
		var last lastSign
		if _, err := io.Copy(&last, before); err != nil {
			return explain(f.path, err)
		}
		f.inArray, _ = framing.ArrayBefore(last.sign) // not known: behind white space alone, no array has begun
	}
	if packed != nil {
		if _, err := io.Copy(io.Discard, before); err != nil {
			return explain(f.path, err)
		}
		if before.(*io.LimitedReader).N > 0 {
			return explain(f.path, io.ErrUnexpectedEOF)
		}
	}
	return nil
}

// findHeader reads the first row.
func (f *divider) findHeader(from io.Reader) error {
	var data []byte
	scanner := framing.Rows{Comma: f.opts.comma()}
	for start := 0; ; {
		if end, good := scanner.Next(data); end >= 0 {
			row := withoutLineEnd(data[start:end])
			if start == 0 {
				row = bytes.TrimPrefix(row, []byte(utf8Mark))
			}
			if start = end; len(row) == 0 {
				continue
			}
			var err error
			if f.header, err = framing.Header(row, good, f.opts.comma()); err != nil {
				return unusable("%s: %w", f.path, err)
			}
			return nil
		}
		chunk := make([]byte, 4<<10)
		n, err := from.Read(chunk)
		data = append(data, chunk[:n]...)
		if err == io.EOF && n == 0 {
			return fmt.Errorf("file: %s has no header before the position %d: it was changed", f.path, len(data))
		} else if err != nil && err != io.EOF {
			return explain(f.path, err)
		}
	}
}

// findArray looks at the signs before an offset.
func (f *divider) findArray(file *os.File, offset int64) error {
	for end := offset; end > 0; {
		part := make([]byte, min(end, 4<<10))
		if _, err := file.ReadAt(part, end-int64(len(part))); err != nil {
			return explain(f.path, err)
		}
		var known bool
		if f.inArray, known = framing.ArrayBefore(part); known {
			return nil
		}
		end -= int64(len(part))
	}
	return nil
}

// lastSign keeps the last byte that is not white space.
type lastSign struct{ sign []byte }

func (l *lastSign) Write(p []byte) (int, error) {
	if text := bytes.TrimRight(p, " \n\r\t"); len(text) > 0 {
		l.sign = append(l.sign[:0], text[len(text)-1])
	}
	return len(p), nil
}

// utf8Mark is the byte order mark that a file may start with. It belongs to no
// line.
const utf8Mark = "\ufeff"

// tooLong says that a line or record has no end within the longest one.
func tooLong(path string, o *SourceOptions, at int64) error {
	return unusable("%s: the line at byte %d is longer than %d bytes: split it", path, at, o.MaxLine)
}

// explain adds the name of the file to a read error.
func explain(path string, err error) error {
	_, ofSystem := errors.AsType[syscall.Errno](err)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF): // of its compression
		return unusable("%s ends in the middle", path)
	case err == io.EOF: // a process has just cut it
		return fmt.Errorf("file: %s ends in the middle", path)
	case ofSystem || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrClosed):
		return fmt.Errorf("file: read %s: %w", path, err)
	}
	return unusable("read %s: %w", path, err) // its compression is damaged
}

// unusable returns an error that ends a pipeline: the content of a file is read again in vain
// until an operator corrects it. What was read before it is settled or comes again.
func unusable(format string, args ...any) error {
	return semel.Permanent(fmt.Errorf("file: "+format, args...))
}
