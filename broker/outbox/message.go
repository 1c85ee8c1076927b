package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// row is a row of the outbox as a message.
type row struct {
	number int16
	seq    int64
	item   *pipeline.Item
}

// scanner has the values of a row: those of the columns of the statements, and further ones.
type scanner interface{ Scan(dest ...any) error }

// scan reads a row.
func scan(from scanner, further ...any) (row, error) {
	var (
		r       row
		id      [16]byte
		topic   string
		headers []byte
		created pgtype.Timestamptz
		m       semel.Message
	)
	if err := from.Scan(append([]any{&r.number, &r.seq, &id, &m.RecordKey, &topic, &m.Body, &headers, &created}, further...)...); err != nil {
		return row{}, fmt.Errorf("a row of the outbox: %w", err)
	}
	var err error
	if m.Headers, err = decodeHeaders(headers); err != nil {
		return row{}, fmt.Errorf("the headers of row %d: %w", r.seq, err)
	}
	m.ID, m.Time = key.UUID(id).String(), timeOf(created, time.Time{})
	// The numbers of rows may start again. Their ids do not.
	m.Origin = semel.Origin{Source: topic, Identity: m.ID, Partition: int32(r.number), Offset: r.seq}
	r.item = &pipeline.Item{Message: m, Seen: m.Time}
	return r, nil
}

// never is later than every time that the table takes.
var never = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// timeOf returns a time of a row. Rows that are older than the checks of the table may have
// infinite times, and years that RFC 3339 cannot write. These are the time future, or zero if
// they are in the past.
func timeOf(t pgtype.Timestamptz, future time.Time) time.Time {
	switch year := t.Time.UTC().Year(); {
	case t.InfinityModifier == pgtype.Infinity, t.InfinityModifier == pgtype.Finite && year > 9999:
		return future
	case t.InfinityModifier == pgtype.NegativeInfinity, year < 1:
		return time.Time{}
	}
	return t.Time
}

// decodeHeaders reads a JSON object in its order. A value that is not a text is delivered as
// its JSON text. The server has checked the syntax. The standard decoder refuses deep
// nesting, which the server accepts, so only names and texts are left to it.
func decodeHeaders(text []byte) ([]semel.Header, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var list []semel.Header
	rest, ok := cutByte(text, '{')
	for ok {
		var name, value []byte
		if name, rest = cutValue(rest); len(name) == 0 {
			break // the end of the object
		}
		if rest, ok = cutByte(rest, ':'); !ok {
			break
		}
		if value, rest = cutValue(rest); len(value) == 0 {
			ok = false
			break
		}
		h := semel.Header{Value: value}
		err := json.Unmarshal(name, &h.Name)
		if err == nil && value[0] == '"' {
			var text string
			err = json.Unmarshal(value, &text)
			h.Value = []byte(text)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, h)
		if after, more := cutByte(rest, ','); more {
			rest = after
		}
	}
	if _, end := cutByte(rest, '}'); !ok || !end {
		return nil, errors.New("not a JSON object")
	}
	return list, nil
}

const blanks = " \t\r\n"

// cutByte returns the text behind the first byte that is no blank, if that byte is b.
func cutByte(text []byte, b byte) (rest []byte, ok bool) {
	text = bytes.TrimLeft(text, blanks)
	if len(text) == 0 || text[0] != b {
		return text, false
	}
	return text[1:], true
}

// cutValue returns the JSON value at the beginning of a text, and the rest. The value is
// empty if none exists.
func cutValue(text []byte) (value, rest []byte) {
	text = bytes.TrimLeft(text, blanks)
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			if quoted = !quoted; !quoted && depth == 0 {
				return text[:i+1], text[i+1:]
			}
		case quoted:
		case c == '[' || c == '{':
			depth++
		case (c == ']' || c == '}') && depth > 0:
			if depth--; depth == 0 {
				return text[:i+1], text[i+1:]
			}
		case depth == 0 && bytes.IndexByte([]byte(blanks+",:]}"), c) >= 0: // the end of a number or word
			return text[:i], text[i:]
		}
	}
	return text, nil
}

// place describes a row for people.
func place(o semel.Origin) string {
	text := "outbox row " + strconv.FormatInt(o.Offset, 10)
	if o.Source != "" {
		text += " (" + o.Source + ")"
	}
	return text
}
