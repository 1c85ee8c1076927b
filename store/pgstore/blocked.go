package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel/internal/pglock"
)

// Answers asks a server for a sign of life, on a connection of its own. It returns an error
// if the server does not answer before ctx ends.
func Answers(ctx context.Context, server *pgx.ConnConfig) error {
	conn, err := pgx.ConnectConfig(ctx, server)
	if err != nil {
		if _, answered := errors.AsType[*pgconn.PgError](err); answered {
			return nil // a refusal is an answer
		}
		return err
	}
	err = conn.Ping(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(closing) // nothing depends on it
	return err
}

// Answers calls the function Answers for the store's server.
func (s *Store) Answers(ctx context.Context) error { return Answers(ctx, s.pool.Config().ConnConfig) }

// WaitsFor returns which session holds a lock that the store waits for, or "". A
// pipeline asks it what it waits for; see pipeline.Waiter.
func (s *Store) WaitsFor(ctx context.Context) (what string, ends bool) {
	lock, _ := pglock.Holder(ctx, s.pool.Config().ConnConfig) // a server that does not answer is reported by the calls that wait
	return lock, false
}
