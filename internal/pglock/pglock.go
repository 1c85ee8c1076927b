// Package pglock tells which session of a PostgreSQL server holds a lock that this program
// waits for.
package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// blockers finds the session for whose lock the statements of this program wait. It
// prefers a session that does not wait itself.
const blockers = `SELECT b.pid, coalesce(b.usename::text, ''), coalesce(b.application_name, ''), coalesce(b.state, ''),
	coalesce(b.xact_start, b.backend_start)
FROM pg_stat_activity w
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS of (pid)
JOIN pg_stat_activity b ON b.pid = of.pid
WHERE w.wait_event_type = 'Lock' AND w.datname = current_database() AND w.usename = current_user
	AND w.application_name = current_setting('application_name') AND w.client_addr IS NOT DISTINCT FROM inet_client_addr()
ORDER BY b.wait_event_type IS NOT DISTINCT FROM 'Lock', b.xact_start
LIMIT 1`

// Holder describes the session of the server that holds a lock for which a statement
// of this program waits, with the statement that ends the session. It returns "" if
// there is no such session. It opens a connection of its own, because those that wait cannot
// ask.
// It blocks for at most a second, and may be called at any time.
func Holder(ctx context.Context, server *pgx.ConnConfig) (_ string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, server)
	if err != nil {
		return "", fmt.Errorf("who holds a lock: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	var pid int64
	var since *time.Time // NULL for a session of another user
	var user, application, state string
	err = conn.QueryRow(ctx, blockers, pgx.QueryExecModeExec).Scan(&pid, &user, &application, &state, &since)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("who holds a lock: %w", err)
	}
	var about []string
	for _, word := range []string{application, "user " + user, state} {
		if word != "" && word != "user " {
			about = append(about, word)
		}
	}
	if since != nil { // no duration: a log compares the text with its last one
		about = append(about, "open since "+since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("a lock that PostgreSQL session %d holds (%s): wait, or end it with SELECT pg_terminate_backend(%[1]d)", pid, strings.Join(about, ", ")), nil
}
