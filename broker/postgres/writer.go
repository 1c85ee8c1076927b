package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Options say what is written. Statement, Table or Outbox is required.
type Options struct {
	// Statement is executed for each message, with the values of Args for $1,
	// $2 and so on.
	Statement string
	Args      []string
	// Table gets a row of Columns. "schema.table" names its schema.
	Table   string
	Columns []Column
	// Key are those of Columns that are unique together. If it is not empty, Table
	// keeps one row for each value of them: a message replaces the row.
	Key []string
	// FilterMap filters and changes the messages of a Session. A Sink has none: its
	// pipeline's session does so. Defaults to none.
	FilterMap pipeline.FilterMap
	// Version is one of the other Columns, which must grow for a row to be replaced.
	// A message whose version is not newer is stale: it changes nothing and its
	// result says so. "" replaces always.
	Version string
	// Outbox also writes a row to an outbox, with the same statement. Without Table, it
	// writes only that row. A stale message that changes nothing in Table writes no such
	// row. Outbox excludes Statement, which can write to the outbox itself.
	Outbox *OutboxRow
}

// Column is a column and the source of its value: a place in the JSON body
// (".amount"), "header:NAME", body, record-key, property:message-id, key, scope,
// time, attempt, token, source, partition or offset.
type Column struct{ Name, From string }

// Results that a table with a version stores for a key.
const (
	Applied = "applied"
	Stale   = "stale"
)

// writer builds the statement of a message.
type writer struct {
	sql      string
	values   *values
	outbox   *outboxWriter
	versions bool // the number of changed rows reveals a stale message
}

func newWriter(opts *Options) (*writer, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("postgres: Options: "+format+": %w", append(args, semel.ErrInvalidRequest)...)
	}
	switch {
	case o.Statement != "" && (o.Table != "" || o.Outbox != nil):
		return nil, wrong("Statement excludes Table and Outbox")
	case o.Statement == "" && o.Table == "" && o.Outbox == nil:
		return nil, wrong("set Statement, Table or Outbox")
	}
	w := &writer{sql: o.Statement, versions: o.Version != ""}
	texts := o.Args
	var err error
	if o.Outbox != nil {
		if w.outbox, err = newOutboxWriter(*o.Outbox); err != nil {
			return nil, wrong("Outbox: %w", err)
		}
	}
	if o.Table != "" {
		if err := o.checkTable(); err != nil {
			return nil, wrong("%w", err)
		}
		w.sql, texts = o.insert()
	} else if o.Columns != nil || o.Key != nil || o.Version != "" {
		return nil, wrong("Columns, Key and Version are for a Table")
	}
	if w.outbox != nil {
		if w.sql, err = w.outbox.statement(w.sql, w.versions); err != nil {
			return nil, wrong("Outbox: %w", err)
		}
	}
	if w.values, err = newValues(texts); err != nil {
		return nil, wrong("%w", err)
	}
	return w, nil
}

// checkTable checks the columns of a table.
func (o *Options) checkTable() error {
	if len(o.Columns) == 0 {
		return errors.New("no Columns")
	}
	there := func(name string) bool {
		return slices.ContainsFunc(o.Columns, func(c Column) bool { return c.Name == name })
	}
	for _, name := range o.Key {
		if !there(name) {
			return fmt.Errorf("%q of Key is not one of Columns", name)
		}
	}
	if o.Version != "" && (len(o.Key) == 0 || !there(o.Version) || slices.Contains(o.Key, o.Version)) {
		return fmt.Errorf("%q of Version is not one of the Columns that are not in Key", o.Version)
	}
	return nil
}

// insert returns the statement that writes a row, and where its values come from.
// With a version, the server locks the row that is there and compares again, so
// two writers cannot both be newer.
func (o *Options) insert() (sql string, texts []string) {
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	var names, params, sets, keys []string
	first := 1
	if o.Outbox != nil {
		first += outboxParams
	}
	for i, c := range o.Columns {
		names = append(names, quoted(c.Name))
		params = append(params, fmt.Sprintf("$%d", first+i))
		texts = append(texts, c.From)
		if !slices.Contains(o.Key, c.Name) {
			sets = append(sets, quoted(c.Name)+" = EXCLUDED."+quoted(c.Name))
		}
	}
	sql = fmt.Sprintf("INSERT INTO %s AS old (%s) VALUES (%s)", pgx.Identifier(strings.Split(o.Table, ".")).Sanitize(), strings.Join(names, ", "), strings.Join(params, ", "))
	if len(o.Key) == 0 {
		return sql, texts
	}
	for _, name := range o.Key {
		keys = append(keys, quoted(name))
	}
	sql += " ON CONFLICT (" + strings.Join(keys, ", ") + ") DO "
	if len(sets) == 0 {
		return sql + "NOTHING", texts
	}
	sql += "UPDATE SET " + strings.Join(sets, ", ")
	if o.Version != "" {
		v := quoted(o.Version)
		sql += " WHERE old." + v + " IS NULL OR old." + v + " < EXCLUDED." + v
	}
	return sql, texts
}

// queue adds the statement of an item to a batch, or sets the item's Err.
func (w *writer) queue(b *pgx.Batch, it *pipeline.Item) bool {
	args, err := w.args(it)
	if err != nil {
		it.Err = semel.Permanent(err)
		return false
	}
	b.Queue(w.sql, args...)
	return true
}

func (w *writer) args(it *pipeline.Item) ([]any, error) {
	args, err := w.values.of(it)
	if err != nil || w.outbox == nil {
		return args, err
	}
	own, err := w.outbox.args(it)
	return append(own, args...), err
}

// result returns the result of a key whose statement changed this many rows.
func (w *writer) result(rows int64) []byte {
	switch {
	case !w.versions:
		return nil
	case rows == 0:
		return []byte(Stale)
	}
	return []byte(Applied)
}
