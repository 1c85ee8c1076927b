// Package outbox writes messages to the transactional outbox of a PostgreSQL
// database: in the caller's transaction, together with the rows that they report.
// The message exists if and only if that transaction commits. A relay, `semel
// outbox relay` or a pipeline with the source of package broker/outbox, then
// delivers it under its id at least once.
//
// The migrations of store/pgstore create the tables: `semel migrate up`.
package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/outboxrow"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/store/pgstore"
)

// Message is one message of an outbox. Payload, Headers, Aggregate and Topic have at most 8 MiB
// together. Most brokers take less.
type Message struct {
	// ID is the UUID under which consumers know the message. A delivery that is
	// repeated has the same id. Defaults to a new UUIDv7.
	ID string
	// Aggregate is the thing that the message is about, such as an order. The
	// messages of one aggregate are delivered in the order of their inserts, if
	// their transactions lock the aggregate before they write, or check its version.
	// Empty means that the message has no order. Text in UTF-8.
	Aggregate string
	// Topic is the kind of the message. The relay can use it to choose the target. Text
	// in UTF-8, may be empty.
	Topic string
	// Payload is the body. Nil means no body.
	Payload []byte
	// Headers are delivered in their order. Names and values are texts in UTF-8.
	Headers []semel.Header
	// DeliverAt is the time before which the message is not delivered, by the clock
	// of the database. It then takes its place in the order. Zero means immediately. Its
	// year is at most 9999.
	DeliverAt time.Time
}

// maxBytes is the maximum size of a message. The table refuses larger ones.
const maxBytes = 8 << 20

// Writer writes to the outbox in the tables with certain names. It is safe for
// concurrent use. [New] returns one.
type Writer struct {
	insert  string // any number of messages
	one     string // one message
	channel string // wakes relays
}

// New returns a writer for tables with names of their own. If the names are invalid,
// the error wraps semel.ErrInvalidRequest. New does not connect.
func New(names pgstore.Names) (*Writer, error) {
	table, err := names.Table("outbox")
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	channel, err := outboxrow.Channel(names)
	return &Writer{strings.Replace(insertSQL, "{outbox}", table, 1), strings.Replace(insertOneSQL, "{outbox}", table, 1), channel}, err
}

// insertSQL numbers the rows in the order of the arrays.
const insertSQL = `INSERT INTO {outbox} (id, aggregate, topic, payload, headers, deliver_at)
SELECT m.id, m.aggregate, m.topic, m.payload, m.headers::json, m.deliver_at
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::text[], $6::timestamptz[]) WITH ORDINALITY AS m (id, aggregate, topic, payload, headers, deliver_at, n)
ORDER BY m.n`

// insertOneSQL costs the server half as much as insertSQL for one message.
const insertOneSQL = `INSERT INTO {outbox} (id, aggregate, topic, payload, headers, deliver_at) VALUES ($1, $2, $3, $4, $5::text::json, $6)`

// Write writes messages to the tables with the default names, in a transaction of
// pgx; see [Writer.Write].
func Write(ctx context.Context, tx pgx.Tx, msgs ...Message) error {
	w, err := New(pgstore.Names{})
	if err != nil {
		return err
	}
	return w.Write(ctx, tx, msgs...)
}

// WriteSQL is [Write] in a transaction of database/sql, with any driver for
// PostgreSQL.
func WriteSQL(ctx context.Context, tx *sql.Tx, msgs ...Message) error {
	w, err := New(pgstore.Names{})
	if err != nil {
		return err
	}
	return w.WriteSQL(ctx, tx, msgs...)
}

// Write writes messages in a transaction, with one statement for any number of them.
// They exist when the transaction commits. Write blocks for one round trip, or two
// if the connection does not know the statement yet. It does not change msgs.
//
// An invalid message is an error that wraps semel.ErrInvalidRequest; then nothing was
// sent. If the table is missing, the error wraps pgstore.ErrSchema. After an error of
// the database the transaction must be rolled back.
func (w *Writer) Write(ctx context.Context, tx pgx.Tx, msgs ...Message) error {
	r, err := rowsOf(msgs)
	if err != nil || len(msgs) == 0 {
		return err
	}
	statement, args := w.statement(r)
	_, err = tx.Exec(ctx, statement, append([]any{modeOf(tx)}, args...)...)
	return failure(err)
}

// Queue adds the insert of the messages to a batch of statements of a transaction, so
// that it costs no round trip of its own. An invalid message is an error that wraps
// semel.ErrInvalidRequest; then nothing was added. The results of the batch have errors
// of the database. The connection must know the types of a statement before it sends it,
// as in the default mode of pgx.
func (w *Writer) Queue(b *pgx.Batch, msgs ...Message) error {
	r, err := rowsOf(msgs)
	if err != nil || len(msgs) == 0 {
		return err
	}
	statement, args := w.statement(r)
	b.Queue(statement, args...)
	return nil
}

// Queue is [Writer.Queue] for the tables with the default names.
func Queue(b *pgx.Batch, msgs ...Message) error {
	w, err := New(pgstore.Names{})
	if err != nil {
		return err
	}
	return w.Queue(b, msgs...)
}

// statement returns the insert of rows and its arguments.
func (w *Writer) statement(r *rows) (statement string, args []any) {
	if len(r.ids) == 1 {
		return w.one, []any{r.ids[0], r.aggregates[0], r.topics[0], r.payloads[0], r.headers[0], r.times[0]}
	}
	return w.insert, []any{r.ids, r.aggregates, r.topics, r.payloads, r.headers, r.times}
}

// modeOf prepares the statement on connections that prepare statements, and only asks for
// its types on others, which may be behind a pooler.
func modeOf(tx pgx.Tx) pgx.QueryExecMode {
	if conn := tx.Conn(); conn != nil && conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		return pgx.QueryExecModeCacheStatement
	}
	return pgx.QueryExecModeCacheDescribe
}

// WriteSQL is [Writer.Write] for a transaction of database/sql, with any driver for
// PostgreSQL.
func (w *Writer) WriteSQL(ctx context.Context, tx *sql.Tx, msgs ...Message) error {
	r, err := rowsOf(msgs)
	if err != nil || len(msgs) == 0 {
		return err
	}
	// All drivers pass texts on as they are, and the statement has the types.
	types := pgtype.NewMap()
	texts := make([]any, 0, 6)
	for _, column := range []struct {
		oid   uint32
		value any
	}{
		{pgtype.UUIDArrayOID, r.ids}, {pgtype.TextArrayOID, r.aggregates}, {pgtype.TextArrayOID, r.topics},
		{pgtype.ByteaArrayOID, r.payloads}, {pgtype.TextArrayOID, r.headers}, {pgtype.TimestamptzArrayOID, r.times},
	} {
		text, err := types.Encode(column.oid, pgtype.TextFormatCode, column.value, nil)
		if err != nil {
			return fmt.Errorf("outbox: write: %w: %w", semel.ErrInvalidRequest, err)
		}
		texts = append(texts, string(text))
	}
	_, err = tx.ExecContext(ctx, w.insert, texts...)
	return failure(err)
}

// undefinedTable is the SQLSTATE of a statement that names a missing table.
const undefinedTable = "42P01"

func failure(err error) error {
	if err == nil {
		return nil
	}
	if of, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok && of.SQLState() == undefinedTable {
		return fmt.Errorf("outbox: write: there is no table for it: run semel migrate up: %w: %w", pgstore.ErrSchema, err)
	}
	return fmt.Errorf("outbox: write: %w", err)
}

// rows are the columns of messages.
type rows struct {
	ids        pgtype.FlatArray[[16]byte]
	aggregates pgtype.FlatArray[pgtype.Text]
	topics     pgtype.FlatArray[string]
	payloads   pgtype.FlatArray[[]byte]
	headers    pgtype.FlatArray[pgtype.Text]
	times      pgtype.FlatArray[pgtype.Timestamptz]
}

// rowsOf checks messages and returns their columns. One error names all invalid
// fields.
func rowsOf(msgs []Message) (*rows, error) {
	r := &rows{
		make([][16]byte, len(msgs)), make([]pgtype.Text, len(msgs)), make([]string, len(msgs)),
		make([][]byte, len(msgs)), make([]pgtype.Text, len(msgs)), make([]pgtype.Timestamptz, len(msgs)),
	}
	var wrong []error
	for i := range msgs {
		m := &msgs[i]
		bad := func(field, problem string) {
			wrong = append(wrong, fmt.Errorf("outbox: message %d: %s: %s: %w", i, field, problem, semel.ErrInvalidRequest))
		}
		id := key.NewUUIDv7()
		if m.ID != "" {
			var err error
			if id, err = key.ParseUUID(m.ID); err != nil {
				bad("ID", fmt.Sprintf("%.40q is not a UUID", m.ID))
			}
		}
		if !isText(m.Aggregate) {
			bad("Aggregate", notText)
		}
		if !isText(m.Topic) {
			bad("Topic", notText)
		}
		headers, err := outboxrow.EncodeHeaders(m.Headers)
		if err != nil {
			bad("Headers", err.Error())
		}
		if n := len(m.Payload) + len(headers) + len(m.Aggregate) + len(m.Topic); n > maxBytes {
			bad("Payload", fmt.Sprintf("the message has %d bytes, and at most %d are possible: store a large body elsewhere, and send its address", n, maxBytes))
		}
		if year := m.DeliverAt.UTC().Year(); year < 1 || year > 9999 {
			bad("DeliverAt", fmt.Sprintf("the year %d is not between 1 and 9999", year))
		}
		r.ids[i], r.topics[i], r.payloads[i] = id, m.Topic, m.Payload
		r.aggregates[i] = pgtype.Text{String: m.Aggregate, Valid: m.Aggregate != ""}
		r.headers[i] = pgtype.Text{String: headers, Valid: headers != ""}
		r.times[i] = pgtype.Timestamptz{Time: m.DeliverAt, Valid: !m.DeliverAt.IsZero()}
	}
	return r, errors.Join(wrong...)
}

const notText = "not a text in UTF-8 without NUL, as PostgreSQL needs it"

func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
