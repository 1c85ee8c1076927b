package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
)

const (
	// answerWait is how long the server may take to answer a statement, in addition to
	// Options.LockWait. A server that was stopped, or whose packets are lost, keeps its
	// connections and never answers.
	answerWait = 8 * time.Second
	// scanFactor multiplies it for statements that may read a whole table.
	scanFactor = 15
)

// errSilent is the error of a statement that was not answered in time.
var errSilent = errors.New("the server did not answer")

// within calls f with a context that ends after patience. 0 is no limit. If this limit ended f,
// the error does not say that the caller gave up.
func within(ctx context.Context, patience time.Duration, f func(context.Context) error) error {
	if patience == 0 {
		return f(ctx)
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := f(limited)
	switch {
	case err == nil, limited.Err() == nil, ctx.Err() != nil, !errors.Is(err, context.DeadlineExceeded):
		return err
	case unsent(err):
		return fmt.Errorf("%w within %v: %w: %v", errSilent, patience, semel.ErrStoreUnavailable, err)
	}
	return fmt.Errorf("%w within %v: %v", errSilent, patience, err)
}

// unsent reports whether an error proves that nothing was sent.
func unsent(err error) bool {
	var refused *pgconn.ConnectError
	return errors.As(err, &refused) || pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

// pooled sends each statement to any connection of a pool. If it gets none, nothing was
// sent.
type pooled struct{ pool *pgxpool.Pool }

// acquire returns a connection. Its error says that nothing was sent, unless the caller
// gave up.
func (p pooled) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, unsentError{err}
	}
	return conn, nil
}

// Query implements querier.
func (p pooled) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	conn, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		conn.Release()
		return nil, err
	}
	return &pooledRows{rows, conn}, nil
}

// pooledRows gives the connection back.
type pooledRows struct {
	pgx.Rows
	conn *pgxpool.Conn
}

// Close implements pgx.Rows.
func (r *pooledRows) Close() {
	r.Rows.Close()
	if r.conn != nil {
		r.conn.Release()
		r.conn = nil
	}
}

// unsentError is the error of a statement for which there was no connection.
type unsentError struct{ error }

// SafeToRetry is what pgconn.SafeToRetry asks for.
func (unsentError) SafeToRetry() bool { return true }

// Unwrap returns the error of the pool.
func (e unsentError) Unwrap() error { return e.error }
