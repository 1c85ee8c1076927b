package pgstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/store/pgstore/internal/pgschema"
)

// Message time: a key goes to a partition by the time inside its id, which is the
// same at every delivery. So all deliveries of a key meet in one partition, and
// its unique index decides between them. The partition is truncated when its time
// and the windows of its keys are over.
//
// Time is divided into slots of equal width. The partitions form a ring: the
// first byte of a key is the number of its slot modulo the number of partitions.
// It replaces the first byte of the digest, which leaves 120 bits of it. The ring
// is longer than the maximum message age, so that one partition can always be
// emptied. If the windows of its keys last longer, a partition is reused without
// truncation and cleaned row by row. Keys of two slots in one partition do not
// interfere.
//
// A message that has no record and is older than the age set for the tables is
// late, never new: its record may have been truncated. The database keeps a
// floor. Messages older than the floor are always late, even if the server's
// clock steps back.

// messageAhead is how far the time of a message may be ahead of the server's
// clock.
const messageAhead = time.Hour

// spareSlots is the number of partitions beyond those that hold the maximum
// message age. They are for the slots at both ends, and for the slot that is being emptied.
const spareSlots = 4

// idTime returns the time inside an id that is a version 7 UUID, with or without
// hyphens, or a ULID. It is the default of [Options].MessageTime.
func idTime(key semel.Key) (time.Time, bool) {
	switch id := key.ID; len(id) {
	case 36:
		if id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' {
			return time.Time{}, false
		}
		return uuidTime(strings.ReplaceAll(id, "-", ""))
	case 32:
		return uuidTime(id)
	case 26:
		return ulidTime(id)
	}
	return time.Time{}, false
}

func uuidTime(digits string) (time.Time, bool) {
	u, err := hex.DecodeString(digits)
	if err != nil || len(u) != 16 || u[6]>>4 != 7 || u[8]>>6 != 2 {
		return time.Time{}, false
	}
	var milliseconds int64
	for _, b := range u[:6] {
		milliseconds = milliseconds<<8 | int64(b)
	}
	return time.UnixMilli(milliseconds), true
}

// crockford are the digits of a ULID.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

func ulidTime(id string) (time.Time, bool) {
	var milliseconds int64
	for i, c := range strings.ToUpper(id) {
		digit := strings.IndexRune(crockford, c)
		switch {
		case digit < 0, i == 0 && digit > 7:
			return time.Time{}, false
		case i < 10:
			milliseconds = milliseconds<<5 | int64(digit)
		}
	}
	return time.UnixMilli(milliseconds), true
}

// messageTime holds a store's settings for message times.
type messageTime struct {
	of    func(semel.Key) (time.Time, bool)
	age   time.Duration // maximum age of a message that the store answers for
	slots int
}

// width returns the length of a slot.
func (m *messageTime) width() time.Duration {
	return (m.age / time.Duration(m.slots-spareSlots)).Truncate(time.Microsecond)
}

// slot returns the partition of messages with this time.
func (m *messageTime) slot(at time.Time) int {
	width := m.width().Microseconds()
	n := at.UnixMicro() / width
	if at.UnixMicro()%width < 0 {
		n--
	}
	slots := int64(m.slots)
	return int((n%slots + slots) % slots)
}

// hasher computes the digests of keys as stored in the table.
type hasher struct {
	digest.Hasher
	times *messageTime // nil unless keys are partitioned by message time
}

// Key returns the digest of a key that check accepts.
func (h hasher) Key(key semel.Key) semel.Digest { return h.placed(h.Hasher.Key(key), key) }

// placed sets the first byte of a digest to the partition of its message time.
func (h hasher) placed(d semel.Digest, key semel.Key) semel.Digest {
	if h.times != nil {
		at, _ := h.times.of(key)
		d[0] = byte(h.times.slot(at))
	}
	return d
}

// check returns an error if the id of a message has no time.
func (h hasher) check(key semel.Key) error {
	if h.times == nil {
		return nil
	}
	if _, ok := h.times.of(key); !ok {
		return fmt.Errorf("pgstore: no time in the id of %s; clean-up by %s needs a UUID of version 7, a ULID, or Options.MessageTime: %w", key, CleanupMessageTime, semel.ErrInvalidKey)
	}
	return nil
}

// memo computes digests of keys that often have the same scope as the key before.
func (h hasher) memo() *memo { return &memo{h, digest.Memo{Hasher: h.Hasher}} }

type memo struct {
	hasher
	digests digest.Memo
}

func (m *memo) Key(key semel.Key) semel.Digest { return m.placed(m.digests.Key(key), key) }

// deadline returns the server time from which a message without a record is late,
// or null if it never is.
func (h hasher) deadline(req *semel.ClaimRequest) pgtype.Timestamptz {
	d := deadline(req)
	if h.times == nil {
		return d
	}
	at, _ := h.times.of(req.Key)
	oldest := at.Add(h.times.age)
	if d.Valid && (d.InfinityModifier == pgtype.NegativeInfinity || d.Time.Before(oldest)) {
		return d
	}
	return timestamp(oldest)
}

// outside answers a request whose message time is outside the accepted range, if
// the key has no record.
func (h hasher) outside(r *row, req *semel.ClaimRequest, a *semel.ClaimAnswer, now time.Time) bool {
	if h.times == nil || r.state(now) != semel.Absent {
		return false
	}
	at, _ := h.times.of(req.Key)
	switch d := h.deadline(req); {
	case at.After(now.Add(messageAhead)):
		a.Err = fmt.Errorf("pgstore: the id of %s has the time %s, %v ahead of the server's: %w",
			req.Key, at.UTC().Format(time.RFC3339), at.Sub(now).Round(time.Second), semel.ErrInvalidRequest)
	case d.InfinityModifier == pgtype.NegativeInfinity || d.Time.Before(now):
		a.Decision = semel.Late
	default:
		return false
	}
	return true
}

// Defaults and bounds of tables that partition keys by message time.
const (
	// defaultMessageAge is the default of [MigrateOptions].
	defaultMessageAge = 7 * 24 * time.Hour
	defaultSlots      = 32
	leastSlots        = 2 * spareSlots
	mostSlots         = 256
)

// checkMessageTime sets the defaults of the options for clean-up by message time, and
// checks them.
func (o *MigrateOptions) checkMessageTime(wrong *invalid.List) {
	o.Partitions = cmp.Or(o.Partitions, defaultSlots)
	o.MessageAge = cmp.Or(o.MessageAge, defaultMessageAge)
	if o.Partitions < leastSlots || o.Partitions > mostSlots {
		wrong.Add("Partitions: %d is not between %d and %d", o.Partitions, leastSlots, mostSlots)
	}
	// A slot is then longer than the time that a message may be ahead of the clock.
	if o.MessageAge < time.Duration(o.Partitions)*messageAhead {
		wrong.Add("MessageAge: %v is less than an hour for each of %d partitions", o.MessageAge, o.Partitions)
	}
}

// messageTimes reads the layout with which the tables were created.
func (s session) messageTimes(ctx context.Context) (*messageTime, error) {
	sql := strings.ReplaceAll(timesSQL, "{times}", s.opts.quoted("times"))
	found, err := collect(ctx, s, sql, nil, func(row pgx.CollectableRow) (*messageTime, error) {
		var age int64
		m := &messageTime{of: s.opts.MessageTime}
		err := row.Scan(&age, &m.slots)
		m.age = time.Duration(age) * time.Microsecond
		return m, err
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) != 1 || found[0].slots < leastSlots || found[0].age < time.Duration(found[0].slots)*messageAhead:
		return nil, fmt.Errorf("%s does not say how old a message may be: %w", s.opts.quoted("times"), ErrSchema)
	}
	return found[0], nil
}

// flooredClock is the clock of a statement that uses message times. It never
// falls behind the time at which the messages just below the floor became too
// old.
const flooredClock = `WITH clock AS MATERIALIZED (
	SELECT greatest(clock_timestamp(), (SELECT m.floor + m.age * interval '1 microsecond' FROM {times} AS m)) AS now, set_config('lock_timeout', $1, true))`

// notEarly excludes messages that are ahead of the clock.
const notEarly = `WHERE r.deadline >= clock.now AND r.deadline <= clock.now + %d * interval '1 microsecond'`

const everLate = `WHERE r.deadline IS NULL OR r.deadline >= clock.now`

// timesSQL reads the layout with which the tables were created.
const timesSQL = clock + `
SELECT m.age, m.slots FROM clock, {times} AS m`

// raiseSQL raises the floor to the start of the oldest slot that has messages
// which are not too old. It reports whether it raised the floor.
const raiseSQL = clock + `, next AS (
	SELECT date_bin($2::bigint * interval '1 microsecond', clock.now - m.age * interval '1 microsecond', 'epoch') AS floor FROM clock, {times} AS m)
UPDATE {times} AS m SET floor = next.floor, since = NULL FROM next WHERE m.floor < next.floor RETURNING true`

// raisedSQL records when the floor was seen to be raised. Transactions that begin
// later use the new floor.
const raisedSQL = clock + `
UPDATE {times} AS m SET since = clock.now FROM clock WHERE m.since IS NULL RETURNING true`

// overSQL returns the floor and the time, unless an open transaction may write
// and may use an older floor. If this role may not see when a transaction began,
// overSQL assumes that it is such a transaction.
const overSQL = clock + `
SELECT m.floor, clock.now FROM clock, {times} AS m
WHERE m.since IS NOT NULL AND NOT EXISTS (
	SELECT FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
	WHERE l.relation = to_regclass($2) AND l.mode = 'RowExclusiveLock'
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (a.xact_start IS NULL OR a.xact_start <= m.since))`

// restSQL asks whether the pages from $2 to before $3 of a partition have a row
// that must stay.
const restSQL = clock + `
SELECT true FROM clock, {part} AS t
WHERE t.ctid >= format('(%s,0)', $2::bigint)::tid AND t.ctid < format('(%s,0)', $3::bigint)::tid AND CASE
	WHEN t.owner IS NULL THEN t.until > clock.now
	ELSE get_byte(t.owner, 0) = 1 OR t.until > clock.now - $4::bigint * interval '1 microsecond' END
LIMIT 1`

// messageTimeStatements are the statements on one table, with flooredClock as
// their clock.
func messageTimeStatements(n Names, has columns, m *messageTime) statements {
	s := newStatements(n, has)
	reach := (m.age + messageAhead).Microseconds()
	changed := strings.NewReplacer(
		clock, strings.ReplaceAll(flooredClock, "{times}", n.quoted("times")),
		everLate, fmt.Sprintf(notEarly, reach),
	)
	for _, sql := range []*string{
		&s.insert, &s.read, &s.look, &s.put, &s.keep, &s.held, &s.complete, &s.release, &s.extend, &s.resolve, &s.remove, &s.list, &s.count, &s.turn, &s.cleaned,
	} {
		*sql = changed.Replace(*sql)
	}
	// An optimistic insert does not check the age of a message.
	s.optimistic, s.optimisticSame, s.optimisticOne, s.optimisticMost = "", "", "", ""
	return s
}

const (
	// truncateWait is the lock_timeout of a truncation. While it waits, other
	// statements on the partition queue behind it.
	truncateWait = 10 * time.Millisecond
	// truncateTries is how often one clean-up tries to truncate a partition: for
	// about a second. After that, the next clean-up tries.
	truncateTries = 20
	truncatePause = 50 * time.Millisecond
)

// window is the time range of messages that may be new.
type window struct{ floor, now time.Time }

// over reports whether no message of a slot can be new any longer, or yet.
func (m *messageTime) over(w window, slot int) bool {
	for at := w.floor; !at.After(w.now.Add(messageAhead + m.width())); at = at.Add(m.width()) {
		if m.slot(at) == slot {
			return false
		}
	}
	return true
}

// emptySlots cleans up by message time. It raises the floor and empties the
// partitions of slots that are over. It truncates a partition, or deletes row by
// row if a key must stay. If a long transaction blocks it, it leaves the rest to
// the next clean-up.
func (s *Store) emptySlots(ctx context.Context, pace func(context.Context) error) (gone int64, err error) {
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

// settled returns the time range of messages that may be new, once every
// transaction that may write uses it.
func (s *Store) settled(ctx context.Context) (w window, ok bool, err error) {
	if err := s.enter(ctx, "purge", 0, 0); err != nil {
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

// emptySlot empties one partition that is over. The partition gets no new keys.
// Its keys may still be completed or extended, and so move to a page that was
// already read. The rows are therefore read again under a lock.
func (s *Store) emptySlot(ctx context.Context, slot int, pace func(context.Context) error) (gone int64, err error) {
	name := s.opts.quoted(pgschema.Partition(slot))
	pages, err := s.pages(ctx, name)
	if err != nil || pages == 0 {
		return 0, err
	}
	rest := strings.ReplaceAll(restSQL, "{part}", name)
	stays := false
	for page := int64(0); page < pages && !stays; page += purgePages {
		found, err := s.purgeStep(ctx, rest, page, page+purgePages, microseconds(abandoned))
		if err == nil {
			err = pace(ctx)
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
	return s.purgePart(ctx, part{name, pages}, pace)
}

// purgeStep sends one statement and returns the number of rows that it returned.
func (s *Store) purgeStep(ctx context.Context, sql string, args ...any) (int64, error) {
	if err := s.enter(ctx, "purge", 0, 0); err != nil {
		return 0, err
	}
	defer s.leave()
	done, err := collect(ctx, s.onPool(), sql, args, pgx.RowTo[bool])
	return int64(len(done)), err
}

// pages returns the size of a table.
func (s *Store) pages(ctx context.Context, name string) (int64, error) {
	if err := s.enter(ctx, "purge", 0, 0); err != nil {
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

// truncateSlot truncates a partition, if it is still over then and has no row
// that must stay. It gives up if it does not get the lock soon, because other
// statements queue behind it.
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

// truncateUnlessKept makes one attempt. It reads the rows under a lock that keeps
// them from changing.
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
