package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// DeadLetters is a dead-letter store in a table of the store's database. The
// migrations of pgstore create the table. It is safe for concurrent use, and
// several processes may use it.
type DeadLetters struct {
	pool          *pgxpool.Pool
	parked, audit string
	large         chan struct{} // has room while no large message is being parked
}

// largeBytes is the size of bodies from which one call of Park waits for the other: encoded,
// they are in memory several times.
const largeBytes = 1 << 20

var _ pipeline.DeadLetterStore = (*DeadLetters)(nil)

// OpenDeadLetters connects to a database and returns the dead-letter store in
// the tables with these names. It blocks until the server has answered.
func OpenDeadLetters(ctx context.Context, dsn string, names pgstore.Names) (*DeadLetters, error) {
	l := &DeadLetters{large: make(chan struct{}, 1)}
	var err error
	if l.parked, err = names.Table("parked"); err != nil {
		return nil, err
	}
	if l.audit, err = names.Table("audit"); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres: the address is not one of PostgreSQL: %w", semel.ErrInvalidRequest) // its text may be the password
	}
	config.MaxConns = 4
	limitConnect(config)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // there may be a pooler
	if l.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	switch err := names.Check(ctx, l.pool, "parked", "audit"); {
	case errors.Is(err, pgstore.ErrSchema):
		l.pool.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	case err != nil:
		l.pool.Close()
		return nil, fmt.Errorf("postgres: open the dead-letter store: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return l, nil
}

// lackingSQL returns the role, and the privileges that it lacks.
const lackingSQL = `SELECT current_user, array(SELECT privilege FROM unnest($2::text[]) AS privilege WHERE NOT has_table_privilege($1, privilege))`

// Examine checks the rights of the role. It changes nothing.
func (l *DeadLetters) Examine(ctx context.Context) (findings []doctor.Finding, err error) {
	for _, of := range []struct {
		table, subject, cost string
		privileges           []string
	}{
		{l.parked, "parked.store", "a message that fails permanently blocks the pipeline", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		{l.audit, "parked.audit", "a parked message cannot be redriven or skipped", []string{"SELECT", "INSERT"}},
	} {
		var role string
		var lacks []string
		if err := l.pool.QueryRow(ctx, lackingSQL, of.table, of.privileges).Scan(&role, &lacks); err != nil {
			return findings, fmt.Errorf("postgres: examine %s: %w", of.table, err)
		}
		f := doctor.Finding{Subject: of.subject, Found: "role " + role + " has the rights that it needs on " + of.table}
		if len(lacks) > 0 {
			missing := strings.Join(lacks, ", ")
			f = doctor.Finding{
				Severity: doctor.Broken, Subject: of.subject, Found: "role " + role + " lacks " + missing + " on " + of.table, Cost: of.cost,
				Remedy: "GRANT " + missing + " ON " + of.table + " TO " + pgx.Identifier{role}.Sanitize(),
			}
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// Close implements pipeline.DeadLetterStore.
func (l *DeadLetters) Close() error {
	l.pool.Close()
	return nil
}

// Park implements pipeline.Parker.
func (l *DeadLetters) Park(ctx context.Context, list []pipeline.Parked) error {
	bytes := 0
	for i := range list {
		bytes += len(list[i].Message.Body)
	}
	if bytes > largeBytes {
		select {
		case l.large <- struct{}{}:
			defer func() { <-l.large }()
		case <-ctx.Done():
			return fmt.Errorf("park: %w", context.Cause(ctx))
		}
	}
	var b pgx.Batch
	for i := range list {
		p := list[i]
		p.Queued = false
		document, err := json.Marshal(&p)
		if err != nil {
			return fmt.Errorf("park %s: %w", p.ID, err)
		}
		b.Queue("INSERT INTO "+l.parked+" (id, pipeline, at, document) VALUES ($1, $2, $3, $4::text::json)"+
			" ON CONFLICT (id) DO UPDATE SET at = EXCLUDED.at, queued = NULL, document = EXCLUDED.document",
			p.ID, p.Pipeline, p.At, string(document))
	}
	if err := l.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("park: %w", err)
	}
	return nil
}

// rows reads messages.
func rows(list pgx.Rows, err error) ([]*pipeline.Parked, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(list, func(row pgx.CollectableRow) (*pipeline.Parked, error) {
		var document string
		var queued *time.Time
		if err := row.Scan(&document, &queued); err != nil {
			return nil, err
		}
		p := &pipeline.Parked{}
		if err := json.Unmarshal([]byte(document), p); err != nil {
			return nil, err
		}
		p.Queued = queued != nil
		return p, nil
	})
}

// Parked implements pipeline.DeadLetterStore. It reads a thousand messages at a
// time.
func (l *DeadLetters) List(ctx context.Context, of string, fn func(*pipeline.Parked) bool) error {
	var at time.Time
	id := ""
	for {
		list, err := rows(l.pool.Query(ctx, "SELECT document::text, queued FROM "+l.parked+
			" WHERE ($1::text = '' OR pipeline = $1) AND (at, id) > ($2, $3) ORDER BY at, id LIMIT 1000", of, at, id))
		if err != nil {
			return fmt.Errorf("list what is parked: %w", err)
		}
		for _, p := range list {
			if !fn(p) {
				return nil
			}
		}
		if len(list) < 1000 {
			return nil
		}
		last := list[len(list)-1]
		if err := l.pool.QueryRow(ctx, "SELECT at, id FROM "+l.parked+" WHERE id = $1", last.ID).Scan(&at, &id); err != nil {
			if errors.Is(err, pgx.ErrNoRows) { // it was removed since; its own time is close enough
				at, id = last.At.Truncate(time.Microsecond), last.ID
				continue
			}
			return fmt.Errorf("list what is parked: %w", err)
		}
	}
}

// Count implements pipeline.DeadLetterStore.
func (l *DeadLetters) Count(ctx context.Context, of string) (n int64, err error) {
	err = l.pool.QueryRow(ctx, "SELECT count(*) FROM "+l.parked+" WHERE ($1::text = '' OR pipeline = $1)", of).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what is parked: %w", err)
	}
	return n, nil
}

// Get implements pipeline.DeadLetterStore.
func (l *DeadLetters) Get(ctx context.Context, id string) (*pipeline.Parked, error) {
	list, err := rows(l.pool.Query(ctx, "SELECT document::text, queued FROM "+l.parked+" WHERE id = $1", id))
	if err != nil {
		return nil, fmt.Errorf("parked %s: %w", id, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w", id, pipeline.ErrNotParked)
	}
	return list[0], nil
}

// Queue implements pipeline.DeadLetterStore.
func (l *DeadLetters) Queue(ctx context.Context, ids []string) error {
	for _, id := range ids {
		tag, err := l.pool.Exec(ctx, "UPDATE "+l.parked+" SET queued = coalesce(queued, clock_timestamp()) WHERE id = $1", id)
		if err != nil {
			return fmt.Errorf("queue %s: %w", id, err)
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("%s: %w", id, pipeline.ErrNotParked)
		}
	}
	return nil
}

// Queued implements pipeline.DeadLetterStore.
func (l *DeadLetters) Queued(ctx context.Context, of string, most int) ([]*pipeline.Parked, error) {
	list, err := rows(l.pool.Query(ctx, "SELECT document::text, queued FROM "+l.parked+
		" WHERE pipeline = $1 AND queued IS NOT NULL ORDER BY queued, id LIMIT $2", of, most))
	if err != nil {
		return nil, fmt.Errorf("read the queued messages: %w", err)
	}
	return list, nil
}

// Settle implements pipeline.DeadLetterStore. The row and its entry in the audit
// log are one transaction.
func (l *DeadLetters) Settle(ctx context.Context, p *pipeline.Parked, how pipeline.Settlement) error {
	line, err := how.Line(p)
	if err != nil {
		return err
	}
	gone := false
	err = pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "DELETE FROM "+l.parked+" WHERE id = $1", p.ID)
		if err != nil {
			return err
		}
		if gone = tag.RowsAffected() == 0; gone && !how.Delivered {
			return nil
		}
		_, err = tx.Exec(ctx, "INSERT INTO "+l.audit+" (line) VALUES ($1::text::json)", string(line))
		return err
	})
	if err != nil {
		return fmt.Errorf("take %s out: %w", p.ID, err)
	}
	if gone {
		return fmt.Errorf("%s: %w", p.ID, pipeline.ErrNotParked)
	}
	return nil
}

// Audit implements pipeline.DeadLetters.
func (l *DeadLetters) Audit(ctx context.Context, line []byte) error {
	if _, err := l.pool.Exec(ctx, "INSERT INTO "+l.audit+" (line) VALUES ($1::text::json)", string(line)); err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	return nil
}

// AuditEnd implements pipeline.DeadLetterStore.
func (l *DeadLetters) AuditEnd(ctx context.Context) (end int64, err error) {
	if err := l.pool.QueryRow(ctx, "SELECT coalesce(max(number), 0) FROM "+l.audit).Scan(&end); err != nil {
		return 0, fmt.Errorf("read the audit log: %w", err)
	}
	return end, nil
}

// Settled implements pipeline.DeadLetterStore. Lines are read as text, because
// the server cannot parse a line whose key contains a NUL.
func (l *DeadLetters) Settled(ctx context.Context, after int64, fn func(pipeline.Settlement) bool) error {
	list, err := l.pool.Query(ctx, "SELECT line::text FROM "+l.audit+" WHERE number > $1 ORDER BY number", after)
	if err != nil {
		return fmt.Errorf("read the audit log: %w", err)
	}
	defer list.Close()
	for list.Next() {
		if s := (pipeline.Settlement{}); s.ReadLine(list.RawValues()[0]) && !fn(s) {
			return nil
		}
	}
	if err := list.Err(); err != nil {
		return fmt.Errorf("read the audit log: %w", err)
	}
	return nil
}
