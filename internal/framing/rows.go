// Package framing divides text into records: rows of CSV and TSV, and JSON documents that may
// stand in arrays and span lines. A file source and the engine of semel dedup share it.
package framing

import (
	"bytes"
	"errors"
)

// rowState is the state of Rows inside a record.
type rowState uint8

const (
	fieldStart rowState = iota
	unquoted
	quoted
	quoteSeen // a quote inside a quoted field: the end of the field, or half of a doubled quote
)

// Rows finds the ends of CSV records in data that may grow between
// calls. A quote matters only at the start of a field. Elsewhere in an unquoted
// field it is an ordinary byte.
type Rows struct {
	// Comma separates the fields.
	Comma   byte
	state   rowState
	bad     bool // the record has text after a closing quote
	pos     int
	newline byteFinder
	quote   byteFinder
}

// byteFinder remembers the last find, so that a long line is searched only
// once.
type byteFinder struct{ at, seen int }

// next returns the first place of c in data at or after from, or len(data).
func (f *byteFinder) next(data []byte, from int, c byte) int {
	if f.at >= from && f.at < f.seen {
		return f.at
	}
	start := max(from, f.seen)
	if i := bytes.IndexByte(data[start:], c); i >= 0 {
		f.at = start + i
		f.seen = f.at + 1
		return f.at
	}
	f.at, f.seen = -1, len(data)
	return len(data)
}

// Next returns the end of the next record, after its line end, and whether the
// record is well formed. The end is -1 if data does not hold the whole record.
func (s *Rows) Next(data []byte) (end int, good bool) {
	for s.pos < len(data) {
		switch s.state {
		case quoted:
			s.pos = s.quote.next(data, s.pos, '"')
			if s.pos < len(data) {
				s.pos++
				s.state = quoteSeen
			}
		case quoteSeen:
			switch c := data[s.pos]; {
			case c == '"':
				s.pos++
				s.state = quoted
			case c == s.Comma || c == '\n':
				s.state = unquoted
			case c == '\r' && s.pos+1 == len(data):
				return -1, false // the next byte decides whether this is a line end
			default:
				s.bad = s.bad || c != '\r' || data[s.pos+1] != '\n'
				s.pos++
				s.state = unquoted
			}
		case fieldStart:
			if data[s.pos] == '"' {
				s.pos++
				s.state = quoted
				continue
			}
			s.state = unquoted
		case unquoted:
			newline := s.newline.next(data, s.pos, '\n')
			if s.quote.next(data, s.pos, '"') > newline {
				s.pos = newline
			} else if comma := bytes.IndexByte(data[s.pos:newline], s.Comma); comma >= 0 {
				s.pos += comma + 1
				s.state = fieldStart
				continue
			} else {
				s.pos = newline
			}
			if s.pos < len(data) {
				s.pos++
				good = !s.bad
				s.state, s.bad = fieldStart, false
				return s.pos, good
			}
		}
	}
	return -1, false
}

// AppendFields appends the first values of a record without its line end, at most
// most of them. It writes values with doubled quotes to room, and returns room as it
// has grown.
func AppendFields(fields [][]byte, room, record []byte, comma byte, most int) (split [][]byte, grown []byte) {
	for ; most > 0; most-- {
		var value []byte
		if len(record) > 0 && record[0] == '"' {
			value, record, room = unquote(record, room)
			// Text between the closing quote and the comma is not part of a
			// well-formed record.
		} else {
			value = record
			if i := bytes.IndexByte(record, comma); i >= 0 {
				value = record[:i]
			}
			record = record[len(value):]
		}
		fields = append(fields, value)
		i := bytes.IndexByte(record, comma)
		if i < 0 {
			return fields, room
		}
		record = record[i+1:]
	}
	return fields, room
}

// unquote returns the value of the quoted field at the start of record, and the
// text after its closing quote.
func unquote(record, room []byte) (value, rest, grown []byte) {
	record = record[1:]
	start := len(room)
	for {
		i := bytes.IndexByte(record, '"')
		if i < 0 { // the quote is not closed, which the scanner has reported
			i = len(record)
			record = append(record[:i:i], '"')
		}
		if i+1 == len(record) || record[i+1] != '"' {
			if start == len(room) {
				return record[:i], record[i+1:], room
			}
			room = append(room, record[:i]...)
			return room[start:], record[i+1:], room
		}
		room = append(room, record[:i+1]...)
		record = record[i+2:]
	}
}

// ErrQuotes means that a record cannot be divided into fields.
var ErrQuotes = errors.New("not valid CSV: a quoted field has text after its closing quote, or no closing quote")

// ErrCR means that a record may be several.
var ErrCR = errors.New("not valid CSV: a carriage return (CR) outside of quotes does not end a line: if it should, pass the input through tr '\\r' '\\n'")

// ErrMark means that files were joined: their headers and perhaps their columns are among the rows.
var ErrMark = errors.New("not valid CSV: a byte order mark stands outside of quotes, as files have it at their start that were joined: a value behind it would count as another one: read each file by itself, or remove the marks with sed 's/\\xEF\\xBB\\xBF//g'")

// Flaw returns ErrCR or ErrMark if a CSV record without its line end has a carriage return or a
// byte order mark outside of quotes.
func Flaw(record []byte) error {
	switch {
	case isOutside(record, "\r"):
		return ErrCR
	case isOutside(record, mark):
		return ErrMark
	}
	return nil
}

// isOutside reports whether a sign stands outside of quotes.
func isOutside(record []byte, sign string) bool {
	for at := 0; ; at += len(sign) {
		i := bytes.Index(record[at:], []byte(sign))
		if i < 0 {
			return false
		}
		if at += i; bytes.Count(record[:at], []byte{'"'})%2 == 0 {
			return true
		}
	}
}
