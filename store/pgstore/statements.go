package pgstore

import (
	"math/bits"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/semel-dev/semel/store/pgstore/internal/pgschema"
)

// statements are the statements on one table of keys. Each decides many keys. $1
// is the lock_timeout, which a statement sets for its own transaction. A session
// setting would leak to the next client of the connection behind a pooler.
//
// Rows are locked in the order of their keys, so that two statements never wait
// for each other. The insert takes keys in order. The others lock their rows in
// order before they change the first one.
type statements struct {
	insert, read, look, put, keep, held, optimistic, optimisticSame, optimisticOne, optimisticMost, complete, release, extend, resolve, remove, list, count, turn, cleaned string
}

// clock is the time of a statement, which all its rows share; now() would be the
// start of the transaction. Every statement that waits for a row must read clock
// before, because clock sets the lock_timeout. So each FOR UPDATE below has it.
const clock = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, set_config('lock_timeout', $1, true))`

// span adds microseconds to the clock; null means forever.
const span = `CASE WHEN r.span IS NULL THEN 'infinity' ELSE clock.now + r.span * interval '1 microsecond' END`

// insertSQL creates the rows of keys that have none. It waits for a key that
// another transaction is inserting. RETURNING gives the new rows, in the order of
// keys. A message that is too old is excluded by its deadline.
//
// The token is taken before the row exists. In between, another claim may take a
// higher token, be granted and be released. Its row then still exists, because
// ended rows are cleaned up only later, and nothing is inserted.
const insertSQL = clock + `
INSERT INTO {keys} (key, until, seen, token, fingerprint, owner{+, scope, id}{@, origin})
SELECT r.key, ` + span + `, clock.now, CASE WHEN r.owner IS NOT NULL THEN nextval({tokens}) ELSE r.maker END, r.fingerprint, r.owner{+, r.scope, r.id}{@, r.origin}
FROM clock, ` + insertParams + `
WHERE r.deadline IS NULL OR r.deadline >= clock.now
ORDER BY r.key
ON CONFLICT (key) DO NOTHING
RETURNING key, token, seen`

// insertParams are the columns of requests. The arrays of makers and origins may be
// empty: unnest fills them with nulls.
const insertParams = `unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::bigint[]), (SELECT $5::bytea[]), (SELECT $6::timestamptz[]), (SELECT $7::bigint[]){+, (SELECT $8::bytea[]), (SELECT $9::bytea[])}{@, (SELECT $@::bytea[])})
	AS r (key, span, fingerprint, owner, deadline, maker{+, scope, id}{@, origin})`

// readSQL returns one row for each requested key, without its origin. It locks
// nothing, but takes its time from the same place.
const readSQL = clock + `
SELECT r.key, t.until, t.seen, t.token, t.fingerprint, t.attempt, t.owner, t.result, clock.now{+, t.scope, t.id}
FROM clock, ` + readParams

// lookSQL is readSQL with the origin, for people.
const lookSQL = clock + `
SELECT r.key, t.until, t.seen, t.token, t.fingerprint, t.attempt, t.owner, t.result, clock.now{+, t.scope, t.id}{@, t.origin}
FROM clock, ` + readParams

const readParams = `unnest((SELECT $2::uuid[])) AS r (key) LEFT JOIN {keys} AS t ON t.key = r.key`

// putSQL gives rows to new owners, if they are still as they were read. Each
// change of a row changes its token, its end, or whether it has an owner. A
// repeated claim keeps its token, and its end is not moved back.
const putSQL = clock + `, locked AS MATERIALIZED (
	SELECT t.key, r.span, r.fingerprint, r.owner, r.attempt, r.seen, r.keep, r.maker{@, r.origin}
	FROM clock, {keys} AS t, unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::bigint[]), (SELECT $5::bytea[]), (SELECT $6::integer[]), (SELECT $7::timestamptz[]), (SELECT $8::boolean[]),
		(SELECT $9::bigint[]), (SELECT $10::timestamptz[]), (SELECT $11::boolean[]), (SELECT $12::bigint[]){@, (SELECT $@::bytea[])}) AS r (key, span, fingerprint, owner, attempt, seen, keep, was_token, was_until, was_owned, maker{@, origin})
	WHERE t.key = r.key AND t.token IS NOT DISTINCT FROM r.was_token AND t.until = r.was_until AND (t.owner IS NOT NULL) = r.was_owned
	ORDER BY t.key FOR UPDATE OF t)
UPDATE {keys} AS t SET
	until = CASE WHEN r.keep THEN greatest(t.until, ` + span + `) ELSE ` + span + ` END,
	seen = coalesce(r.seen, clock.now),
	token = CASE WHEN r.keep THEN t.token WHEN r.owner IS NOT NULL THEN nextval({tokens}) ELSE r.maker END,
	fingerprint = r.fingerprint, attempt = r.attempt, owner = r.owner, result = NULL{@, origin = r.origin}
FROM locked AS r, clock WHERE t.key = r.key
RETURNING t.key, t.token, t.until, t.seen, clock.now`

// keepSQL stores results of keys that this transaction has made done.
const keepSQL = clock + `
UPDATE {keys} AS t SET result = r.result
FROM clock, unnest((SELECT $2::uuid[]), (SELECT $3::bytea[])) AS r (key, result) WHERE t.key = r.key
RETURNING true`

// heldSQL returns a row if one of the keys has a row that this transaction wrote
// itself, outside of savepoints. A transaction that claimed the keys has such
// rows.
const heldSQL = clock + `
SELECT true FROM clock, {keys} AS t WHERE t.key = ANY ($2::uuid[]) AND t.xmin = pg_current_xact_id_if_assigned()::xid LIMIT 1`

// optimisticSQL inserts the rows of keys that are expected to be new. It fails as
// a whole if one of them is known or its message is late. The row is then refused
// as a second row of its key, or as a row without an end. This is a third less
// server work than ON CONFLICT, which inserts each row in two steps. If it fails,
// it leaves dead rows.
const optimisticSQL = clock + `
INSERT INTO {keys} (key, until, seen, token, fingerprint{+, scope, id}{@, origin})
SELECT r.key, CASE WHEN r.deadline < clock.now THEN NULL ELSE ` + span + ` END, clock.now, r.maker, r.fingerprint{+, r.scope, r.id}{@, r.origin}
FROM clock, unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::bigint[]), (SELECT $5::timestamptz[]), (SELECT $6::bigint[]){+, (SELECT $7::bytea[]), (SELECT $8::bytea[])}{@, (SELECT $@::bytea[])})
	AS r (key, span, fingerprint, deadline, maker{+, scope, id}{@, origin})
ORDER BY r.key`

// optimisticSameSQL is optimisticSQL for keys with the same window, and without
// fingerprint, as most keys of one call are. The deadline is the earliest one. One or two
// ordered arrays cost a quarter less than six arrays and their sorting.
const optimisticSameSQL = clock + `
INSERT INTO {keys} (key, until, seen, token{+, scope, id}{@, origin})
` + sameRow + `
FROM clock, ` + sameParams

// sameRow is a row of optimisticSameSQL.
const sameRow = `SELECT r.key, CASE WHEN $5::timestamptz < clock.now THEN NULL WHEN $3::bigint IS NULL THEN 'infinity' ELSE clock.now + $3::bigint * interval '1 microsecond' END, clock.now, r.maker{+, r.scope, r.id}{@, r.origin}`

const sameParams = `unnest((SELECT $2::uuid[]), (SELECT $4::bigint[]){+, (SELECT $6::bytea[]), (SELECT $7::bytea[])}{@, (SELECT $@::bytea[])}) AS r (key, maker{+, scope, id}{@, origin})`

// optimisticMostSQL is optimisticSameSQL for keys of which some are known. It returns the
// rows that are there before it inserts the others, as readSQL does. It fails as a whole if
// another transaction inserts one of the others at the same time, or if a message is late.
// The two steps together are less work than ON CONFLICT and readSQL, and answer with fewer
// rows.
const optimisticMostSQL = clock + `, r AS MATERIALIZED (SELECT * FROM ` + sameParams + `), known AS MATERIALIZED (
	SELECT t.key, t.until, t.seen, t.token, t.fingerprint, t.attempt, t.owner, t.result{+, t.scope, t.id}
	FROM r JOIN {keys} AS t ON t.key = r.key), made AS (
	INSERT INTO {keys} (key, until, seen, token{+, scope, id}{@, origin})
	` + sameRow + `
	FROM clock, r WHERE NOT EXISTS (SELECT FROM known WHERE known.key = r.key)
	ORDER BY r.key)
SELECT t.key, t.until, t.seen, t.token, t.fingerprint, t.attempt, t.owner, t.result, clock.now{+, t.scope, t.id} FROM clock, known AS t`

// optimisticOneSQL is optimisticSQL for one key. A row of constants, instead of arrays and
// a common clock, halves the cost that it adds to the following statement.
const optimisticOneSQL = `
INSERT INTO {keys} (key, until, seen, fingerprint, token{+, scope, id}{@, origin})
VALUES ($2::uuid, CASE WHEN $6::timestamptz < clock_timestamp() THEN NULL ELSE coalesce(clock_timestamp() + $3::interval, 'infinity') END,
	CASE WHEN set_config('lock_timeout', $1, true) IS NOT NULL THEN clock_timestamp() END, $4::bigint, $5::bigint{+, $7::bytea, $8::bytea}{@, $@::bytea})`

// completeSQL makes the rows done that a token holds.
const completeSQL = clock + `, locked AS MATERIALIZED (
	SELECT t.key, r.span, r.result
	FROM clock, {keys} AS t, unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::bigint[]), (SELECT $5::bytea[])) AS r (key, token, span, result)
	WHERE t.key = r.key AND t.token = r.token AND t.owner IS NOT NULL
	ORDER BY t.key FOR UPDATE OF t)
UPDATE {keys} AS t SET until = ` + span + `, owner = NULL, result = r.result
FROM locked AS r, clock WHERE t.key = r.key
RETURNING t.key, t.until`

// releaseSQL ends claims. The row stays as released until it is cleaned up, or
// the key becomes Unknown.
const releaseSQL = clock + `, locked AS MATERIALIZED (
	SELECT t.key, r.unknown
	FROM clock, {keys} AS t, unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::boolean[])) AS r (key, token, unknown)
	WHERE t.key = r.key AND t.token = r.token AND t.owner IS NOT NULL
	ORDER BY t.key FOR UPDATE OF t)
UPDATE {keys} AS t SET
	until = CASE WHEN r.unknown THEN least(t.until, clock.now) ELSE '-infinity' END,
	seen = CASE WHEN r.unknown THEN t.seen ELSE clock.now END,
	owner = CASE WHEN r.unknown THEN set_byte(t.owner, 0, 1) END
FROM locked AS r, clock WHERE t.key = r.key
RETURNING t.key, t.until`

// extendSQL moves the ends of leases, except for leases that ended and left the
// key Unknown.
const extendSQL = clock + `, locked AS MATERIALIZED (
	SELECT t.key, r.span
	FROM clock, {keys} AS t, unnest((SELECT $2::uuid[]), (SELECT $3::bigint[]), (SELECT $4::bigint[])) AS r (key, token, span)
	WHERE t.key = r.key AND t.token = r.token AND t.owner IS NOT NULL AND NOT (get_byte(t.owner, 0) = 1 AND t.until <= clock.now)
	ORDER BY t.key FOR UPDATE OF t)
UPDATE {keys} AS t SET until = ` + span + `
FROM locked AS r, clock WHERE t.key = r.key
RETURNING t.key, t.until`

// resolveSQL ends the Unknown state of one key: as done if there is a span, and
// otherwise as absent. It removes the token, so that the late holder cannot
// complete it.
const resolveSQL = clock + `, r AS (SELECT $3::bigint AS span)
UPDATE {keys} AS t SET
	until = CASE WHEN $5::boolean THEN ` + span + ` ELSE '-infinity' END, seen = CASE WHEN $5 THEN t.seen ELSE clock.now END,
	owner = NULL, token = NULL, result = $4
FROM clock, r WHERE t.key = $2::uuid AND get_byte(t.owner, 0) = 1 AND t.until <= clock.now
RETURNING true`

// removeSQL deletes one key and empties its row.
const removeSQL = clock + `, was AS MATERIALIZED (
	SELECT t.key, t.owner IS NOT NULL OR t.until > clock.now AS live FROM clock, {keys} AS t WHERE t.key = $2::uuid FOR UPDATE OF t)
UPDATE {keys} AS t SET until = '-infinity', seen = clock.now, owner = NULL, token = NULL, result = NULL, fingerprint = NULL{+, scope = NULL, id = NULL}{@, origin = NULL}
FROM was, clock WHERE t.key = was.key
RETURNING was.live`

// listSQL is one page of a listing: $5 rows after the digest $2, or from the
// start if $3. The kind of the result replaces its data, and the last column is
// its length.
const listSQL = clock + `
SELECT t.key, t.until, t.seen, t.token, t.fingerprint, t.attempt, t.owner, substring(t.result FROM 1 FOR 1), clock.now{+, t.scope, t.id}{@, t.origin}, octet_length(t.result)
FROM clock, {keys} AS t
WHERE (t.key > $2::uuid OR $3::boolean) AND (t.owner IS NOT NULL OR t.until > clock.now) AND CASE $4::integer
	WHEN 0 THEN true
	WHEN 1 THEN t.owner IS NOT NULL AND NOT (get_byte(t.owner, 0) = 1 AND t.until <= clock.now)
	WHEN 2 THEN t.owner IS NULL
	ELSE get_byte(t.owner, 0) = 1 AND t.until <= clock.now END{+ AND ($6::bytea IS NULL OR t.scope = $6)}
ORDER BY t.key LIMIT $5`

// plans makes the server plan statements again when the table has grown. A prepared
// statement keeps its plan until the table is analyzed. If the table was small then, the
// plan may read all of it, which takes longer with each row.
type plans struct{ claimed atomic.Uint64 }

// grew counts claimed keys.
func (p *plans) grew(keys int) { p.claimed.Add(uint64(keys)) }

// firstPlans is how many keys the first plans are for, as a power of 2.
const firstPlans = 11

// text returns a statement with a comment that changes whenever the number of claimed keys
// has doubled.
func (p *plans) text(sql string) string {
	if n := bits.Len64(p.claimed.Load()); n > firstPlans {
		return sql + " /* plan " + strconv.Itoa(n) + " */"
	}
	return sql
}

// columns are the optional columns of the table of keys.
type columns struct{ ids, origins bool }

// newStatements fills in the names.
func newStatements(n Names, has columns) statements {
	names := strings.NewReplacer("{keys}", n.quoted("keys"), "{tokens}", pgschema.Names(n).Literal("tokens"), "{meta}", n.quoted("meta"))
	fill := func(sql string) string { return names.Replace(has.choose(sql)) }
	return statements{
		insert: fill(insertSQL), read: fill(readSQL), look: fill(lookSQL), put: fill(putSQL), keep: fill(keepSQL), held: fill(heldSQL), optimistic: fill(optimisticSQL), optimisticSame: fill(optimisticSameSQL), optimisticOne: fill(optimisticOneSQL), optimisticMost: fill(optimisticMostSQL), complete: fill(completeSQL),
		release: fill(releaseSQL), extend: fill(extendSQL), resolve: fill(resolveSQL), remove: fill(removeSQL), list: fill(listSQL), count: fill(countSQL),
		turn: fill(turnSQL), cleaned: fill(cleanedSQL),
	}
}

// choose keeps or removes the text in {+braces}, which concerns readable keys, and
// in {@braces}, which concerns origins. An origin is the last parameter, $@.
func (c columns) choose(sql string) string {
	sql = optional(optional(sql, "{+", c.ids), "{@", c.origins)
	last := 1
	for strings.Contains(sql, "$"+strconv.Itoa(last)) {
		last++
	}
	return strings.ReplaceAll(sql, "$@", "$"+strconv.Itoa(last))
}

// optional keeps or removes the text in braces that begin with a mark.
func optional(sql, mark string, keep bool) string {
	before, rest, found := strings.Cut(sql, mark)
	if !found {
		return sql
	}
	inside, after, _ := strings.Cut(rest, "}")
	if !keep {
		inside = ""
	}
	return before + inside + optional(after, mark, keep)
}
