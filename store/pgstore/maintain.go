package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

// defaultEvery is the default of [MaintainOptions].
const defaultEvery = 5 * time.Minute

// MaintainOptions are the options of [Store.Maintain]. The zero value is valid.
type MaintainOptions struct {
	// Every is the time from the start of one clean-up to the start of the next.
	// A clean-up works at most a fifth of the time. Defaults to 5 min. Must be at
	// least 1 s.
	Every time.Duration
	// OnPass is called by Maintain after each clean-up of this process. gone is the
	// number of deleted rows. err is the reason why the clean-up ended early, or
	// nil. Defaults to none.
	OnPass func(gone int64, err error)
}

func (o *MaintainOptions) checked() (MaintainOptions, error) {
	var c MaintainOptions
	if o != nil {
		c = *o
	}
	c.Every = cmp.Or(c.Every, defaultEvery)
	if c.OnPass == nil {
		c.OnPass = func(int64, error) {}
	}
	wrong := invalid.In("pgstore: MaintainOptions.")
	if c.Every < time.Second {
		wrong.Add("Every: %v is less than 1s", c.Every)
	}
	return c, wrong.Err()
}

// rest is the ratio of rest to work in a clean-up. It leaves the server to the
// claims.
const rest = 4

// Maintain cleans up until ctx ends, and then returns the cause of ctx. It
// blocks, so run it in a goroutine and wait for it. Of all processes that
// maintain one table, only one works at a time. When it is gone, another one
// takes over. An error of one clean-up does not end Maintain; OnPass gets it.
func (s *Store) Maintain(ctx context.Context, opts *MaintainOptions) error {
	o, err := opts.checked()
	if err != nil {
		return err
	}
	for {
		gone, worked, err := s.pass(ctx, &o)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, semel.ErrClosed) {
			return err
		}
		if worked || err != nil {
			o.OnPass(gone, err)
		}
		if err := sleep(ctx, o.Every); err != nil {
			return err
		}
	}
}

// turnSQL takes the turn to clean up for $2 microseconds, if no process has it.
const turnSQL = clock + `
UPDATE {meta} SET at = clock.now + $2::bigint * interval '1 microsecond' FROM clock
WHERE name = 'cleaning' AND (at <= clock.now OR $3::boolean) RETURNING at`

// cleanedSQL records that a clean-up covered the whole table.
const cleanedSQL = clock + `
UPDATE {meta} SET at = clock.now FROM clock WHERE name = 'cleaned' RETURNING at`

// pass cleans up once, if this process has the turn.
func (s *Store) pass(ctx context.Context, o *MaintainOptions) (gone int64, worked bool, err error) {
	mine, err := s.stamp(ctx, s.sql.turn, microseconds(o.Every), false)
	if err != nil || !mine {
		return 0, false, err
	}
	rested := time.Now()
	renewed := rested
	gone, err = s.purge(ctx, func(ctx context.Context) error {
		if err := sleep(ctx, rest*time.Since(rested)); err != nil {
			return err
		}
		rested = time.Now()
		if rested.Sub(renewed) < o.Every/2 {
			return nil
		}
		renewed = rested
		_, err := s.stamp(ctx, s.sql.turn, microseconds(o.Every), true)
		return err
	})
	if err == nil {
		_, err = s.stamp(ctx, s.sql.cleaned)
	}
	return gone, true, err
}

// stamp sets a time, and reports whether the statement found a row to set it in.
func (s *Store) stamp(ctx context.Context, sql string, args ...any) (set bool, err error) {
	if err := s.enter(ctx, "maintain", 0, 0); err != nil {
		return false, err
	}
	defer s.leave()
	times, err := collect(ctx, s.onPool(), sql, args, pgx.RowTo[time.Time])
	if err != nil {
		return false, fmt.Errorf("pgstore: maintain: %w", err)
	}
	return len(times) > 0, nil
}

const (
	// grace is how long a row stays after it has ended. During this time, no claim
	// with an earlier token can insert the row of the key; see insertSQL. It is
	// longer than any single wait of a claim. A claim takes the token of a row just
	// before it waits for that row, and checks again after each wait. A whole
	// statement may take longer, because lock_timeout applies to each row.
	grace = time.Minute
	// abandoned is how long the attempt count of a claim is remembered after its
	// lease ended without another claim.
	abandoned = time.Hour
	// purgePages is the number of table pages that one clean-up statement reads:
	// about twenty thousand rows.
	purgePages = 256
)

// purgeSQL deletes ended rows in the pages from $2 to before $3. It does not wait
// for rows that are being claimed. The table has no index on the time: such an
// index would cost each claim more than reading the pages costs a clean-up.
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

// Purge implements [semel.Purger]. It scans the whole table once and deletes in
// many short transactions, as fast as the server allows. [Store.Maintain] leaves
// room for claims. Rows stay for a minute after they have ended, so that tokens
// only grow.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	return s.purge(ctx, func(context.Context) error { return nil })
}

// purge scans the table once. It calls pace after each statement.
func (s *Store) purge(ctx context.Context, pace func(context.Context) error) (gone int64, err error) {
	if s.hasher.times != nil {
		gone, err = s.emptySlots(ctx, pace)
	} else {
		gone, err = s.purgeParts(ctx, pace)
	}
	if err != nil {
		return gone, fmt.Errorf("pgstore: purge: %w", err)
	}
	return gone, nil
}

func (s *Store) purgeParts(ctx context.Context, pace func(context.Context) error) (gone int64, err error) {
	if err := s.enter(ctx, "purge", 0, 0); err != nil {
		return 0, err
	}
	parts, err := s.onPool().parts(ctx)
	s.leave()
	for i := 0; err == nil && i < len(parts); i++ {
		var n int64
		n, err = s.purgePart(ctx, parts[i], pace)
		gone += n
	}
	return gone, err
}

// purgePart deletes the ended rows of one table.
func (s *Store) purgePart(ctx context.Context, p part, pace func(context.Context) error) (gone int64, err error) {
	for page := int64(0); err == nil && page < p.pages; page += purgePages {
		var n int64
		if n, err = s.purgeSome(ctx, p.name, page); err == nil {
			gone += n
			err = pace(ctx)
		}
	}
	return gone, err
}

// purgeSome deletes the ended rows of purgePages pages.
func (s *Store) purgeSome(ctx context.Context, name string, page int64) (gone int64, err error) {
	if err := s.enter(ctx, "purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	on := s.scanning()
	sql := strings.ReplaceAll(purgeSQL, "{part}", name)
	err = on.run(ctx, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, sql, s.mode(), on.lockWait, page, page+purgePages, microseconds(grace), microseconds(abandoned))
		gone = tag.RowsAffected()
		return err
	})
	return gone, err
}

// Cleanup is the form in which expired keys are removed. It is chosen when the
// tables are created and cannot be changed later.
type Cleanup string

const (
	// CleanupDelete deletes rows in short statements. It suits any ids and any mix
	// of windows. Autovacuum must remove the dead rows that it leaves.
	CleanupDelete Cleanup = "delete"
	// CleanupMessageTime partitions keys by the time inside their ids. It truncates
	// a partition when all its messages are older than the store answers for. Each
	// id must contain a time, as a version 7 UUID does. A message must have the
	// same id at every delivery.
	CleanupMessageTime Cleanup = "message-time"
)

// defaultCleanup is the form of tables that were created without another.
const defaultCleanup = CleanupDelete

// validate returns an error if the form does not exist.
func (c Cleanup) validate(field string) error {
	switch c {
	case CleanupDelete, CleanupMessageTime:
		return nil
	}
	return fmt.Errorf("pgstore: %s: %q is neither %s nor %s: %w", field, string(c), CleanupDelete, CleanupMessageTime, semel.ErrInvalidRequest)
}

// checkCleanup compares the wanted form with that of the tables, if they exist.
// It runs before the first step, so that tables of a form unknown to this version
// stay unchanged.
func (o *MigrateOptions) checkCleanup(ctx context.Context, db Beginner) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, tx)
	exists, err := o.hasTable(ctx, tx, "meta")
	if err != nil || !exists {
		return err
	}
	var form []byte
	err = tx.QueryRow(ctx, "SELECT value FROM "+o.quoted("meta")+" WHERE name = 'cleanup'", pgx.QueryExecModeDescribeExec).Scan(&form)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return Cleanup(form).suits(o.Cleanup, o.Names)
}

// suits returns an error if tables of this form cannot be used, or do not have
// the wanted form. Changing the form would lose all keys.
func (c Cleanup) suits(wanted Cleanup, n Names) error {
	have := cmp.Or(c, defaultCleanup)
	switch {
	case have != CleanupDelete && have != CleanupMessageTime:
		return fmt.Errorf("the tables %s* in schema %s were created for clean-up by %q, which this version does not support. "+
			"Create tables under another prefix and use those; keys remembered in the old tables are not copied: %w", n.Prefix, n.Schema, string(have), ErrSchema)
	case wanted != "" && have != wanted:
		return fmt.Errorf("the tables %s* in schema %s were created for clean-up by %s, not by %s: %w", n.Prefix, n.Schema, string(have), string(wanted), ErrSchema)
	}
	return nil
}

// setForm configures the store for tables of a form.
func (s *Store) setForm(ctx context.Context, form Cleanup) error {
	if err := form.suits(s.opts.Cleanup, s.opts.Names); err != nil {
		return err
	}
	if form != CleanupMessageTime {
		return nil
	}
	times, err := s.onPool().messageTimes(ctx)
	if err != nil {
		return err
	}
	s.hasher.times = times
	s.sql = messageTimeStatements(s.opts.Names, s.has, times)
	return nil
}
