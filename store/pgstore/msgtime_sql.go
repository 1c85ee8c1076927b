package pgstore

import (
	"fmt"
	"strings"
)

// flooredClock is the clock of a statement that goes by the times of messages.
// It does not fall behind the time at which the oldest message was answered for
// that is not any more.
const flooredClock = `WITH clock AS MATERIALIZED (
	SELECT greatest(clock_timestamp(), (SELECT m.floor + m.age * interval '1 microsecond' FROM {times} AS m)) AS now, set_config('lock_timeout', $1, true))`

// notEarly leaves out messages that are ahead of the clock.
const notEarly = `WHERE r.deadline >= clock.now AND r.deadline <= clock.now + %d * interval '1 microsecond'`

const everLate = `WHERE r.deadline IS NULL OR r.deadline >= clock.now`

// timesSQL reads what the tables were made for.
const timesSQL = clock + `
SELECT m.age, m.slots FROM clock, {times} AS m`

// raiseSQL raises the floor to the beginning of the slot whose messages are not
// all too old yet, and says whether it did.
const raiseSQL = clock + `, next AS (
	SELECT date_bin($2::bigint * interval '1 microsecond', clock.now - m.age * interval '1 microsecond', 'epoch') AS floor FROM clock, {times} AS m)
UPDATE {times} AS m SET floor = next.floor, since = NULL FROM next WHERE m.floor < next.floor RETURNING true`

// raisedSQL notes when the floor was seen to be raised. Transactions that begin
// later go by it.
const raisedSQL = clock + `
UPDATE {times} AS m SET since = clock.now FROM clock WHERE m.since IS NULL RETURNING true`

// overSQL has the floor and the time, unless a transaction that may write and
// may not go by the floor is still open. Of one whose beginning this role may
// not see, that must be assumed.
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

// messageTimeStatements are those on one table, with another clock.
func messageTimeStatements(n Names, ids bool, m *messageTime) statements {
	s := newStatements(n, ids)
	reach := (m.age + messageAhead).Microseconds()
	changed := strings.NewReplacer(
		clock, strings.ReplaceAll(flooredClock, "{times}", n.quoted("times")),
		everLate, fmt.Sprintf(notEarly, reach),
	)
	for _, sql := range []*string{
		&s.insert, &s.read, &s.put, &s.keep, &s.held, &s.complete, &s.release, &s.extend, &s.resolve, &s.remove, &s.list, &s.count, &s.turn, &s.cleaned,
	} {
		*sql = changed.Replace(*sql)
	}
	// One statement that hopes for a new key does not see how old it is.
	s.hope, s.hopeSame, s.hopeOne = "", "", ""
	return s
}
