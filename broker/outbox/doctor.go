package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// Examine checks an outbox: what waits in it, who reads it, and whether the server
// keeps its table small. It changes nothing. It blocks until the server has answered.
// Errors are those of [Open].
func Examine(ctx context.Context, dsn string, names pgstore.Names) (_ []semel.Finding, err error) {
	conn, sql, err := once(ctx, dsn, names)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	e := &examination{conn: conn, sql: sql}
	for _, look := range []func(context.Context) error{e.waiting, e.writers, e.table} {
		if err := look(ctx); err != nil {
			return e.findings, fmt.Errorf("outbox: examine: %w", err)
		}
	}
	return e.findings, nil
}

// once opens a connection and checks the tables.
func once(ctx context.Context, dsn string, names pgstore.Names) (*pgx.Conn, *statements, error) {
	sql, err := newStatements(names)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w", err)
	}
	pool, err := connect(ctx, dsn, sql)
	if err != nil {
		return nil, nil, err
	}
	config := pool.Config().ConnConfig
	pool.Close()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return conn, sql, nil
}

// examination is one run of Examine.
type examination struct {
	conn     *pgx.Conn
	sql      *statements
	findings []semel.Finding
}

// judge adds a finding. Its severity is Fine unless bad is set.
func (e *examination) judge(bad bool, subject, found, cost, remedy string) {
	f := semel.Finding{Subject: subject, Found: found}
	if bad {
		f.Severity, f.Cost, f.Remedy = semel.Warning, cost, remedy
	}
	e.findings = append(e.findings, f)
}

// patience is how long a row may wait before Examine warns.
const patience = time.Minute

// waiting looks for the oldest row, and for shards with rows and no owner.
func (e *examination) waiting(ctx context.Context) error {
	var relays, orphans int
	var oldest time.Duration
	if err := e.conn.QueryRow(ctx, e.sql.waiting, patience).Scan(&relays, &oldest, &orphans); err != nil {
		return err
	}
	found := "no row waits"
	if oldest > 0 {
		found = "the oldest row waits for " + oldest.Round(time.Second).String()
	}
	e.judge(oldest > patience, "outbox.oldest", found, "consumers do not know of it yet", "look at the log of the relay, and at semel parked ls")
	e.judge(orphans > 0, "outbox.shards", fmt.Sprintf("%d live relays, and %d shards with rows and without a relay", relays, orphans), "their rows are not delivered", "semel outbox relay FILE")
	return nil
}

// writers looks for long transactions that have written to the outbox.
func (e *examination) writers(ctx context.Context) error {
	var count int
	var oldest time.Duration
	var pid int32
	if err := e.conn.QueryRow(ctx, e.sql.longWriters, e.sql.table).Scan(&count, &oldest, &pid); err != nil {
		return err
	}
	found := fmt.Sprintf("%d transactions that write to it are open", count)
	if count > 0 {
		found += fmt.Sprintf(", the oldest for %s (pid %d)", oldest.Round(time.Second), pid)
	}
	e.judge(oldest > patience, "outbox.writers", found, "the relay reads the numbers of rows since then again and again, and the server cannot remove deleted rows", fmt.Sprintf("end it: SELECT pg_terminate_backend(%d)", pid))
	return nil
}

// table looks at what keeps the table small, and at the durability of commits.
func (e *examination) table(ctx context.Context) error {
	var vacuums bool
	var dead int64
	var commit string
	if err := e.conn.QueryRow(ctx, tableSQL, e.sql.table).Scan(&vacuums, &dead, &commit); err != nil {
		return err
	}
	found := fmt.Sprintf("autovacuum is on, %d deleted rows are in the table", dead)
	if !vacuums {
		found = "autovacuum is off"
	}
	e.judge(!vacuums || dead > 1_000_000, "outbox.autovacuum", found, "the relay becomes slow, because it reads past deleted rows", "ALTER TABLE "+e.sql.table+" RESET (autovacuum_enabled), and look for transactions that are open for long")
	e.judge(commit == "off", "synchronous_commit", commit, "a row that was delivered may vanish in a crash of the server", "synchronous_commit = on for the roles that write to the outbox")
	return nil
}

// sampleSize is the number of rows that Sample reads at a time.
const sampleSize = 500

// Sample hands the rows of an outbox to fn, in the order of their numbers, until fn
// returns false, there are no more, or ctx ends, which is not an error. It changes
// nothing. Errors are those of [Open].
func Sample(ctx context.Context, dsn string, names pgstore.Names, fn func(*semel.Message) bool) (err error) {
	conn, sql, err := once(ctx, dsn, names)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for after := int64(0); ; {
		rows, err := conn.Query(ctx, sql.sample, after, sampleSize)
		if err != nil {
			return ended(ctx, err)
		}
		list, err := (&answer{}).take(rows)
		if err != nil {
			return ended(ctx, err)
		}
		for _, r := range list {
			if !fn(&r.item.Message) {
				return nil
			}
			after = r.seq
		}
		if len(list) == 0 {
			return nil
		}
	}
}

// ended returns an error, unless ctx has ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("outbox: sample: %w", err)
}
