package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/outboxrow"
	"github.com/semel-dev/semel/internal/retry"
)

const (
	// listenPause is the pause after a connection that listens was lost. It doubles until
	// listenMost.
	listenPause, listenMost = time.Second, time.Minute
)

// errPooled means that a pooler is between the process and the server. A pooler lends the
// listening connection to other clients, and drops its notifications.
var errPooled = errors.New("a pooler is between")

// listen wakes the reader at each notification on the channel of the outbox, until ctx
// ends. It has a connection of its own. Polling continues, so its errors only cost time.
// It returns if a pooler is between.
func (s *Source) listen(ctx context.Context) {
	pause := listenPause
	for ctx.Err() == nil {
		began := time.Now()
		if errors.Is(s.hear(ctx), errPooled) {
			return
		}
		if time.Since(began) > listenMost {
			pause = listenPause
		}
		_ = retry.Sleep(ctx, pause)
		pause = min(2*pause, listenMost)
	}
}

// hear listens on one connection until it is lost, or ctx ends.
func (s *Source) hear(ctx context.Context) error {
	channel, err := outboxrow.Channel(s.opts.Names)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // its error changes nothing
	if pooled, err := isPooled(ctx, conn); err != nil {
		return err
	} else if pooled {
		return errPooled
	}
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	for {
		s.hurry() // also once it listens: a notification may have come before
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return err
		}
	}
}

// isPooled reports whether a pooler is between this process and the server. A pooler
// announces another process than the one that serves the connection.
func isPooled(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid != conn.PgConn().PID(), err
}
