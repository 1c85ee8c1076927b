package postgres

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// class is what a database error means for a message.
type class uint8

const (
	// retried: it may be the fault of the message, so it counts as an attempt.
	retried class = iota
	// refused: the message is at fault, and no retry helps.
	refused
	// held: another session was in the way, or the server was slow. The server rolled
	// back. It is not the fault of the message, unless others get through.
	held
	// away: the server cannot do it for any message now.
	away
)

// busyFor is the pause of a single message behind a lock while others get through.
const busyFor = time.Second

// classes has the SQLSTATEs that differ from the others of their first two characters.
var classes = map[string]class{
	"23503": retried, // foreign_key_violation: the referenced row may still come
	"40001": held,    // serialization_failure: another transaction was first
	"40P01": held,    // deadlock_detected: another transaction was in the way
	"55P03": held,    // lock_not_available: another session holds the table or the row
	"57014": held,    // query_canceled: statement_timeout, often behind a lock; or an operator
}

// families has the SQLSTATEs by their first two characters. The others are retried: an
// error that a trigger raises is P0001.
var families = map[string]class{
	"08": away,    // the connection
	"22": refused, // data
	"23": refused, // constraints
	"25": away,    // 25006: a standby or a read-only server
	"26": away,    // a statement that a pooler has lost
	"28": away,    // the role or its password
	"3D": away,    // the database is missing
	"3F": away,    // the schema is missing
	"42": away,    // a table, a column or a privilege is missing
	"53": away,    // 53100: the disk is full; 53300: no connection is free
	"57": away,    // 57P01 to 57P03: the server stops or starts
	"58": away,    // the system below the server
	"XX": away,    // the server itself
}

func classOf(code string) class {
	if c, ok := classes[code]; ok {
		return c
	}
	return families[code[:2]]
}

// LockError is an error of a statement that waited too long for a lock.
type LockError struct {
	// By describes the session that holds the lock, with the statement that ends the
	// session. It is empty if the session is not known.
	By  string
	Err error
}

// Error implements error.
func (e *LockError) Error() string {
	if e.By == "" {
		return e.Err.Error()
	}
	return "waited for " + e.By + ": " + e.Err.Error()
}

// Unwrap returns the error of the server.
func (e *LockError) Unwrap() error { return e.Err }

// verdict classifies a database error for a message. The transaction was rolled
// back, unless committing says that the commit was in progress: a server that
// ends a session during a commit may have committed.
func verdict(err error, committing bool) error {
	code, ok := stateOf(err)
	switch {
	case err == nil:
		return nil
	case ok:
		said := ofCode(fmt.Errorf("postgres: %w", err), code)
		if committing && classOf(code) == away {
			return inDoubt(err)
		}
		return said
	case committing: // the driver calls a connection that was cut during the commit safe to retry
		return inDoubt(err)
	}
	return pipeline.Unavailable(fmt.Errorf("postgres: %w", err), 0)
}

// inDoubt is the error of messages whose commit has no answer.
func inDoubt(err error) error {
	return pipeline.Unavailable(fmt.Errorf("postgres: %w: %w", semel.ErrOutcomeUnknown, err), 0)
}

// stateOf returns the SQLSTATE of an error of the server.
func stateOf(err error) (code string, ok bool) {
	var of *pgconn.PgError
	if !errors.As(err, &of) || len(of.Code) != 5 {
		return "", false
	}
	return of.Code, true
}

// isRefused reports whether the server refused a statement itself: a table or a
// column is missing, a privilege is, or the text is wrong. That is neither the
// fault of a message nor an outage of the server.
func isRefused(err error) bool {
	code, _ := stateOf(err)
	return strings.HasPrefix(code, "42") || strings.HasPrefix(code, "3F")
}

func isAway(err error) bool {
	var away *pipeline.UnavailableError
	return errors.As(err, &away)
}

// isHeld reports whether another session was in the way, or the server was slow.
func isHeld(err error) bool {
	code, ok := stateOf(err)
	return ok && classOf(code) == held
}

// inConflict reports whether the server rolled back because of another
// transaction.
func inConflict(err error) bool {
	code, _ := stateOf(err)
	return strings.HasPrefix(code, "40")
}

func ofCode(err error, code string) error {
	switch classOf(code) {
	case refused:
		return semel.Permanent(err)
	case held:
		return pipeline.Unavailable(err, busyFor)
	case away:
		return pipeline.Unavailable(err, 0)
	}
	return err
}
