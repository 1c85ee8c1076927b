package pgstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// truncateWait is the lock_timeout of a truncation. While it waits, other
	// statements on the partition wait behind it.
	truncateWait = 10 * time.Millisecond
	// truncateTries is how often one clean-up tries to truncate a partition: for
	// about a second. After that the next clean-up tries.
	truncateTries = 20
	truncatePause = 50 * time.Millisecond
)

// window is the range of time of messages that may be new.
type window struct{ floor, now time.Time }

// over reports whether no message of a slot can be new any more, or yet.
func (m *messageTime) over(w window, slot int) bool {
	for at := w.floor; !at.After(w.now.Add(messageAhead + m.width())); at = at.Add(m.width()) {
		if m.slot(at) == slot {
			return false
		}
	}
	return true
}

// purgeSlots is the clean-up by the time of messages. It raises the floor, and
// empties the partitions of slots that are over: by truncation, or row by row
// where one has a key that must stay. What a long transaction holds up is left
// to the next clean-up.
func (s *Store) purgeSlots(ctx context.Context, pace func(ctx context.Context, rows int64) error) (gone int64, err error) {
	if gone, err = s.emptySlots(ctx, pace); err != nil {
		return gone, fmt.Errorf("pgstore: purge: %w", err)
	}
	return gone, nil
}

func (s *Store) emptySlots(ctx context.Context, pace func(ctx context.Context, rows int64) error) (gone int64, err error) {
	m := s.hasher.times
	names := strings.NewReplacer("{times}", s.opts.quoted("times"))
	if _, err := s.purgeStep(ctx, names.Replace(raiseSQL), m.width().Microseconds()); err != nil {
		return 0, err
	}
	if _, err := s.purgeStep(ctx, names.Replace(raisedSQL)); err != nil {
		return 0, err
	}
	w, settled, err := s.settled(ctx)
	for range truncateTries {
		if err == nil && !settled {
			err = sleep(ctx, truncatePause)
		}
		if err == nil && !settled {
			w, settled, err = s.settled(ctx)
		}
	}
	if err != nil || !settled {
		return 0, err
	}
	for slot := 0; err == nil && slot < m.slots; slot++ {
		if m.over(w, slot) {
			var n int64
			n, err = s.emptySlot(ctx, slot, pace)
			gone += n
		}
	}
	return gone, err
}

// settled returns the range of time of messages that may be new, once every
// transaction that may write goes by it.
func (s *Store) settled(ctx context.Context) (w window, ok bool, err error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return w, false, err
	}
	defer s.leave()
	sql := strings.ReplaceAll(overSQL, "{times}", s.opts.quoted("times"))
	found, err := collect(ctx, s.onPool(), sql, []any{s.opts.quoted("keys")}, func(row pgx.CollectableRow) (w window, err error) {
		return w, row.Scan(&w.floor, &w.now)
	})
	if err != nil || len(found) == 0 {
		return w, false, err
	}
	return found[0], true, nil
}

// emptySlot empties one partition that is over. Nothing new comes into it any
// more, but what is there may still be completed or extended, and so move to a
// page that was looked at: what was not found is looked for again under a lock.
func (s *Store) emptySlot(ctx context.Context, slot int, pace func(ctx context.Context, rows int64) error) (gone int64, err error) {
	name := s.opts.quoted(slotTable(slot))
	pages, err := s.pages(ctx, name)
	if err != nil || pages == 0 {
		return 0, err
	}
	rest := strings.ReplaceAll(restSQL, "{part}", name)
	stays := false
	for page := int64(0); page < pages && !stays; page += purgePages {
		found, err := s.purgeStep(ctx, rest, page, page+purgePages, microseconds(abandoned))
		if err == nil {
			err = pace(ctx, 0)
		}
		if err != nil {
			return 0, err
		}
		stays = found > 0
	}
	if !stays {
		if gone, stays, err = s.truncateSlot(ctx, slot, name); err != nil || !stays {
			return gone, err
		}
	}
	for page := int64(0); err == nil && page < pages; page += purgePages {
		var n int64
		if n, err = s.purgePart(ctx, name, page); err == nil {
			gone += n
			err = pace(ctx, n)
		}
	}
	return gone, err
}

// purgeStep sends one statement and returns how many rows it returned.
func (s *Store) purgeStep(ctx context.Context, sql string, args ...any) (int64, error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	done, err := collect(ctx, s.onPool(), sql, args, pgx.RowTo[bool])
	return int64(len(done)), err
}

// pages returns the size of a table.
func (s *Store) pages(ctx context.Context, name string) (int64, error) {
	if err := s.enter("purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	const sql = clock + " SELECT pg_relation_size(to_regclass($2)) / current_setting('block_size')::bigint FROM clock"
	found, err := collect(ctx, s.onPool(), sql, []any{name}, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	return found[0], nil
}

// truncateSlot truncates a partition, if it is still over by then and has no
// row that must stay. It gives up where it does not have the lock soon:
// statements wait behind it meanwhile.
func (s *Store) truncateSlot(ctx context.Context, slot int, name string) (gone int64, stays bool, err error) {
	for range truncateTries {
		w, settled, err := s.settled(ctx)
		if err != nil || !settled || !s.hasher.times.over(w, slot) {
			return 0, false, err
		}
		err = pgx.BeginTxFunc(ctx, s.pool, readCommitted, func(tx pgx.Tx) error {
			gone, stays, err = s.truncateUnlessKept(ctx, tx, name)
			return err
		})
		if stateOf(err) != lockNotAvailable && !repeatable(err) {
			return gone, stays, failure(err)
		}
		if err := sleep(ctx, truncatePause); err != nil {
			return 0, false, err
		}
	}
	return 0, false, nil
}

// truncateUnlessKept is one try. From the first lock on, nobody changes a row of
// the partition; they are read meanwhile.
func (s *Store) truncateUnlessKept(ctx context.Context, tx pgx.Tx, name string) (gone int64, stays bool, err error) {
	const size = "SELECT greatest(reltuples, pg_stat_get_live_tuples(oid), 0)::bigint FROM pg_class WHERE oid = to_regclass($1)"
	wait := lockTimeout(truncateWait)
	for _, sql := range []string{"SET LOCAL lock_timeout = '" + wait + "'", "LOCK TABLE " + name + " IN SHARE ROW EXCLUSIVE MODE"} {
		if _, err := tx.Exec(ctx, sql, s.mode()); err != nil {
			return 0, false, err
		}
	}
	const allPages = 1<<32 - 1
	rest := strings.ReplaceAll(restSQL, "{part}", name)
	kept, err := collect(ctx, session{Store: s, q: tx, lockWait: wait}, rest, []any{int64(0), int64(allPages), microseconds(abandoned)}, pgx.RowTo[bool])
	if err != nil || len(kept) > 0 {
		return 0, len(kept) > 0, err
	}
	if err := s.queryRow(ctx, tx, size, name).Scan(&gone); err != nil {
		return 0, false, err
	}
	_, err = tx.Exec(ctx, "TRUNCATE "+name, s.mode())
	return gone, false, err
}

// slotTable is the name of the partition of a slot.
func slotTable(slot int) string { return "keys_" + strconv.Itoa(slot) }
