package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/framing"
	"github.com/semel-dev/semel/pipeline"
)

// Format says how a file is divided into messages.
type Format string

const (
	// Lines are messages, as they are.
	Lines Format = "lines"
	// CSV has a header. Each row is a message: a JSON object with its columns, whose values are
	// strings. A row may span lines.
	CSV Format = "csv"
	// TSV is CSV with tabs instead of commas.
	TSV Format = "tsv"
	// JSON has documents one after the other, which may span lines, and arrays, whose elements
	// are messages.
	JSON Format = "json"
)

// comma separates columns. It is 0 unless the format has rows.
func (o *SourceOptions) comma() byte {
	switch {
	case o.Format != CSV && o.Format != TSV:
		return 0
	case o.Delimiter != 0:
		return o.Delimiter
	case o.Format == TSV:
		return '\t'
	}
	return ','
}

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

// makeRecords makes items of rows or documents, and returns how many bytes they take. last says
// that no more data follows. It stops before a record that is too long or malformed, which is an
// error if it is the first.
func (f *tail) makeRecords(data []byte, last bool) (items []*pipeline.Item, used int, err error) {
	var r records
	if f.source.opts.Format == JSON {
		err = f.documents(&r, data, last)
	} else {
		err = f.rows(&r, data, last)
	}
	if err != nil && len(r.bodies) == 0 {
		return nil, 0, err
	}
	if r.used == 0 {
		return nil, 0, nil
	}
	if err := f.identify(); err != nil {
		return nil, 0, err
	}
	life := f.life
	life.mark.Read(r.positions, f.offset+int64(r.used))
	slab := f.source.blocks.ItemsIn(f.memory, len(r.bodies))
	f.memory = nil
	items = make([]*pipeline.Item, len(slab))
	for i, body := range r.bodies {
		it := &slab[i]
		it.Message.Body, it.Err = body, r.errs[i]
		it.Message.Origin = semel.Origin{Source: life.path, Identity: life.identity, Offset: r.positions[i]}
		it.Partition, it.Ref = f.partition, life
		items[i] = it
	}
	return items, r.used, nil
}

// rows adds the rows in data. A row that cannot be read is a message of its own bytes.
func (f *tail) rows(r *records, data []byte, last bool) error {
	opts := &f.source.opts
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
		at, row := f.offset+int64(start), withoutLineEnd(text[start:end])
		if at == 0 {
			row = bytes.TrimPrefix(row, []byte(utf8Mark))
		}
		if len(row) > opts.MaxLine {
			return f.tooLong(at)
		}
		start = end
		if len(row) > 0 && f.header == nil {
			var err error
			if f.header, err = framing.Header(row, good, opts.comma()); err != nil {
				return fmt.Errorf("file: %s: %w", f.path, err)
			}
		} else if len(row) > 0 {
			body, err := row, framing.ErrQuotes
			switch {
			case !good:
			case framing.BareCR(row):
				err = framing.ErrCR
			default:
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
func (f *tail) documents(r *records, data []byte, last bool) error {
	if f.offset == 0 && r.used == 0 && bytes.HasPrefix(data, []byte("PAR1")) {
		return fmt.Errorf("file: %s is a Parquet file, which Semel does not read", f.path)
	}
	scanner := framing.Documents{InArray: f.inArray}
	for {
		doc, next, ok, err := scanner.Next(data, r.used, last)
		var malformed *framing.StreamError
		switch {
		case errors.As(err, &malformed):
			return fmt.Errorf("file: %s, byte %d: %s", f.path, f.offset+int64(malformed.Offset), malformed.Problem)
		case ok && doc.End-doc.Start > f.source.opts.MaxLine:
			return f.tooLong(f.offset + int64(doc.Start))
		}
		r.used, f.inArray = next, scanner.InArray
		if !ok {
			return nil
		}
		r.add(f.offset+int64(doc.Start), data[doc.Start:doc.End:doc.End], nil)
	}
}

func withoutLineEnd(line []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
}

// findContext finds what the records behind an offset need from before it: the header of rows, and
// whether documents are in an array. A compressed file is read up to the offset.
func (f *tail) findContext(file *os.File, offset int64) error {
	f.header, f.inArray = nil, false
	var before io.Reader = io.NewSectionReader(file, 0, offset)
	if f.packed != nil {
		before = io.LimitReader(f.packed, offset)
	}
	switch {
	case offset == 0:
	case f.source.opts.comma() != 0:
		if err := f.findHeader(before); err != nil {
			return err
		}
	case f.source.opts.Format == JSON && f.packed == nil:
		return f.findArray(file, offset)
	case f.source.opts.Format == JSON:
		var last lastSign
		_, err := io.Copy(&last, before)
		if f.inArray, _ = framing.ArrayBefore(last.sign); err != nil {
			return f.explain(err)
		}
	}
	if f.packed != nil {
		if _, err := io.Copy(io.Discard, before); err != nil {
			return f.explain(err)
		}
		if before.(*io.LimitedReader).N > 0 {
			return f.explain(io.ErrUnexpectedEOF)
		}
	}
	return nil
}

// findHeader reads the first row.
func (f *tail) findHeader(from io.Reader) error {
	var data []byte
	scanner := framing.Rows{Comma: f.source.opts.comma()}
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
			if f.header, err = framing.Header(row, good, f.source.opts.comma()); err != nil {
				return fmt.Errorf("file: %s: %w", f.path, err)
			}
			return nil
		}
		chunk := make([]byte, 4<<10)
		n, err := from.Read(chunk)
		data = append(data, chunk[:n]...)
		if err == io.EOF && n == 0 {
			return fmt.Errorf("file: %s has no header before the position %d: it was changed", f.path, len(data))
		} else if err != nil && err != io.EOF {
			return f.explain(err)
		}
	}
}

// findArray looks at the signs before an offset.
func (f *tail) findArray(file *os.File, offset int64) error {
	for end := offset; end > 0; {
		part := make([]byte, min(end, 4<<10))
		if _, err := file.ReadAt(part, end-int64(len(part))); err != nil {
			return f.explain(err)
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
