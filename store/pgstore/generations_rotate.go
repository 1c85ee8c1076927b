package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// truncateWait is the lock_timeout of a truncation. While it waits, claims
	// that have not heard yet that generations overlap wait behind it.
	truncateWait = 10 * time.Millisecond
	// truncateTries is how often one clean-up tries to truncate: for about a
	// second. After that the next one goes on, and new keys are inserted into
	// two tables until then.
	truncateTries = 20
	truncatePause = 50 * time.Millisecond
)

// carrySQL is liftSQL for what must not be forgotten yet in the pages from $2 to
// before $3 of the lower table: keys inside their windows, claims, and what is
// unknown. A claim that nobody came back to for $4 microseconds is given up.
const carrySQL = clock + `
INSERT INTO {keys} (` + columns + `)
SELECT ` + columns + `
FROM clock, {lower} AS t
WHERE t.ctid >= format('(%s,0)', $2::bigint)::tid AND t.ctid < format('(%s,0)', $3::bigint)::tid AND CASE
	WHEN t.owner IS NULL THEN t.until > clock.now
	WHEN t.owner = ` + markOwner + ` THEN false
	ELSE get_byte(t.owner, 0) = 1 OR t.until > clock.now - $4::bigint * interval '1 microsecond' END
ORDER BY key
ON CONFLICT (key) DO NOTHING
RETURNING true`

// dutySQL says what the rotator has to do: the phase, for how many seconds it
// has lasted, and of the table that is to be truncated how many pages it has,
// and about how many rows, as far as the server has counted them.
const dutySQL = clock + `
SELECT p.phase, extract(epoch FROM clock.now - p.since)::float8, pg_relation_size(c.oid) / current_setting('block_size')::bigint, greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)::bigint
FROM clock, {phase} AS p
JOIN pg_class AS c ON c.oid = to_regclass((ARRAY[{tables}])[1 + (p.phase / 2 + 2) % 3])`

// duty is what there is to do.
type duty struct {
	phase phase
	lasts time.Duration // since it began
	pages int64         // of the table that is to be truncated
	rows  int64         // in it, about
}

// stepSQL is the step to the next phase, unless somebody else made it.
const stepSQL = clock + `
UPDATE {phase} AS p SET phase = p.phase + 1, since = clock.now FROM clock WHERE p.phase = $2::bigint RETURNING true`

func (s session) duty(ctx context.Context) (duty, error) {
	found, err := collect(ctx, s, s.ring.duty, nil, func(row pgx.CollectableRow) (g duty, err error) {
		var seconds float64
		err = row.Scan(&g.phase, &seconds, &g.pages, &g.rows)
		g.lasts = time.Duration(seconds * float64(time.Second))
		return g, err
	})
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d rows say which generation it is: %w", len(found), ErrSchema)
	}
	if err != nil {
		return duty{}, err
	}
	s.ring.heard(found[0].phase)
	return found[0], nil
}

// rotate is the clean-up of a store in generations. If the generation has
// lasted long enough it begins the next one, and if generations overlap it ends
// that, as soon as no transaction works in the phase before. Each step is a
// transaction that says itself whether it is due: any number of rotators may
// work at once, and be killed at any moment.
func (s *Store) rotate(ctx context.Context, pace func(ctx context.Context, rows int64) error) (gone int64, err error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	g, err := s.onPool().duty(ctx)
	s.leave()
	if err == nil && !g.phase.overlap() && g.lasts >= s.opts.Generation {
		err = s.overlap(ctx, &g, pace)
	}
	if err == nil && g.phase.overlap() {
		gone, err = s.truncate(ctx, g)
	}
	if err != nil {
		return gone, fmt.Errorf("pgstore: rotate: %w", err)
	}
	return gone, nil
}

// overlap carries up what must stay of the lower table and begins to overlap
// generations. The lower table is frozen: what was not found in it to carry up
// does not come later.
func (s *Store) overlap(ctx context.Context, g *duty, pace func(ctx context.Context, rows int64) error) error {
	for page := int64(0); page < g.pages; page += purgePages {
		n, err := s.rotating(ctx, s.ring.texts[g.phase%ringPhases].carry, page, page+purgePages, microseconds(abandoned))
		if err == nil {
			err = pace(ctx, n)
		}
		if err != nil {
			return err
		}
	}
	stepped, err := s.rotating(ctx, s.ring.step, int64(g.phase))
	if err == nil && stepped > 0 {
		g.phase++
		s.ring.heard(g.phase)
	}
	return err
}

// rotating sends one statement and returns how many rows it returned.
func (s *Store) rotating(ctx context.Context, sql string, args ...any) (int64, error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	done, err := collect(ctx, s.onPool(), sql, args, pgx.RowTo[bool])
	return int64(len(done)), err
}

// truncate ends the overlap of generations, unless a transaction that works in
// the phase before does not end in time. That is no error: it costs no more
// than the second insert of each new key.
func (s *Store) truncate(ctx context.Context, g duty) (gone int64, err error) {
	for range truncateTries {
		gone, err = s.tryTruncate(ctx, g)
		if stateOf(err) != lockNotAvailable && !repeatable(err) {
			return gone, failure(err)
		}
		if err := sleep(ctx, truncatePause); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (s *Store) tryTruncate(ctx context.Context, g duty) (gone int64, err error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	err = pgx.BeginTxFunc(ctx, s.pool, readCommitted, func(tx pgx.Tx) error {
		on := session{Store: s, q: tx, lockWait: lockTimeout(truncateWait)}
		// The step comes first: of two rotators the other waits here, and then
		// finds that it was made.
		stepped, err := s.query(ctx, tx, s.ring.step, on.lockWait, int64(g.phase))
		if err != nil {
			return err
		}
		done, err := pgx.CollectRows(stepped, pgx.RowTo[bool])
		if err != nil || len(done) == 0 {
			return err
		}
		gone = g.rows
		_, err = tx.Exec(ctx, "TRUNCATE "+s.opts.quoted(ringTable(g.phase.retired())), s.mode())
		return err
	})
	if err != nil {
		return 0, err
	}
	s.ring.heard(g.phase + 1)
	return gone, nil
}
