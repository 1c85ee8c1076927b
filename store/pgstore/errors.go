package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
)

// ErrSchema: the tables are missing, or their schema does not suit this version.
// It is permanent until the tables are migrated.
var ErrSchema = fmt.Errorf("schema is not migrated: %w", semel.ErrInvalidRequest)

// SQLSTATE codes with special handling.
const (
	serializationFailure = "40001"
	completionUnknown    = "40003"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	queryCanceled        = "57014"
	duplicatePrepared    = "42P05"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
)

// failure adds the class to a pgx error: what may have happened, and how to
// react. It uses SQLSTATE and error types, never the error text.
func failure(err error) error {
	var refused *pgconn.ConnectError
	var server *pgconn.PgError
	switch {
	case err == nil || classified(err):
		return err
	case errors.As(err, &refused):
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, connectError{err})
	case errors.As(err, &server):
		return fmt.Errorf("%w: %w", answered(server), err)
	case unsent(err):
		// Nothing was sent. pgx reports this for a closed connection too, even if it
		// was found closed while reading. Then the outcome is unknown. A caller that
		// gave up gets the context error, not that the server is unavailable.
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	return fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
}

// connectError is an error of pgx with each of its lines once. pgx tries an address with
// TLS and without, and has a line for each attempt.
type connectError struct{ error }

// Error implements error.
func (e connectError) Error() string {
	const indent = "\n\t"
	var lines []string
	for line := range strings.SplitSeq(e.error.Error(), indent) {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 2 { // the connection, and one reason
		return strings.Join(lines, " ")
	}
	return strings.Join(lines, indent)
}

// Unwrap returns the error of pgx.
func (e connectError) Unwrap() error { return e.error }

// misnamed reports whether a statement names a table or a column that is missing.
// Nothing was changed.
func misnamed(err error) bool {
	code := stateOf(err)
	return code == undefinedTable || code == undefinedColumn
}

// ofEffect gives the error of a caller's statement its class if failure would blame
// the store: the table that the statement lacks is not one of the store.
func ofEffect(err error) error {
	if misnamed(err) && !classified(err) {
		return fmt.Errorf("%w: %w", semel.ErrInvalidRequest, err)
	}
	return err
}

// classified reports whether an error already has a class.
func classified(err error) bool {
	for _, known := range []error{
		semel.ErrOutcomeUnknown, semel.ErrStoreUnavailable, semel.ErrInvalidRequest, semel.ErrStoreFull, semel.ErrClosed, semel.ErrCorrupt,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// answered returns the class of an error that the server sent.
func answered(e *pgconn.PgError) error {
	switch e.Code {
	case undefinedTable, undefinedColumn:
		return ErrSchema
	case adminShutdown, crashShutdown, completionUnknown:
		// The server may have committed and then been stopped before it could report
		// that, for instance while it waited for a standby. The last code comes from
		// other servers that speak the PostgreSQL protocol.
		return semel.ErrOutcomeUnknown
	case duplicatePrepared:
		// Another client of a pooler has prepared this statement on this connection.
		// The next connection may not have it.
		return semel.ErrStoreUnavailable
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "08", "XX", "58":
		// A failure of the connection, the pooler, the server or the system below. It
		// is not known what was done before it.
		return semel.ErrOutcomeUnknown
	case "53":
		// The server is out of disk space, memory or connections, and rolled back.
		// All codes but the last mean that there is no space.
		if e.Code == "53300" {
			return semel.ErrStoreUnavailable
		}
		return semel.ErrStoreFull
	case "0A", "22", "23", "28", "3D", "3F", "42", "54":
		// The statement, the data or the privileges are wrong. Nothing was changed,
		// and a retry does not help.
		return semel.ErrInvalidRequest
	}
	// Everything else is refused and rolled back: a deadlock, a lock timeout, a
	// cancelled statement, or a server that is starting, shutting down or a
	// standby.
	return semel.ErrStoreUnavailable
}

// stateOf returns the SQLSTATE of an error, or "".
func stateOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// StatementError is an error of a statement that an effect queued: the server refused
// the statement itself. It is not an error of the store.
type StatementError struct{ Err error }

// Error implements error.
func (e *StatementError) Error() string { return "pgstore: statement: " + e.Err.Error() }

// Unwrap returns the error of the server, with its class.
func (e *StatementError) Unwrap() error { return e.Err }

// refusesText reports whether an SQLSTATE is about the text of a statement: its syntax, a
// name in it, or a privilege that it needs. The server refuses the same text always.
func refusesText(code string) bool {
	return strings.HasPrefix(code, "42") || strings.HasPrefix(code, "3F")
}

// busy reports whether an error says that the server could not execute a statement now:
// it waited too long, or the server is full, stopping or read-only. If that happens to
// two items of a batch, it happens to all of them.
func busy(err error) bool {
	code := stateOf(err)
	return waited(err) || code != "" && slices.Contains([]string{"25", "26", "28", "3D", "53", "57"}, code[:2])
}

// repeatable reports whether the same statement may simply be sent again, because
// the server rolled it back on account of another transaction.
func repeatable(err error) bool {
	code := stateOf(err)
	return code == serializationFailure || code == deadlockDetected
}

// waited reports whether a statement waited too long, for a lock or for the server.
// Each call of a batch would wait as long.
func waited(err error) bool {
	code := stateOf(err)
	return code == lockNotAvailable || code == queryCanceled
}
