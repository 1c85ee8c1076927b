package pgstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// Defaults of the names under which tables are made.
const (
	DefaultSchema = "public"
	DefaultPrefix = "semel_"
)

// maxIdentifier is how many bytes of a name PostgreSQL looks at.
const maxIdentifier = 63

// Names says where the tables are. The zero value is valid.
type Names struct {
	// Schema of the tables. Defaults to "public". Must be of a-z, 0-9 and _,
	// not begin with a digit, and have at most 63 bytes.
	Schema string
	// Prefix of the names of tables and of the sequence. Defaults to
	// "semel_". Must be of the same characters and have at most 40 bytes.
	Prefix string
}

// maxPrefix leaves room for what follows a prefix: the names of tables, of
// their partitions, and of indexes that PostgreSQL makes up from them.
const maxPrefix = 40

func (n Names) withDefaults() Names {
	if n.Schema == "" {
		n.Schema = DefaultSchema
	}
	if n.Prefix == "" {
		n.Prefix = DefaultPrefix
	}
	return n
}

// validate returns one error for each name that is none.
func (n Names) validate() []error {
	var errs []error
	for _, name := range []struct {
		field, value string
		most         int
	}{{"Schema", n.Schema, maxIdentifier}, {"Prefix", n.Prefix, maxPrefix}} {
		if !validIdentifier(name.value, name.most) {
			errs = append(errs, fmt.Errorf("pgstore: Names.%s: %q is not a name of a-z, 0-9 and _ with at most %d bytes: %w",
				name.field, name.value, name.most, semel.ErrInvalidRequest))
		}
	}
	return errs
}

// validIdentifier reports whether a name needs no quotes to be what it says.
// Quoting would make any name safe; names that need it are refused because
// they surprise everybody who types them into a query.
func validIdentifier(name string, most int) bool {
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

// quoted returns the name of a table, quoted with its schema. This is the one
// place where names become SQL.
func (n Names) quoted(table string) string {
	return pgx.Identifier{n.Schema, n.Prefix + table}.Sanitize()
}

// Table returns the name of one of the store's tables, such as "parked", quoted
// with its schema. The error wraps semel.ErrInvalidRequest if Names are none.
func (n Names) Table(table string) (string, error) {
	n = n.withDefaults()
	return n.quoted(table), errors.Join(n.validate()...)
}

// quotedSchema returns the name of the schema, quoted.
func (n Names) quotedSchema() string { return pgx.Identifier{n.Schema}.Sanitize() }

// literal returns the name of a table as a string in SQL that a cast to
// regclass understands.
func (n Names) literal(table string) string {
	return "'" + strings.ReplaceAll(n.quoted(table), "'", "''") + "'"
}
