package pgstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// Look implements [semel.Inspector]. It blocks for one statement.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if err := s.enter(ctx, "look", len(keys), len(records)); err != nil {
		return err
	}
	defer s.leave()
	memo := s.hasher.memo()
	digests := make(pgtype.FlatArray[[16]byte], len(keys))
	for i, key := range keys {
		if err := cmp.Or(key.Validate(), s.hasher.check(key)); err != nil {
			return fmt.Errorf("pgstore: look: %w", err)
		}
		digests[i] = memo.Key(key)
	}
	rows, now, err := s.onPool().rows(ctx, digests, true)
	if err != nil {
		return fmt.Errorf("pgstore: look: %w", err)
	}
	found := make(map[semel.Digest]*row, len(rows))
	for i := range rows {
		found[rows[i].key] = &rows[i]
	}
	for i, key := range keys {
		records[i] = found[digests[i]].record(now)
		if records[i].State != semel.Absent {
			records[i].Key = key
		}
	}
	return nil
}

// LookDigest implements [semel.DigestResolver]. It blocks for one statement.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	if err := s.enter(ctx, "look", 0, 0); err != nil {
		return semel.Record{}, err
	}
	defer s.leave()
	rows, now, err := s.onPool().rows(ctx, pgtype.FlatArray[[16]byte]{d}, true)
	switch {
	case err != nil:
		return semel.Record{}, fmt.Errorf("pgstore: look: %w", err)
	case len(rows) == 0:
		return semel.Record{}, nil
	}
	return rows[0].record(now), nil
}

// listPage is the number of rows that a listing reads with one statement.
const listPage = 1000

// List implements [semel.Inspector]. It reads page by page in the order of digests,
// and keeps nothing open between pages. Records have readable keys only with
// [Options].KeepIDs. A filter by scope finds only those records.
func (s *Store) List(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		var last semel.Digest
		for first := true; ; first = false {
			page, err := s.listed(ctx, filter, last, first)
			if err != nil {
				yield(semel.Record{}, fmt.Errorf("pgstore: list: %w", err))
				return
			}
			for _, r := range page {
				if !yield(r, nil) {
					return
				}
			}
			if len(page) < listPage {
				return
			}
			last = page[len(page)-1].Digest
		}
	}
}

// listed reads one page.
func (s *Store) listed(ctx context.Context, filter semel.ListOptions, last semel.Digest, first bool) ([]semel.Record, error) {
	if err := s.enter(ctx, "list", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	args := []any{[16]byte(last), first, int(filter.State), listPage}
	switch {
	case s.opts.KeepIDs && filter.Scope != nil:
		args = append(args, []byte(*filter.Scope))
	case s.opts.KeepIDs:
		args = append(args, nil)
	case filter.Scope != nil:
		return nil, nil
	}
	return collect(ctx, s.scanning(), s.sql.list, args, s.listedRow)
}

func (s *Store) listedRow(rows pgx.CollectableRow) (semel.Record, error) {
	var r row
	var now time.Time
	var size pgtype.Int4
	if err := scanRow(rows, &r, &now, s.has, &size); err != nil {
		return semel.Record{}, err
	}
	shown := r.record(now)
	shown.Result.Data, shown.ResultSize = nil, int(max(size.Int32-1, 0))
	return shown, nil
}

// Resolve implements [semel.Resolver]. It blocks for one statement.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	if err := cmp.Or(req.Validate(s.opts.MaxResult), s.hasher.check(req.Key)); err != nil {
		return err
	}
	return s.resolve(ctx, s.hasher.Key(req.Key), req.Key.String(), &req)
}

// ResolveDigest implements [semel.DigestResolver]. It blocks for one statement.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	req.Key = semel.Key{ID: d.String()}
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	return s.resolve(ctx, d, "the digest "+d.String(), &req)
}

// resolve settles the unknown record of a digest. name is its name in errors.
func (s *Store) resolve(ctx context.Context, d semel.Digest, name string, req *semel.ResolveRequest) error {
	if err := s.enter(ctx, "resolve", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	result, window := req.Result, req.Window
	if req.As == semel.Absent {
		result, window = semel.Result{}, semel.Forever
	}
	resolved, err := collect(ctx, s.onPool(), s.sql.resolve,
		[]any{[16]byte(d), microseconds(window), encodeResult(result), req.As == semel.Done}, pgx.RowTo[bool])
	if err == nil && len(resolved) == 0 {
		err = semel.ErrNotUnknown
	}
	if err != nil {
		return fmt.Errorf("pgstore: resolve %s: %w", name, err)
	}
	return nil
}

// Remove implements [semel.Resolver]. It blocks for one statement.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := cmp.Or(key.Validate(), s.hasher.check(key)); err != nil {
		return false, err
	}
	return s.remove(ctx, s.hasher.Key(key), key.String())
}

// RemoveDigest implements [semel.DigestResolver]. It blocks for one statement.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (bool, error) {
	return s.remove(ctx, d, "the digest "+d.String())
}

// remove deletes the record of a digest. name is its name in errors.
func (s *Store) remove(ctx context.Context, d semel.Digest, name string) (bool, error) {
	if err := s.enter(ctx, "remove", 0, 0); err != nil {
		return false, err
	}
	defer s.leave()
	live, err := collect(ctx, s.onPool(), s.sql.remove, []any{[16]byte(d)}, pgx.RowTo[bool])
	if err != nil {
		return false, fmt.Errorf("pgstore: remove %s: %w", name, err)
	}
	return slices.Contains(live, true), nil
}

// countPages is the maximum number of pages that Count reads: 64 MiB.
const countPages = 8192

// countSQL counts the rows in a sample of $2 percent of the pages. Expired rows
// are not counted.
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

// Count implements [semel.Inspector]. It counts a table of up to 64 MiB completely.
// Of a larger table it reads that much, in random pages. The counts are then
// estimates, and Oldest is a lower bound. Oldest is the age of the oldest done
// key that is still remembered, measured from its first claim. It is the window
// that the store has kept so far.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	if err := s.enter(ctx, "count", 0, 0); err != nil {
		return semel.Counts{}, err
	}
	defer s.leave()
	c, err := s.scanning().count(ctx)
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

// Audit appends a line of JSON to the audit log table, which says who changed a
// key by hand, and why. Write the line before the change, so that no change lacks
// one. Audit blocks for one statement. No other call needs the INSERT privilege
// on that table.
func (s *Store) Audit(ctx context.Context, line []byte) error {
	if err := s.enter(ctx, "audit", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	var number int64
	err := within(ctx, s.patience, func(ctx context.Context) error {
		return s.queryRow(ctx, s.pool, "INSERT INTO "+s.opts.quoted("audit")+" (line) VALUES ($1::text::json) RETURNING number", string(line)).Scan(&number)
	})
	if err != nil {
		return fmt.Errorf("pgstore: audit: %w", failure(err))
	}
	return nil
}

// AuditTail returns the last lines of the audit log table, at most most of them, the newest last. It
// needs the SELECT privilege on that table, and blocks for one statement.
func (s *Store) AuditTail(ctx context.Context, most int) (lines [][]byte, err error) {
	if err := s.enter(ctx, "audit tail", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	err = within(ctx, s.patience, func(ctx context.Context) error {
		var text string
		err := s.queryRow(ctx, s.pool, "SELECT coalesce(string_agg(line::text, E'\n' ORDER BY number), '') FROM (SELECT number, line FROM "+s.opts.quoted("audit")+" ORDER BY number DESC LIMIT $1) newest", most).Scan(&text)
		for line := range strings.Lines(text) {
			lines = append(lines, []byte(strings.TrimSuffix(line, "\n")))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgstore: audit tail: %w", failure(err))
	}
	return lines, nil
}

// KeysWithoutRule reports whether the store has keys and binds no scope to a rule, as
// versions left it that kept no rules. It does not know the scopes of such keys. It blocks
// for one statement, and may be called concurrently. Its errors are those of a claim.
func (s *Store) KeysWithoutRule(ctx context.Context) (bool, error) {
	if err := s.enter(ctx, "keys without rule", 0, 0); err != nil {
		return false, err
	}
	defer s.leave()
	var unbound bool
	err := within(ctx, s.patience, func(ctx context.Context) error {
		return s.queryRow(ctx, s.pool, "SELECT CASE WHEN EXISTS (SELECT FROM "+s.opts.quoted("meta")+" WHERE name LIKE 'scope %') THEN false ELSE EXISTS (SELECT FROM "+s.opts.quoted("keys")+") END").Scan(&unbound)
	})
	if err != nil {
		return false, fmt.Errorf("pgstore: keys without rule: %w", failure(err))
	}
	return unbound, nil
}

// BindScope implements [semel.ScopeBinder]. It blocks for one statement, or for
// three when it binds the scope.
func (s *Store) BindScope(ctx context.Context, scope, rule string) (string, error) {
	if err := s.enter(ctx, "bind scope", 0, 0); err != nil {
		return "", err
	}
	defer s.leave()
	digest := sha256.Sum256([]byte(scope)) // a scope may be longer than an index permits
	name, bound := "scope "+hex.EncodeToString(digest[:]), []byte(nil)
	read := func() error {
		return within(ctx, s.patience, func(ctx context.Context) error {
			return s.queryRow(ctx, s.pool, "SELECT value FROM "+s.opts.quoted("meta")+" WHERE name = $1", name).Scan(&bound)
		})
	}
	err := read()
	if errors.Is(err, pgx.ErrNoRows) && rule == "" {
		return "", nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		var inserted int
		err = within(ctx, s.patience, func(ctx context.Context) error {
			return s.queryRow(ctx, s.pool, "WITH bound AS (INSERT INTO "+s.opts.quoted("meta")+" (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING 1) SELECT count(*) FROM bound", name, []byte(rule)).Scan(&inserted)
		})
		if err == nil {
			err = read()
		}
	}
	if err != nil {
		return "", fmt.Errorf("pgstore: bind scope: %w", failure(err))
	}
	s.scopes.Store(name, bound)
	return string(bound), nil
}
