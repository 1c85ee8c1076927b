package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
)

// ErrSchema: the tables are not there, or not as this version needs them. It
// is permanent until the tables are migrated.
var ErrSchema = fmt.Errorf("schema is not migrated: %w", semel.ErrInvalidRequest)

// What PostgreSQL says, as far as something follows from it.
const (
	serializationFailure = "40001"
	completionUnknown    = "40003"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	duplicatePrepared    = "42P05"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
)

// failure gives an error of pgx the class it has: what may have happened, and
// what may follow. It goes by SQLSTATE and by the types of errors, never by
// their text.
func failure(err error) error {
	var refused *pgconn.ConnectError
	var server *pgconn.PgError
	switch {
	case err == nil || classified(err):
		return err
	case errors.As(err, &refused):
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	case errors.As(err, &server):
		return fmt.Errorf("%w: %w", answered(server), err)
	case pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed):
		// Nothing was sent. A closed connection says so too, but may have been found
		// closed while it was read from: then the outcome is not known. A caller who
		// gave up gets the error of the context, not that the server is unavailable.
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	return fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
}

// classified reports whether an error has its class already.
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

// answered says what follows from an error that the server sent.
func answered(e *pgconn.PgError) error {
	switch e.Code {
	case undefinedTable, undefinedColumn:
		return ErrSchema
	case adminShutdown, crashShutdown, completionUnknown:
		// The server may have committed and been told to end before it said
		// so, for instance while it waited for a standby. The last is what
		// others that speak its protocol say.
		return semel.ErrOutcomeUnknown
	case duplicatePrepared:
		// Another client of a pooler has prepared it on this connection: the
		// next one may not have it.
		return semel.ErrStoreUnavailable
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "08", "XX", "58":
		// The connection, a pooler's among them, the server's inside, or the
		// system below: what was done by then is not known.
		return semel.ErrOutcomeUnknown
	case "53":
		// No disk, no memory, no connection left: rolled back. All but the
		// last say that there is no room.
		if e.Code == "53300" {
			return semel.ErrStoreUnavailable
		}
		return semel.ErrStoreFull
	case "0A", "22", "23", "28", "3D", "3F", "42", "54":
		// The statement, the data or the permission: nothing was changed, and a retry
		// changes nothing either.
		return semel.ErrInvalidRequest
	}
	// All else is refused and rolled back: a deadlock, a lock that was not
	// free in time, a cancelled statement, a server that starts, stops
	// accepting, or is a standby.
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

// repeatable reports whether the same statement may simply be sent again:
// the server rolled it back because of another transaction.
func repeatable(err error) bool {
	code := stateOf(err)
	return code == serializationFailure || code == deadlockDetected
}
