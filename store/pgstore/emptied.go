package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// lasting are the tables whose rows stay until the program removes them one by one, with the
// column that says since when a row is there.
var lasting = [...]struct{ table, since string }{{"keys", "seen"}, {"parked", "at"}, {"outbox", "created"}}

// places finds, for each table, the objects that hold its rows and their files, and what was
// noted last. TRUNCATE gives a table another file; a table that is made again is another object.
const places = `SELECT t.name, coalesce(string_agg(p.oid::text || '/' || pg_relation_filenode(p.oid), ',' ORDER BY p.oid), ''), m.value, m.at
FROM unnest($1::text[], $2::text[]) AS t (name, qualified)
JOIN pg_class AS c ON c.oid = to_regclass(t.qualified) AND has_table_privilege(c.oid, 'SELECT')
JOIN pg_class AS p ON p.oid = c.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid)
LEFT JOIN {meta} AS m ON m.name = 'place of ' || t.name
GROUP BY t.name, m.value, m.at`

// Emptied returns the tables of keys, parked messages and the outbox that have lost all their rows
// at once since a process asked last: to TRUNCATE, to a restore, or because they were made again.
// VACUUM FULL and the like move the rows, which does not count. Emptied notes what the tables are
// now, so one process gets the answer once; Examine shows it for a week. A loss by DELETE looks
// like the work of the program and is not noticed. Emptied blocks until the server has answered,
// and may be called at any time.
func (s *Store) Emptied(ctx context.Context) (lost []string, err error) {
	if err := s.enter(ctx, "look for emptied tables", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	meta := s.opts.quoted("meta")
	var names, qualified []string
	for _, l := range lasting {
		names, qualified = append(names, l.table), append(qualified, s.opts.quoted(l.table))
	}
	type place struct {
		name, files string
		noted       []byte
		at          *time.Time
	}
	rows, _ := s.pool.Query(ctx, strings.ReplaceAll(places, "{meta}", meta), pgx.QueryExecModeExec, names, qualified) // the error comes again
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p place, err error) {
		err = row.Scan(&p.name, &p.files, &p.noted, &p.at)
		return p, err
	})
	for _, p := range found {
		gone, one := s.emptied(ctx, p.name, p.files, string(p.noted), p.at)
		err = errors.Join(err, one)
		if gone {
			lost = append(lost, s.opts.quoted(p.name))
		}
	}
	if err != nil {
		return lost, fmt.Errorf("pgstore: look for emptied tables: %w", failure(err))
	}
	return lost, nil
}

// emptied compares the files of a table with what was noted at a time, and notes them.
func (s *Store) emptied(ctx context.Context, name, files, noted string, at *time.Time) (gone bool, err error) {
	meta, table := s.opts.quoted("meta"), s.opts.quoted(name)
	var since string
	for _, l := range lasting {
		if l.table == name {
			since = l.since
		}
	}
	before, had := strings.CutPrefix(noted, "+") // it had rows
	if at != nil && had && !keepsFile(before, files) {
		var older bool
		if err := s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+table+" WHERE "+since+" < $1)", pgx.QueryExecModeExec, *at).Scan(&older); err != nil {
			return false, err
		}
		gone = !older
	}
	_, err = s.pool.Exec(ctx, `WITH note AS (INSERT INTO `+meta+` (name, value, at)
	SELECT 'place of ' || $1::text, convert_to(CASE WHEN EXISTS (SELECT FROM `+table+`) THEN '+' ELSE '' END || $2::text, 'UTF8'), clock_timestamp()
	ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value, at = EXCLUDED.at)
INSERT INTO `+meta+` (name, at) SELECT 'emptied ' || $1::text, clock_timestamp() WHERE $3::bool
	ON CONFLICT (name) DO UPDATE SET at = EXCLUDED.at`, pgx.QueryExecModeExec, name, files, gone)
	return gone, err
}

// keepsFile reports whether a table still has one of the files that it had. One whose partitions
// are emptied in turn keeps some.
func keepsFile(before, now string) bool {
	had := strings.Split(before, ",")
	return slices.ContainsFunc(strings.Split(now, ","), func(file string) bool { return slices.Contains(had, file) })
}

// emptiedFor is how long Examine shows that a table was emptied.
const emptiedFor = 7 * 24 * time.Hour
