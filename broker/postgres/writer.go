package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

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
	// Table gets a row of Columns. "schema.table" names its schema. Names are exact, as if
	// quoted in SQL: Order is the table "Order". A name with a dot is in double quotes.
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
	table    pgx.Identifier // nil without Table
	columns  []Column       // those of table
	outbox   *outboxWriter
	plan     string // explains the statement of a table; "" without Table
	versions bool   // the number of changed rows reveals a stale message
	// multiples are the statements of many rows, if there are some. unique are the columns
	// that must differ in one.
	multiples []multiple
	unique    []int
	targets   atomic.Pointer[targets]
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
		if w.table, err = ParseTable(o.Table); err != nil {
			return nil, wrong("Table %q: %w", o.Table, err)
		}
		w.columns = slices.Clone(o.Columns)
		w.sql, texts = o.insert(w.table, 1)
		w.multiples, w.unique = o.multiples(w.table), o.uniqueOf()
		w.plan = Plan(w.table, o.Columns, o.Key)
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

// Plan returns a statement that explains how a row would be written. It fails if the table, a
// column or a privilege is missing. If key is set, it needs a unique index.
func Plan(table pgx.Identifier, columns []Column, key []string) string {
	names, values := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i], values[i] = pgx.Identifier{c.Name}.Sanitize(), "DEFAULT"
	}
	text := fmt.Sprintf("EXPLAIN INSERT INTO %s (%s) VALUES (%s)", table.Sanitize(), strings.Join(names, ", "), strings.Join(values, ", "))
	if len(key) == 0 {
		return text
	}
	unique := make([]string, len(key))
	for i, name := range key {
		unique[i] = pgx.Identifier{name}.Sanitize()
	}
	return text + " ON CONFLICT (" + strings.Join(unique, ", ") + ") DO NOTHING"
}

// planWithin limits the time for a plan. It waits if another session has locked the table.
const planWithin = time.Second

// refused asks the server whether it refuses the statement of a message: a table, a column or a
// privilege may be missing. It executes nothing. An error that says nothing about the statement
// is not a refusal.
func (w *writer) refused(ctx context.Context, with func(context.Context, func(*pgx.Conn) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, planWithin)
	defer cancel()
	err := with(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Prepare(ctx, "", w.sql); err != nil || w.plan == "" {
			return err
		}
		_, err := conn.Exec(ctx, w.plan, pgx.QueryExecModeExec)
		return err
	})
	if isRefused(err) {
		return pipeline.Unavailable(fmt.Errorf("postgres: %w", err), 0)
	}
	return nil
}

// maxName is the longest name that PostgreSQL keeps whole, in bytes.
const maxName = 63

// ParseTable parses the name of a table, with or without its schema. Each part is exact;
// a part with a dot or a quote is in double quotes, as in SQL.
func ParseTable(text string) (pgx.Identifier, error) {
	var name pgx.Identifier
	for rest := text; ; {
		var part string
		if strings.HasPrefix(rest, `"`) {
			end := 1
			for end < len(rest) && (rest[end] != '"' || strings.HasPrefix(rest[end+1:], `"`)) {
				if rest[end] == '"' {
					end++
				}
				end++
			}
			if end >= len(rest) {
				return nil, errors.New("a quote is not closed")
			}
			part, rest = strings.ReplaceAll(rest[1:end], `""`, `"`), rest[end+1:]
		} else {
			end := strings.IndexByte(rest, '.')
			if end < 0 {
				end = len(rest)
			}
			part, rest = rest[:end], rest[end:]
		}
		if err := CheckName(part); err != nil {
			return nil, err
		}
		name = append(name, part)
		switch {
		case rest == "" && len(name) <= 2:
			return name, nil
		case rest == "" || rest[0] != '.':
			return nil, errors.New(`write table, schema.table or "schema"."table"`)
		}
		rest = rest[1:]
	}
}

// CheckName checks the exact name of a table or column.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("a name has 1 to %d bytes, not %d", maxName, len(name))
	case !isPlainText(name):
		return errors.New("a name is a text in UTF-8 without NUL")
	}
	return nil
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

// insert returns the statement that writes rows, and where the values of a row come from.
// With a version, the server locks the row that is there and compares again, so
// two writers cannot both be newer.
func (o *Options) insert(table pgx.Identifier, rows int) (sql string, texts []string) {
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	var names, sets, keys []string
	for _, c := range o.Columns {
		names = append(names, quoted(c.Name))
		texts = append(texts, c.From)
		if !slices.Contains(o.Key, c.Name) {
			sets = append(sets, quoted(c.Name)+" = EXCLUDED."+quoted(c.Name))
		}
	}
	next := 1
	if o.Outbox != nil {
		next += outboxParams
	}
	values := make([]string, rows)
	for i := range values {
		params := make([]string, len(o.Columns))
		for j := range params {
			params[j] = fmt.Sprintf("$%d", next)
			next++
		}
		values[i] = "(" + strings.Join(params, ", ") + ")"
	}
	sql = fmt.Sprintf("INSERT INTO %s AS old (%s) VALUES %s", table.Sanitize(), strings.Join(names, ", "), strings.Join(values, ", "))
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

// args appends the arguments of an item's statement. Its error is permanent.
func (w *writer) args(args []any, it *pipeline.Item) (_ []any, err error) {
	first := 0
	if w.outbox != nil {
		if args, err = w.outbox.args(args, it); err != nil {
			return nil, semel.Permanent(err)
		}
		first = outboxParams
	}
	args, err = w.values.of(args, it, w.targets.Load(), first)
	return args, semel.Permanent(err)
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
