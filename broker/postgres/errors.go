package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// verdict classifies a database error for a message. The transaction was rolled
// back, unless committing says that the commit was in progress: a server that
// ends a session during a commit may have committed.
func verdict(err error, committing bool) error {
	var of *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &of) && len(of.Code) == 5:
		said := ofCode(fmt.Errorf("postgres: %w", err), of.Code)
		if committing && isAway(said) {
			return fmt.Errorf("postgres: %w: %w", semel.ErrOutcomeUnknown, err)
		}
		return said
	case committing && !pgconn.SafeToRetry(err):
		return fmt.Errorf("postgres: %w: %w", semel.ErrOutcomeUnknown, err)
	}
	return pipeline.Unavailable(fmt.Errorf("postgres: %w", err), 0)
}

// isRefused reports whether the server refused a statement itself: a table or a
// column is missing, a privilege is, or the text is wrong. That is neither the
// fault of a message nor an outage of the server.
func isRefused(err error) bool {
	var of *pgconn.PgError
	return errors.As(err, &of) && (strings.HasPrefix(of.Code, "42") || strings.HasPrefix(of.Code, "3F"))
}

func isAway(err error) bool {
	var away *pipeline.UnavailableError
	return errors.As(err, &away)
}

// inConflict reports whether the server rolled back because of another
// transaction.
func inConflict(err error) bool {
	var of *pgconn.PgError
	return errors.As(err, &of) && strings.HasPrefix(of.Code, "40")
}

func ofCode(err error, code string) error {
	switch code[:2] {
	case "22", "23": // data, integrity
		if code == "23503" { // the referenced row may still come
			return err
		}
		return semel.Permanent(err)
	case "08", "26", "28", "3D", "3F", "42", "53", "57", "58", "25", "XX":
		// Connections, statements that a pooler has lost, access, names,
		// resources, an operator, the system: not the fault of a message.
		if code != "57014" { // a statement that ran into its timeout
			return pipeline.Unavailable(err, 0)
		}
	}
	return err
}
