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

// Options say what is written. One of Statement, Table and Upsert is required.
type Options struct {
	// Statement is executed for each message, with the values of Args for $1,
	// $2 and so on.
	Statement string
	Args      []string
	// Table gets a row of Columns. "schema.table" names its schema.
	Table   string
	Columns []Column
	// Upsert keeps the newest version of each row.
	Upsert *Upsert
}

// Column is a column and where its value comes from: a place in the JSON body
// (".amount"), "header:NAME", or one of body, record-key, property:message-id,
// key, scope, time, attempt, token, source, partition and offset.
type Column struct{ Name, From string }

// Upsert keeps one row for each value of the columns Key.
type Upsert struct {
	Table   string
	Columns []Column
	// Key are those of Columns that are unique together. Must not be empty.
	Key []string
	// Version is the one of Columns that must grow for a row to be replaced. A
	// message whose version is not newer is stale: it changes nothing and its
	// result says so. "" replaces always.
	Version string
}

// The results that an upsert with a version stores for a key.
const (
	Applied = "applied"
	Stale   = "stale"
)

// writer makes the statement of a message.
type writer struct {
	sql      string
	values   *values
	versions bool // the number of rows says whether it was stale
}

func newWriter(opts *Options) (*writer, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("postgres: Options: "+format+": %w", append(args, semel.ErrInvalidRequest)...)
	}
	ways := 0
	for _, there := range []bool{o.Statement != "", o.Table != "", o.Upsert != nil} {
		if there {
			ways++
		}
	}
	if ways != 1 {
		return nil, wrong("one of Statement, Table and Upsert is wanted")
	}
	w := &writer{sql: o.Statement}
	texts := o.Args
	switch {
	case o.Table != "":
		if len(o.Columns) == 0 {
			return nil, wrong("Columns is empty")
		}
		w.sql, texts = insert(identifier(o.Table), o.Columns)
	case o.Upsert != nil:
		if err := o.Upsert.check(); err != nil {
			return nil, wrong("Upsert: %w", err)
		}
		w.sql, texts = o.Upsert.statement()
		w.versions = o.Upsert.Version != ""
	}
	var err error
	if w.values, err = newValues(texts); err != nil {
		return nil, wrong("%w", err)
	}
	return w, nil
}

// identifier quotes a name; "a.b" names b in schema a.
func identifier(name string) string { return pgx.Identifier(strings.Split(name, ".")).Sanitize() }

// insert writes a row into a table, whose name is quoted.
func insert(table string, columns []Column) (sql string, texts []string) {
	var names, params []string
	for i, c := range columns {
		names = append(names, pgx.Identifier{c.Name}.Sanitize())
		params = append(params, fmt.Sprintf("$%d", i+1))
		texts = append(texts, c.From)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(names, ", "), strings.Join(params, ", ")), texts
}

func (u *Upsert) check() error {
	if u.Table == "" || len(u.Key) == 0 {
		return errors.New("a Table and a Key are wanted")
	}
	there := func(name string) bool {
		return slices.ContainsFunc(u.Columns, func(c Column) bool { return c.Name == name })
	}
	for _, name := range u.Key {
		if !there(name) {
			return fmt.Errorf("%q of Key is none of Columns", name)
		}
	}
	if u.Version != "" && (!there(u.Version) || slices.Contains(u.Key, u.Version)) {
		return fmt.Errorf("%q of Version is none of Columns that are not in Key", u.Version)
	}
	return nil
}

// statement writes a row unless a newer one is there. The row in place is
// locked and looked at again by the server, so that two writers cannot both
// think that theirs is newer.
func (u *Upsert) statement() (sql string, texts []string) {
	sql, texts = insert(identifier(u.Table)+" AS old", u.Columns)
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	var keys, sets []string
	for _, name := range u.Key {
		keys = append(keys, quoted(name))
	}
	for _, c := range u.Columns {
		if !slices.Contains(u.Key, c.Name) {
			sets = append(sets, quoted(c.Name)+" = EXCLUDED."+quoted(c.Name))
		}
	}
	sql += " ON CONFLICT (" + strings.Join(keys, ", ") + ") DO "
	if len(sets) == 0 {
		return sql + "NOTHING", texts
	}
	sql += "UPDATE SET " + strings.Join(sets, ", ")
	if u.Version != "" {
		v := quoted(u.Version)
		sql += " WHERE old." + v + " IS NULL OR old." + v + " < EXCLUDED." + v
	}
	return sql, texts
}

// queue adds the statement of an item to a batch, or sets its Err.
func (w *writer) queue(b *pgx.Batch, it *pipeline.Item) bool {
	args, err := w.values.of(it)
	if err != nil {
		it.Err = semel.Permanent(err)
		return false
	}
	b.Queue(w.sql, args...)
	return true
}

// result is what is kept with a key whose statement changed so many rows.
func (w *writer) result(rows int64) []byte {
	switch {
	case !w.versions:
		return nil
	case rows == 0:
		return []byte(Stale)
	}
	return []byte(Applied)
}
