// Package pgschema generates the SQL that creates the tables of package pgstore,
// and quotes their names.
package pgschema

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

const (
	// maxIdentifier is the number of bytes of a name that PostgreSQL uses.
	maxIdentifier = 63
	// maxPrefix leaves room for the rest of a name: that of tables, of their
	// partitions, and of indexes that PostgreSQL derives from them.
	maxPrefix = 40
)

// Names is the schema and the name prefix of the tables.
type Names struct{ Schema, Prefix string }

// Validate returns one error for each invalid name. Quoting would make any name
// safe. Names that need quotes are refused because they surprise people who type
// them into a query.
func (n Names) Validate() []error {
	var errs []error
	for _, name := range []struct {
		field, value string
		most         int
	}{{"Schema", n.Schema, maxIdentifier}, {"Prefix", n.Prefix, maxPrefix}} {
		if !isIdentifier(name.value, name.most) {
			errs = append(errs, fmt.Errorf("pgstore: Names.%s: %q is not a name of a-z, 0-9 and _ with at most %d bytes: %w",
				name.field, name.value, name.most, semel.ErrInvalidRequest))
		}
	}
	return errs
}

// isIdentifier reports whether a name means the same with and without quotes.
func isIdentifier(name string, most int) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c == '_':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return name != "" && len(name) <= most
}

// Quoted returns the name of a table, quoted with its schema. This is the only
// place where names become SQL.
func (n Names) Quoted(table string) string {
	return pgx.Identifier{n.Schema, n.Prefix + table}.Sanitize()
}

// QuotedSchema returns the name of the schema, quoted.
func (n Names) QuotedSchema() string { return pgx.Identifier{n.Schema}.Sanitize() }

// Literal returns the name of a table as an SQL string that can be cast to
// regclass.
func (n Names) Literal(table string) string {
	return "'" + strings.ReplaceAll(n.Quoted(table), "'", "''") + "'"
}
