package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

var errReadOnly = errors.New("the server takes no writes: it is a standby, or read-only for this role")

// Ready returns nil if the database answers and takes writes, or else why not.
// It blocks for a free connection and one statement, at most until ctx ends, and
// may be called at any time; if all connections are at work until then, it is nil.
// Errors wrap ErrStoreUnavailable, ErrInvalidRequest where the database refuses the
// role, ErrClosed, or what ended ctx.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.enter("ready", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	var readOnly bool
	err := s.pool.QueryRow(ctx, "SELECT current_setting('transaction_read_only')::bool", pgx.QueryExecModeExec).Scan(&readOnly)
	if err != nil && ctx.Err() != nil && s.pool.Stat().AcquiredConns() >= s.pool.Config().MaxConns {
		return nil // all connections are at work
	}
	if err == nil && readOnly {
		err = fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, errReadOnly)
	}
	if err != nil {
		return fmt.Errorf("pgstore: ready: %w", rolledBack(err)) // nothing was to be changed
	}
	return nil
}
