package stream

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/key"
)

// Table is a compacted topic whose records are rows: the newest record of each record key
// is the row of that key, and a record without a value deletes it. Topic and By are
// required. A Table belongs to one Transactor, which keeps the rows in memory, and reads
// all of them before the first message is joined.
type Table struct {
	// Name is the name of the table, for people and metrics. Defaults to Topic.
	Name string
	// Topic has the rows.
	Topic string
	// By finds the key of the row in a message. A number is the text of that number.
	By *key.Rule
	// Local: the topic has as many partitions as the inputs, and a message and its row are
	// in partitions with the same number. Each process then has only the rows of its
	// partitions. Defaults to false: each process has all rows.
	Local bool
	// History joins a message with the row that was valid at the message's time. It is
	// how long former rows are kept. For an older message the row may be forgotten, and
	// the message is parked as late. The topic must keep former rows for as long
	// (min.compaction.lag.ms). Defaults to 0: a message is joined with the newest row.
	History time.Duration
	// Missing is the policy for messages without a row. Defaults to MissingPark.
	Missing Missing

	rows    atomic.Pointer[Rows]
	readers sync.Pool // of *tableReader
}

// Missing is a policy for messages that have no row in a table.
type Missing uint8

const (
	// MissingPark parks the message. A redrive joins it again.
	MissingPark Missing = iota
	// MissingDrop drops the message. It is counted.
	MissingDrop
	// MissingPass joins the message with no row.
	MissingPass
	// MissingWait reads the table up to its present end, and parks the message if its row
	// is still missing. Messages of other keys continue in the meantime. It is for rows that are
	// written shortly before their messages.
	MissingWait
)

// Rows returns the row of a key for a message, or nil if it has no row. It is called
// concurrently. The caller does not change the row.
type Rows func(key []byte, m *semel.Message) (row []byte, err error)

// Attach gives the table its rows. A Transactor calls it when it runs. Call it to test a
// function that uses the table.
func (t *Table) Attach(rows Rows) { t.rows.Store(&rows) }

// Title returns the name of the table.
func (t *Table) Title() string { return cmp.Or(t.Name, t.Topic) }

// RowError means that a table has no row for a message. A FilterMap or Transform returns
// it, and the Transactor applies the policy of the table. It wraps semel.ErrLate if the
// message is older than the history of the table.
type RowError struct {
	Table *Table
	// Key is the key of the row as text. It is empty if the message has none.
	Key string
	// Cause says more, or is nil.
	Cause error
}

// Error implements error.
func (e *RowError) Error() string {
	text := fmt.Sprintf("table %s has no row with the key %q", e.Table.Title(), e.Key)
	if e.Key == "" {
		text = fmt.Sprintf("the message has no key for table %s (%s)", e.Table.Title(), e.Table.By)
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns Cause.
func (e *RowError) Unwrap() error { return e.Cause }

type tableReader struct {
	rule     *key.Reader
	id, text []byte
}

// Row returns the row of a message. The caller must not change it. If there is no row, the
// error is a *RowError; with MissingPass, the row and the error are nil. Concurrent calls
// are allowed.
func (t *Table) Row(m *semel.Message) ([]byte, error) {
	rows := t.rows.Load()
	if rows == nil {
		return nil, fmt.Errorf("table %s has no rows: name it in the options of a Transactor", t.Title())
	}
	r, _ := t.readers.Get().(*tableReader)
	if r == nil {
		r = &tableReader{rule: t.By.Reader(nil)}
	}
	defer t.readers.Put(r)
	var err error
	if r.id, err = r.rule.AppendID(r.id[:0], m); err != nil && !errors.Is(err, key.ErrMissing) {
		return nil, fmt.Errorf("the key for table %s (%s): %w", t.Title(), t.By, err)
	}
	r.text = key.AppendText(r.text[:0], r.id)
	if err != nil || len(r.text) == 0 {
		return nil, t.missing(nil)
	}
	row, err := (*rows)(r.text, m)
	switch {
	case errors.Is(err, semel.ErrLate):
		return nil, &RowError{Table: t, Key: string(r.text), Cause: err}
	case err != nil:
		return nil, fmt.Errorf("table %s: %w", t.Title(), err)
	case row == nil:
		return nil, t.missing(r.text)
	}
	return row, nil
}

func (t *Table) missing(text []byte) error {
	if t.Missing == MissingPass {
		return nil
	}
	return &RowError{Table: t, Key: string(text)}
}

// Validate returns an error that names all invalid fields and wraps
// semel.ErrInvalidRequest, or nil.
func (t *Table) Validate() error {
	wrong := invalid.In("stream: Table.")
	if t.Topic == "" {
		wrong.Add("Topic is missing")
	}
	if t.By == nil {
		wrong.Add("By is missing")
	}
	if t.History < 0 {
		wrong.Add("History: %v is negative", t.History)
	}
	if t.Missing > MissingWait {
		wrong.Add("Missing: %d is no such policy", t.Missing)
	}
	return wrong.Err()
}
