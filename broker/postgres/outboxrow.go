package postgres

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/internal/outboxrow"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// OutboxRow describes the row that a message becomes in an outbox: an event under the key
// of the message, which a relay delivers. The row has the headers of the message, and those
// that name its key. If the id of the key is a UUID, it is the id of the row. Otherwise the
// row has a UUID that is always the same for the key.
type OutboxRow struct {
	// Names are the names of the outbox's tables.
	Names pgstore.Names
	// Pipeline is the pipeline's name, for a header.
	Pipeline string
	// Topic is the kind of the message. Defaults to none.
	Topic string
	// Aggregate and Payload are sources of values, as in Column. A message without the
	// value of Aggregate fails permanently. Aggregate defaults to none: the row has no
	// order. Payload defaults to body.
	Aggregate, Payload string
}

// outboxParams is how many parameters of a statement are for the outbox. They come first.
const outboxParams = 5

// outboxWriter adds the row of the outbox to the statement of a message.
type outboxWriter struct {
	row    OutboxRow
	values *values // payload and, if there is one, aggregate
}

func newOutboxWriter(row OutboxRow) (*outboxWriter, error) {
	if row.Payload == "" {
		row.Payload = "body"
	}
	from := []string{row.Payload}
	if row.Aggregate != "" {
		from = append(from, row.Aggregate)
	}
	values, err := newValues(from)
	if err != nil {
		return nil, err
	}
	if !isPlainText(row.Topic) {
		return nil, errors.New("the Topic of Outbox is not a text in UTF-8 without NUL")
	}
	return &outboxWriter{row, values}, nil
}

// statement returns the statement that writes the row of the outbox and runs another
// statement, if there is one. With changed, it writes the row only if the other one has
// changed something.
func (w *outboxWriter) statement(other string, changed bool) (string, error) {
	table, err := w.row.Names.Table("outbox")
	if err != nil {
		return "", err
	}
	sql := "INSERT INTO " + table + " (id, aggregate, topic, payload, headers) SELECT $1::text::uuid, $2::text, $3::text, $4::bytea, $5::text::json"
	switch {
	case changed:
		return "WITH written AS (" + other + " RETURNING 1) " + sql + " FROM written", nil
	case other != "":
		return "WITH written AS (" + other + ") " + sql, nil
	}
	return sql, nil
}

// args appends the parameters of the outbox for an item.
func (w *outboxWriter) args(args []any, it *pipeline.Item) ([]any, error) {
	values, err := w.values.of(nil, it, nil, 0)
	if err != nil {
		return nil, err
	}
	var payload, aggregate any
	switch value := values[0].(type) {
	case string:
		payload = []byte(value)
	case []byte:
		payload = value
	}
	if w.row.Aggregate != "" {
		text := ""
		switch value := values[1].(type) {
		case string:
			text = value
		case []byte:
			text = string(value)
		}
		if text == "" || !isPlainText(text) {
			return nil, fmt.Errorf("the aggregate of the outbox, %s, is missing, empty, or not a text in UTF-8 without NUL", w.row.Aggregate)
		}
		aggregate = text
	}
	headers, err := outboxrow.EncodeHeaders(header.Output(it, w.row.Pipeline))
	if err != nil {
		return nil, fmt.Errorf("the row of the outbox: %w", err)
	}
	return append(args, OutboxID(it.Call.Key).String(), aggregate, w.row.Topic, payload, headers), nil
}

func isPlainText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// outboxSpace is the name space of ids of outbox rows.
var outboxSpace = key.UUIDv5(key.NamespaceURL, "https://github.com/semel-dev/semel/outbox")

// OutboxID returns the id of the outbox row of a key. If the id of the key is a UUID, that
// is the row's id. Otherwise it is a UUIDv5 of a hash of scope and id, because ids may come
// from outside.
func OutboxID(k semel.Key) key.UUID {
	if id, err := key.ParseUUID(k.ID); err == nil {
		return id
	}
	sum := sha256.Sum256([]byte(strconv.Itoa(len(k.Scope)) + ":" + k.Scope + k.ID))
	return key.UUIDv5(outboxSpace, sum[:])
}
