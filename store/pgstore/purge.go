package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// grace is how long a row stays after it has ended. While it does, no claim
	// that took its token before can become the row of the key: see insertSQL.
	// It is longer than any one wait of a claim, which takes the token of a row
	// just before it waits for that row, and looks again after each wait. A
	// whole statement may take longer: lock_timeout counts for each row anew.
	grace = time.Minute
	// abandoned is how long the attempts of a claim are remembered that nobody
	// came back to.
	abandoned = time.Hour
	// purgePages is how many pages of a table one statement of a clean-up reads:
	// about twenty thousand rows.
	purgePages = 256
)

// purgeSQL deletes what has ended in the pages from $2 to before $3, and does
// not wait for rows that are being claimed anew. The table has no index on the
// time: it would cost each claim more than reading the pages costs a clean-up.
const purgeSQL = clock + `
DELETE FROM {part} WHERE ctid = ANY (ARRAY(
	SELECT t.ctid FROM clock, {part} AS t
	WHERE t.ctid >= format('(%s,0)', $2::bigint)::tid AND t.ctid < format('(%s,0)', $3::bigint)::tid AND CASE
		WHEN t.owner IS NULL AND t.until = '-infinity' THEN t.seen <= clock.now - $4::bigint * interval '1 microsecond'
		WHEN t.owner IS NULL THEN t.until <= clock.now - $4::bigint * interval '1 microsecond'
		ELSE get_byte(t.owner, 0) = 0 AND t.until <= clock.now - $5::bigint * interval '1 microsecond' END
	FOR UPDATE OF t SKIP LOCKED))`

// part is a table that holds rows itself: the table of keys, or one of its
// partitions.
type part struct {
	name  string // quoted
	pages int64
}

const partsSQL = clock + `
SELECT format('%I.%I', n.nspname, c.relname), pg_relation_size(c.oid) / current_setting('block_size')::bigint
FROM clock, pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND (c.oid = to_regclass($2) OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($2)))
ORDER BY c.oid`

func (s session) parts(ctx context.Context) ([]part, error) {
	return collect(ctx, s, partsSQL, []any{s.opts.quoted("keys")}, func(rows pgx.CollectableRow) (p part, err error) {
		err = rows.Scan(&p.name, &p.pages)
		return p, err
	})
}

// Purge implements [semel.Purger]. It deletes in many short transactions, as
// fast as the server allows, and goes once over the whole table; see
// [Store.Maintain] for a clean-up that leaves room for claims. Rows stay for a
// minute after they have ended, so that tokens grow.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	return s.purge(ctx, func(context.Context, int64) error { return nil })
}

// purge goes over the table once. After each statement it calls pace with the
// number of rows that are gone.
func (s *Store) purge(ctx context.Context, pace func(ctx context.Context, rows int64) error) (int64, error) {
	if s.hasher.times != nil {
		return s.purgeSlots(ctx, pace)
	}
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	parts, err := s.onPool().parts(ctx)
	s.leave()
	var forgotten int64
	for i := 0; err == nil && i < len(parts); i++ {
		for page := int64(0); err == nil && page < parts[i].pages; page += purgePages {
			var n int64
			if n, err = s.purgePart(ctx, parts[i].name, page); err == nil {
				forgotten += n
				err = pace(ctx, n)
			}
		}
	}
	if err != nil {
		return forgotten, fmt.Errorf("pgstore: purge: %w", err)
	}
	return forgotten, nil
}

func (s *Store) purgePart(ctx context.Context, name string, page int64) (gone int64, err error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	on := s.onPool()
	sql := strings.ReplaceAll(purgeSQL, "{part}", name)
	err = on.run(ctx, func() error {
		tag, err := s.pool.Exec(ctx, sql, s.mode(), on.lockWait, page, page+purgePages, microseconds(grace), microseconds(abandoned))
		gone = tag.RowsAffected()
		return err
	})
	return gone, err
}
