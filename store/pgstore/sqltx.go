package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// sqlQuerier sends statements on a database/sql transaction. All drivers support
// text only. Arguments are therefore sent as literals, and each row comes back as
// one composite literal.
type sqlQuerier struct {
	tx    *sql.Tx
	types *pgtype.Map
}

// Query implements querier.
func (q *sqlQuerier) Query(ctx context.Context, statement string, args ...any) (pgx.Rows, error) {
	texts, err := textual(q.types, args)
	if err != nil {
		return nil, err
	}
	rows, err := q.tx.QueryContext(ctx, nested(statement, "answer", "SELECT answer::text FROM answer"), texts...)
	if err != nil {
		return nil, driverError(err)
	}
	return &sqlRows{rows: rows, types: q.types}, nil
}

// foreignError is the error of a driver other than pgx, with the parts that we
// could read.
type foreignError struct {
	error
	state *pgconn.PgError
}

// Unwrap returns the driver's error and the server's.
func (e *foreignError) Unwrap() []error { return []error{e.error, e.state} }

// driverError makes the SQLSTATE of any driver's error readable for failure.
func driverError(err error) error {
	var foreign interface{ SQLState() string }
	var ours *pgconn.PgError
	if err == nil || errors.As(err, &ours) || !errors.As(err, &foreign) {
		return err
	}
	return &foreignError{err, &pgconn.PgError{Code: foreign.SQLState(), Message: err.Error()}}
}

// sqlRows presents rows with one composite literal each as pgx rows with the
// columns of that composite.
type sqlRows struct {
	rows  *sql.Rows
	types *pgtype.Map
	err   error
}

// Next implements pgx.Rows.
func (r *sqlRows) Next() bool { return r.err == nil && r.rows.Next() }

// Scan implements pgx.Rows.
func (r *sqlRows) Scan(dest ...any) error {
	var row []byte
	if err := r.rows.Scan(&row); err != nil {
		return err
	}
	fields := pgtype.NewCompositeTextScanner(r.types, row)
	for i, d := range dest {
		if !fields.Next() {
			return errors.Join(fmt.Errorf("column %d of %d is missing: %w", i+1, len(dest), semel.ErrCorrupt), fields.Err())
		}
		if err := r.types.Scan(typeOf(d), pgtype.TextFormatCode, fields.Bytes(), d); err != nil {
			return fmt.Errorf("column %d: %w: %w", i+1, semel.ErrCorrupt, err)
		}
	}
	return nil
}

// Close implements pgx.Rows.
func (r *sqlRows) Close() {
	if err := r.rows.Close(); r.err == nil {
		r.err = err
	}
}

// Err implements pgx.Rows.
func (r *sqlRows) Err() error {
	if err := r.rows.Err(); err != nil {
		return driverError(err)
	}
	return r.err
}

// database/sql cannot provide the rest of pgx.Rows.

// CommandTag implements pgx.Rows.
func (r *sqlRows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// FieldDescriptions implements pgx.Rows.
func (r *sqlRows) FieldDescriptions() []pgconn.FieldDescription { return nil }

// Values implements pgx.Rows.
func (r *sqlRows) Values() ([]any, error) { return nil, errors.ErrUnsupported }

// RawValues implements pgx.Rows.
func (r *sqlRows) RawValues() [][]byte { return nil }

// Conn implements pgx.Rows.
func (r *sqlRows) Conn() *pgx.Conn { return nil }

// TypeMap implements pgx.Rows.
func (r *sqlRows) TypeMap() *pgtype.Map { return r.types }

// textual turns arguments into PostgreSQL literals. Every parameter in our
// statements has a cast for them, so they pass through every driver and every pgx
// mode. A leading pgx mode is removed.
func textual(m *pgtype.Map, args []any) ([]any, error) {
	if len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); ok {
			args = args[1:]
		}
	}
	texts := make([]any, len(args))
	for i, arg := range args {
		if s, ok := arg.(string); ok {
			texts[i] = s
			continue
		}
		text, err := m.Encode(typeOf(arg), pgtype.TextFormatCode, arg, nil)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w: %w", i+1, semel.ErrInvalidRequest, err)
		}
		if text != nil {
			texts[i] = string(text)
		}
	}
	return texts, nil
}

// typeOf returns the PostgreSQL type of a Go type that our arguments or rows use,
// or 0 if none exists.
func typeOf(v any) uint32 {
	switch v.(type) {
	case pgtype.FlatArray[[16]byte]:
		return pgtype.UUIDArrayOID
	case pgtype.FlatArray[pgtype.Int8], pgtype.FlatArray[int64]:
		return pgtype.Int8ArrayOID
	case pgtype.FlatArray[pgtype.Int4]:
		return pgtype.Int4ArrayOID
	case pgtype.FlatArray[[]byte]:
		return pgtype.ByteaArrayOID
	case pgtype.FlatArray[pgtype.Timestamptz]:
		return pgtype.TimestamptzArrayOID
	case pgtype.FlatArray[bool]:
		return pgtype.BoolArrayOID
	case *[16]byte, [16]byte:
		return pgtype.UUIDOID
	case *pgtype.Timestamptz, pgtype.Timestamptz, *time.Time:
		return pgtype.TimestamptzOID
	case pgtype.Interval:
		return pgtype.IntervalOID
	case *pgtype.Int8, pgtype.Int8:
		return pgtype.Int8OID
	case *pgtype.Int4, pgtype.Int4:
		return pgtype.Int4OID
	case *bool, bool:
		return pgtype.BoolOID
	case *string:
		return pgtype.TextOID
	case *[]byte, []byte:
		return pgtype.ByteaOID
	}
	return 0
}

// mainPart finds the part of a statement after its WITH. Only there does a line
// start with a verb.
var mainPart = regexp.MustCompile(`(?m)^(INSERT|UPDATE|DELETE|SELECT) `)

// nested makes a statement part of another one, which reads the returned rows
// under a name. PostgreSQL requires statements that change rows at the top level,
// so the parts of WITH are not nested with it.
func nested(statement, name, reader string) string {
	main := mainPart.FindStringIndex(statement)[0]
	with := "WITH "
	if main > 0 {
		with = statement[:main] + ", "
	}
	return with + name + " AS (" + statement[main:] + ") " + reader
}
