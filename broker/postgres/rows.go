package postgres

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/pipeline"
)

// A statement costs the server more than a row. So most rows of a batch are written by
// statements of many rows. The server gives each parameter the type that it has in the
// statement of one row, so it takes and refuses the same values.

// rowCounts are how many rows these statements have, in descending order. A few numbers
// are enough to keep most rows in large statements, and few texts have to be prepared.
var rowCounts = [...]int{64, 16, 4}

// maxParams is the maximum number of parameters of a statement of many rows. PostgreSQL
// permits 65,535.
const maxParams = 4096

// multiple is a statement of many rows.
type multiple struct {
	rows int
	sql  string
}

// multiples returns the statements of many rows of a table, the largest first. It returns
// none if a message needs a statement of its own: the statement is the user's, or its
// answer is the result of one message.
func (o *Options) multiples(table pgx.Identifier) (list []multiple) {
	if o.Table == "" || o.Outbox != nil || o.Version != "" {
		return nil
	}
	for _, n := range rowCounts {
		if n*len(o.Columns) <= maxParams {
			sql, _ := o.insert(table, n)
			list = append(list, multiple{n, sql})
		}
	}
	return list
}

// rowArgs are the arguments of messages whose rows one transaction writes.
type rowArgs struct {
	write *writer
	width int // the number of arguments of a message
	args  []any
}

func (w *writer) rows(messages int) *rowArgs {
	width := len(w.values.list)
	if w.outbox != nil {
		width += outboxParams
	}
	return &rowArgs{write: w, width: width, args: make([]any, 0, messages*width)}
}

// add adds the arguments of an item. Its error is permanent, and adds none.
func (r *rowArgs) add(it *pipeline.Item) error {
	args, err := r.write.args(r.args, it)
	if err == nil {
		r.args = args
	}
	return err
}

// statements calls queue for the statements that write the rows of n messages, in their
// order. The statement writes count rows, beginning with row first. If apart is set, each
// statement writes one row.
func (r *rowArgs) statements(n int, apart bool, queue func(first, count int, sql string, args []any)) {
	for first := 0; first < n; {
		count, sql := 1, r.write.sql
		if !apart {
			count, sql = r.next(first, n)
		}
		queue(first, count, sql, r.args[first*r.width:(first+count)*r.width])
		first += count
	}
}

// next returns the largest statement for the rows from first to n.
func (r *rowArgs) next(first, n int) (count int, sql string) {
	for _, m := range r.write.multiples {
		if m.rows > n-first {
			continue
		}
		if len(r.write.unique) > 0 {
			n = first + r.different(first, min(n-first, m.rows))
			if m.rows > n-first {
				continue
			}
		}
		return m.rows, m.sql
	}
	return 1, r.write.sql
}

// different returns how many of the rows from first to first+most have keys that differ
// from each other. A statement cannot replace the same row twice. Values with another text
// may be the same key, for instance 7 and 007; the server then refuses the statement.
func (r *rowArgs) different(first, most int) int {
	seen := make(map[string]bool, most)
	var key strings.Builder
	for i := range most {
		key.Reset()
		for _, column := range r.write.unique {
			value := r.args[(first+i)*r.width+column]
			text := fmt.Sprintf("%s", value)
			fmt.Fprintf(&key, "%d:%s", len(text), text)
		}
		if seen[key.String()] {
			return i
		}
		seen[key.String()] = true
	}
	return most
}

// uniqueOf returns the places of the columns of the key, if a message replaces the row
// that is there.
func (o *Options) uniqueOf() (places []int) {
	if len(o.Key) == len(o.Columns) {
		return nil // it keeps the row
	}
	for i, c := range o.Columns {
		if slices.Contains(o.Key, c.Name) {
			places = append(places, i)
		}
	}
	return places
}
