package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

const (
	// logEvery is how often a relay looks after the partitions of the log, and
	// logAgain how soon after it could not.
	logEvery, logAgain = 10 * time.Minute, 10 * time.Second
	// logFor limits one look.
	logFor = 30 * time.Second
)

// archive keeps delivered rows in the log, and looks after its partitions.
type archive struct {
	pool *pgxpool.Pool
	sql  *statements
	keep time.Duration

	mu      sync.Mutex // guards trouble
	trouble error      // of the last look after the partitions
}

// openArchive makes the partitions. It returns nil if no rows are kept.
func openArchive(ctx context.Context, pool *pgxpool.Pool, sql *statements, keep time.Duration) (*archive, error) {
	if keep == 0 {
		return nil, nil
	}
	a := &archive{pool: pool, sql: sql, keep: keep}
	err := a.maintain(ctx)
	switch {
	case errors.Is(err, pgstore.ErrSchema):
		return nil, fmt.Errorf("outbox: %w", err)
	case err != nil:
		return nil, fmt.Errorf("outbox: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return a, nil
}

// tend looks after the partitions until ctx ends.
func (a *archive) tend(ctx context.Context) {
	for pause := logEvery; retry.Sleep(ctx, retry.UpTo(pause, 0.1)) == nil; {
		err := a.maintain(ctx)
		if ctx.Err() == nil {
			a.mu.Lock()
			a.trouble = err
			a.mu.Unlock()
		}
		if pause = logEvery; err != nil {
			pause = logAgain
		}
	}
}

// ready returns why partitions could not be made, if they could not.
func (a *archive) ready() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trouble
}

// maintain makes the partitions for the days ahead, and drops those that are too old. A
// partition that cannot be dropped now is left for later; Examine reports it.
func (a *archive) maintain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, logFor)
	defer cancel()
	_, err := a.pool.Exec(ctx, a.sql.maintain, a.keep.Microseconds())
	return logFailure(a.sql, err)
}

// move calls a function that moves rows to the log. If there is no partition for now, as
// after the process was stopped for days, it makes one and calls the function again.
func (a *archive) move(ctx context.Context, rows func() error) error {
	err := rows()
	if isState(err, "23514") { // no partition
		if err = a.maintain(ctx); err == nil {
			err = rows()
		}
	}
	return err
}

// outcomes returns how many attempts each message took, and why it was parked or dropped,
// if it was.
func outcomes(items []*pipeline.Item) (attempts []int32, failures []string) {
	attempts, failures = make([]int32, len(items)), make([]string, len(items))
	for i, it := range items {
		attempts[i], failures[i] = int32(it.Attempt), string(it.Parked)
		if it.Parked == "" && it.Err != nil {
			failures[i] = "dropped"
		}
	}
	return attempts, failures
}

// logFailure describes an error about the log.
func logFailure(sql *statements, err error) error {
	if err == nil {
		return nil
	}
	if isState(err, "42P01", "42883") { // no such table, no such function
		return fmt.Errorf("there is no table %s: run semel migrate up: %w", sql.log, pgstore.ErrSchema)
	}
	return fmt.Errorf("%s: %w", sql.log, err)
}

// isState reports whether the server refused a statement with one of these codes.
func isState(err error, codes ...string) bool {
	of, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	for _, code := range codes {
		if ok && of.SQLState() == code {
			return true
		}
	}
	return false
}

// Kept is a message of the log.
type Kept struct {
	semel.Message
	// Delivered is when its row was moved to the log, and Relay which process did so.
	Delivered time.Time
	Relay     string
	Attempts  int
	// Failure is why it was parked or dropped, or "".
	Failure string
}

// findKeptSQL finds ids by their index, and headers in the partitions since a time.
const findKeptSQL = `SELECT 0::smallint AS shard, o.seq, o.id, o.aggregate, o.topic, o.payload, o.headers::text, o.created, o.delivered, o.relay, o.attempts, coalesce(o.failure, '')
FROM (
	SELECT * FROM {log} WHERE id = ANY ($1::uuid[])
	UNION ALL
	SELECT * FROM {log} WHERE delivered >= $3 AND headers->>'semel-key' = ANY ($2::text[]) AND id <> ALL ($1::uuid[])
) AS o ORDER BY o.delivered, o.seq LIMIT $4`

// FindKept returns kept messages of an outbox that have one of the ids. It also returns those
// delivered since a time whose header semel-key has one of the keys; for that, it reads all
// messages since then. It returns at most 100 messages, in the order of their delivery. Errors are those of [Open].
func FindKept(ctx context.Context, dsn string, names pgstore.Names, ids []string, since time.Time) (list []Kept, err error) {
	conn, sql, err := once(ctx, dsn, names)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	rows, err := conn.Query(ctx, sql.findKept, uuidsOf(ids), ids, since, mostFound)
	if err != nil {
		return nil, logFailure(sql, err)
	}
	list, err = pgx.CollectRows(rows, func(from pgx.CollectableRow) (Kept, error) {
		var k Kept
		r, err := scan(from, &k.Delivered, &k.Relay, &k.Attempts, &k.Failure)
		if err == nil {
			k.Message = r.item.Message
		}
		return k, err
	})
	return list, logFailure(sql, err)
}
