package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

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
		created time.Time
		m       semel.Message
	)
	if err := from.Scan(append([]any{&r.number, &r.seq, &id, &m.RecordKey, &topic, &m.Body, &headers, &created}, further...)...); err != nil {
		return row{}, fmt.Errorf("a row of the outbox: %w", err)
	}
	var err error
	if m.Headers, err = decodeHeaders(headers); err != nil {
		return row{}, fmt.Errorf("the headers of row %d: %w", r.seq, err)
	}
	m.ID, m.Time = key.UUID(id).String(), created
	m.Origin = semel.Origin{Source: topic, Partition: int32(r.number), Offset: r.seq}
	r.item = &pipeline.Item{Message: m, Seen: created}
	return r, nil
}

// decodeHeaders reads a JSON object in its order. A value that is not a text is
// delivered as its JSON text.
func decodeHeaders(text []byte) ([]semel.Header, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var list []semel.Header
	from := json.NewDecoder(bytes.NewReader(text))
	if _, err := from.Token(); err != nil { // the brace
		return nil, err
	}
	for from.More() {
		name, err := from.Token()
		if err != nil {
			return nil, err
		}
		var raw json.RawMessage
		if err := from.Decode(&raw); err != nil {
			return nil, err
		}
		value := []byte(raw)
		if raw[0] == '"' {
			var text string
			if err := json.Unmarshal(raw, &text); err != nil {
				return nil, err
			}
			value = []byte(text)
		}
		list = append(list, semel.Header{Name: fmt.Sprint(name), Value: value})
	}
	return list, nil
}

// place describes a row for people.
func place(o semel.Origin) string {
	text := "outbox row " + strconv.FormatInt(o.Offset, 10)
	if o.Source != "" {
		text += " (" + o.Source + ")"
	}
	return text
}
