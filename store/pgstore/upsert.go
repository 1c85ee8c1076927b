package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
)

// Applied says what became of an [Upsert].
type Applied uint8

const (
	// NotApplied is the zero Applied: it was not found out.
	NotApplied Applied = iota
	// Written: the row was inserted, or was older and is replaced.
	Written
	// Equal: the row has this version already, and was left as it is.
	Equal
	// Stale: the row has a newer version, and was left as it is.
	Stale
)

// String returns the name in lower case.
func (a Applied) String() string {
	switch a {
	case NotApplied:
		return "not applied"
	case Written:
		return "written"
	case Equal:
		return "equal"
	case Stale:
		return "stale"
	}
	return "invalid"
}

// Table names a table that is kept at the newest version of each row.
type Table struct {
	// Schema and Name are the table's. Schema defaults to the search path.
	Schema, Name string
	// Keys are the columns of its primary key, or of another unique index.
	// Must not be empty.
	Keys []string
	// Version is the column that only grows: a number, a time, or a sequence
	// of the source. Must be given.
	Version string
	// Columns are the other columns that are written. Defaults to none.
	Columns []string
}

// Upsert writes rows that know their version, so that messages which come twice
// or in the wrong order leave the newest. It needs no key of the message: where
// the state of a row is all that a message has to say, it is enough. Where each
// message adds something, it is not: see docs/postgres.md.
//
// It is safe for concurrent use.
type Upsert struct {
	columns       int
	version       int // its place among the arguments
	write, verify string
}

// NewUpsert returns the upsert of a table. All that is wrong is named in one
// error, which wraps ErrInvalidRequest. Names are those that need no quotes:
// a-z, 0-9 and _.
func NewUpsert(table Table) (*Upsert, error) {
	columns := slices.Concat(table.Keys, []string{table.Version}, table.Columns)
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("pgstore: Table."+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if table.Schema != "" && !validIdentifier(table.Schema, maxIdentifier) {
		bad("Schema: %q is not a name of a-z, 0-9 and _", table.Schema)
	}
	if !validIdentifier(table.Name, maxIdentifier) {
		bad("Name: %q is not a name of a-z, 0-9 and _", table.Name)
	}
	if len(table.Keys) == 0 {
		bad("Keys: there are none")
	}
	for i, column := range columns {
		if !validIdentifier(column, maxIdentifier) {
			bad("Keys, Version, Columns: %q is not a name of a-z, 0-9 and _", column)
		}
		if slices.Contains(columns[:i], column) {
			bad("Keys, Version, Columns: %q is there twice", column)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return newUpsert(table, columns), nil
}

func newUpsert(table Table, columns []string) *Upsert {
	name := pgx.Identifier{table.Name}
	if table.Schema != "" {
		name = pgx.Identifier{table.Schema, table.Name}
	}
	quote := func(column string) string { return pgx.Identifier{column}.Sanitize() }
	var names, places, sets, finds []string
	for i, column := range columns {
		names, places = append(names, quote(column)), append(places, fmt.Sprintf("$%d", i+1))
		if i < len(table.Keys) {
			finds = append(finds, fmt.Sprintf("target.%s = $%d", quote(column), i+1))
		} else {
			sets = append(sets, fmt.Sprintf("%s = excluded.%s", quote(column), quote(column)))
		}
	}
	version := quote(table.Version)
	return &Upsert{
		columns: len(columns), version: len(table.Keys),
		// A row without version is older than any.
		write: fmt.Sprintf("INSERT INTO %s AS target (%s) VALUES (%s) ON CONFLICT (%s) DO UPDATE SET %s WHERE target.%s IS NULL OR target.%s < excluded.%s",
			name.Sanitize(), strings.Join(names, ", "), strings.Join(places, ", "), strings.Join(names[:len(table.Keys)], ", "),
			strings.Join(sets, ", "), version, version, version),
		// The first statement has locked the row also where it did not change
		// it, so that this one sees what it was compared with.
		verify: fmt.Sprintf("SELECT target.%s = $%d FROM %s AS target WHERE %s", version, len(table.Keys)+1, name.Sanitize(), strings.Join(finds, " AND ")),
	}
}

// SQL returns the statement that writes a row, with its parameters in the order
// of Keys, Version, Columns: for those who send it themselves. It changes no
// row, and returns none, if the row is stale or equal.
func (u *Upsert) SQL() string { return u.write }

// Sender sends batches: a pgx.Tx, as in [Guard.DoTx].
type Sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Write writes one row with the values of Keys, Version, Columns, in a
// transaction of the caller, and blocks for one round trip. Who acknowledges a
// Stale message has decided that the newer state is all that counts.
func (u *Upsert) Write(ctx context.Context, tx Sender, values ...any) (Applied, error) {
	applied, err := u.WriteAll(ctx, tx, [][]any{values})
	if err != nil {
		return NotApplied, err
	}
	return applied[0], nil
}

// WriteAll is Write for many rows, in their order and in one round trip. A row
// may be there several times. Transactions that write the same rows in another
// order may dead-lock: sort the rows by their keys, or have the transaction done
// again, as [Guard.DoTx] does.
func (u *Upsert) WriteAll(ctx context.Context, tx Sender, rows [][]any) ([]Applied, error) {
	applied := make([]Applied, len(rows))
	var b pgx.Batch
	for i, values := range rows {
		if len(values) != u.columns || values[u.version] == nil {
			return nil, fmt.Errorf("pgstore: upsert: row %d has %d values for %d columns, or no version: %w", i, len(values), u.columns, semel.ErrInvalidRequest)
		}
		b.Queue(u.write, values...).Exec(func(tag pgconn.CommandTag) error {
			if tag.RowsAffected() == 1 {
				applied[i] = Written
			}
			return nil
		})
		b.Queue(u.verify, values[:u.version+1]...).QueryRow(func(row pgx.Row) error {
			var equal bool
			switch err := row.Scan(&equal); {
			case err != nil:
				return err
			case applied[i] == Written:
			case equal:
				applied[i] = Equal
			default:
				applied[i] = Stale
			}
			return nil
		})
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("pgstore: upsert: %w", rolledBack(err))
	}
	return applied, nil
}
