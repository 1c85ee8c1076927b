package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// verdict says what an error of the database means for a message. It was rolled
// back, unless committing says that the commit was under way: a server that ends
// a session in the middle of it may have committed before.
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
		if code == "23503" { // the row that it refers to may come yet
			return err
		}
		return semel.Permanent(err)
	case "08", "26", "28", "3D", "3F", "42", "53", "57", "58", "25", "XX":
		// Connections, statements that a pooler has lost, access, names,
		// resources, an operator, the system: no message's fault.
		if code != "57014" { // a statement that was cancelled for its length
			return pipeline.Unavailable(err, 0)
		}
	}
	return err
}
