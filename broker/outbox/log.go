package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
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

// keepLog looks after the partitions of the log until ctx ends.
func (s *Source) keepLog(ctx context.Context) {
	for pause := logEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause - rand.N(pause/10)):
		}
		err := s.maintainLog(ctx)
		if ctx.Err() == nil {
			s.note(&s.logTrouble, err)
		}
		if pause = logEvery; err != nil {
			pause = logAgain
		}
	}
}

// maintainLog makes the partitions of the log for the days ahead, and drops those that are
// too old. A partition that cannot be dropped now is left for later; Examine reports it.
func (s *Source) maintainLog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, logFor)
	defer cancel()
	_, err := s.pool.Exec(ctx, s.sql.maintain, s.opts.Keep.Microseconds())
	return logFailure(s.sql, err)
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

// remove deletes rows, or moves them to the log. If the log has no partition for now, as
// after the process was stopped for days, it makes one first.
func (s *Source) remove(ctx context.Context, items []*pipeline.Item, seqs []int64, numbers []int16, epochs []int64) error {
	if s.opts.Keep == 0 {
		_, err := s.pool.Exec(ctx, s.sql.remove, s.owner, seqs, numbers, epochs)
		return err
	}
	attempts, failures := make([]int32, len(items)), make([]string, len(items))
	for i, it := range items {
		attempts[i], failures[i] = int32(it.Attempt), string(it.Parked)
		if it.Parked == "" && it.Err != nil {
			failures[i] = "dropped"
		}
	}
	move := func() error {
		_, err := s.pool.Exec(ctx, s.sql.keep, s.owner, seqs, numbers, epochs, attempts, failures)
		return err
	}
	err := move()
	if isState(err, "23514") { // no partition
		if err = s.maintainLog(ctx); err == nil {
			err = move()
		}
	}
	return err
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

// FindKept returns the messages in the log of an outbox under one of some ids. It also finds
// those for one of these keys by their header semel-key that were delivered since a time,
// for which it reads all messages since then. It returns at most 100, in the order of their
// delivery. Errors are those of [Open].
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
