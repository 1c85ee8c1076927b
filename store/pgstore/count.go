package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// countPages is how many pages Count reads at most: 64 MiB.
const countPages = 8192

// countSQL counts the rows of a sample of $2 percent of the pages. Forgotten
// rows are not counted.
const countSQL = clock + `
SELECT count(*) FILTER (WHERE t.owner IS NOT NULL AND NOT (get_byte(t.owner, 0) = 1 AND t.until <= clock.now)),
	count(*) FILTER (WHERE t.owner IS NULL AND t.until > clock.now),
	count(*) FILTER (WHERE get_byte(t.owner, 0) = 1 AND t.until <= clock.now),
	max(clock.now - t.seen) FILTER (WHERE t.owner IS NULL AND t.until > clock.now)
FROM {keys} AS t TABLESAMPLE SYSTEM ($2), clock`

const sizeSQL = clock + `
SELECT coalesce(sum(pg_relation_size(c.oid) / current_setting('block_size')::bigint), 0)::bigint, coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM clock, pg_class AS c
WHERE c.relkind = 'r' AND (c.oid = to_regclass($2) OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($2)))`

// Count implements [semel.Counter]. A table of up to 64 MiB is counted; of a
// larger one that much is, in pages chosen at random, and the counts are
// estimates; Oldest is then a lower bound. Oldest is the age, since its first
// claim, of the oldest key that is done and still remembered: the window that
// the store has lived up to so far.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	if err := s.enter("count", 0, 0); err != nil {
		return semel.Counts{}, err
	}
	defer s.leave()
	c, err := s.onPool().count(ctx)
	if err != nil {
		return semel.Counts{}, fmt.Errorf("pgstore: count: %w", err)
	}
	return c, nil
}

func (s session) count(ctx context.Context) (semel.Counts, error) {
	var c semel.Counts
	var pages int64
	_, err := collect(ctx, s, sizeSQL, []any{s.opts.quoted("keys")}, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&pages, &c.DiskBytes)
	})
	if err != nil {
		return c, err
	}
	percent := min(100, 100*countPages/float64(max(pages, 1)))
	_, err = collect(ctx, s, s.sql.count, []any{percent}, func(row pgx.CollectableRow) (struct{}, error) {
		var oldest pgtype.Interval
		err := row.Scan(&c.Claimed, &c.Done, &c.Unknown, &oldest)
		c.Oldest = duration(oldest)
		return struct{}{}, err
	})
	for _, n := range []*int64{&c.Claimed, &c.Done, &c.Unknown} {
		*n = int64(float64(*n) * 100 / percent)
	}
	return c, err
}
