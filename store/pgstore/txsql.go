package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// sqlQuerier sends statements on a transaction of database/sql. Drivers agree
// on nothing but text: arguments go as literals, and each row comes back as one
// literal of its whole.
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

// foreignError is the error of a driver that is not pgx, with what we read of
// it.
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

// sqlRows are rows of one column each, the literal of a composite, as rows of
// pgx with the columns of that composite.
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

// The rest of pgx.Rows is what database/sql does not tell.

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
