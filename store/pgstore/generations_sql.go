package pgstore

// guardedClock is the clock of a statement in generations. It has no row, and
// the statement does nothing, if the phase is over. That it names the lower
// table gets the lock on it; {keys} is the upper table.
const guardedClock = `WITH clock AS MATERIALIZED (
	SELECT clock_timestamp() AS now, set_config('lock_timeout', $1, true)
	WHERE (SELECT phase % 6 = {mine} FROM {phase}) AND NOT EXISTS (SELECT FROM {lower} WHERE false))`

const askSQL = clock + `
SELECT phase FROM clock, {phase}`

// A mark says of a key in the lower table that its record is in the upper one.
// No other row has this owner, and none of the statements on one table takes a
// mark for what it looks for.
const markOwner = `'\x02'::bytea`

// record says of a row t that it is no mark.
const record = `t.owner IS DISTINCT FROM ` + markOwner

// insertAboveSQL is insertSQL for a phase without overlap: the lower table is
// frozen, and a look at it is enough.
const insertAboveSQL = clock + `
INSERT INTO {keys} (key, until, seen, token, fingerprint, owner{+, scope, id})
SELECT r.key, ` + span + `, clock.now, CASE WHEN r.owner IS NOT NULL THEN nextval({tokens}) ELSE r.maker END, r.fingerprint, r.owner{+, r.scope, r.id}
FROM clock, ` + insertParams + `
WHERE (r.deadline IS NULL OR r.deadline >= clock.now) AND NOT EXISTS (SELECT FROM {lower} AS t WHERE t.key = r.key)
ORDER BY r.key
ON CONFLICT (key) DO NOTHING
RETURNING key, token, seen`

// insertMarkedSQL is insertSQL for a phase in which generations overlap: the
// marks first, in the order of keys, then the records of those that were new
// below. If one is known above after all, its mark is right all the same.
const insertMarkedSQL = clock + `, below AS (
	INSERT INTO {lower} (key, until, seen, owner)
	SELECT r.key, '-infinity', clock.now, ` + markOwner + `
	FROM clock, unnest((SELECT $2::uuid[]), (SELECT $6::timestamptz[])) AS r (key, deadline)
	WHERE r.deadline IS NULL OR r.deadline >= clock.now
	ORDER BY r.key
	ON CONFLICT (key) DO NOTHING
	RETURNING key)
INSERT INTO {keys} (key, until, seen, token, fingerprint, owner{+, scope, id})
SELECT r.key, ` + span + `, clock.now, CASE WHEN r.owner IS NOT NULL THEN nextval({tokens}) ELSE r.maker END, r.fingerprint, r.owner{+, r.scope, r.id}
FROM clock, ` + insertParams + `
WHERE CASE WHEN clock.now IS NULL THEN false ELSE r.key IN (SELECT key FROM below) END
ORDER BY r.key
ON CONFLICT (key) DO NOTHING
RETURNING key, token, seen`

// readBothSQL is readSQL: the record above, or else the one below.
const readBothSQL = clock + `
SELECT r.key, coalesce(u.until, t.until), coalesce(u.seen, t.seen), coalesce(u.token, t.token), coalesce(u.fingerprint, t.fingerprint),
	coalesce(u.attempt, t.attempt), coalesce(u.owner, t.owner), coalesce(u.result, t.result), clock.now{+, coalesce(u.scope, t.scope), coalesce(u.id, t.id)}
FROM clock, unnest((SELECT $2::uuid[])) AS r (key)
LEFT JOIN {keys} AS u ON u.key = r.key
LEFT JOIN {lower} AS t ON u.key IS NULL AND t.key = r.key AND ` + record

const columns = `key, until, seen, token, fingerprint, attempt, owner, result{+, scope, id}`

// liftSQL copies records of keys from the lower table, which is frozen.
const liftSQL = clock + `
INSERT INTO {keys} (` + columns + `)
SELECT ` + columns + `
FROM clock, {lower} AS t WHERE t.key = ANY ($2::uuid[]) AND ` + record + `
ORDER BY key
ON CONFLICT (key) DO NOTHING
RETURNING key`

// liftMarkedSQL does so while claims of the phase before may still change them.
const liftMarkedSQL = clock + `, locked AS MATERIALIZED (
	SELECT t.* FROM clock, {lower} AS t WHERE t.key = ANY ($2::uuid[]) AND ` + record + `
	ORDER BY t.key FOR UPDATE OF t), marked AS (
	UPDATE {lower} AS t SET until = '-infinity', owner = ` + markOwner + `, token = NULL, fingerprint = NULL, attempt = NULL, result = NULL{+, scope = NULL, id = NULL}
	FROM locked WHERE t.key = locked.key)
INSERT INTO {keys} (` + columns + `)
SELECT ` + columns + `
FROM locked
ORDER BY key
ON CONFLICT (key) DO NOTHING
RETURNING key`

// keepBothSQL is keepSQL for a transaction whose keys may be of this phase or
// of the one before. It works whatever phase it is: nobody else sees its rows.
const keepBothSQL = clock + `, above AS (
	UPDATE {keys} AS t SET result = r.result
	FROM clock, unnest((SELECT $2::uuid[]), (SELECT $3::bytea[])) AS r (key, result) WHERE t.key = r.key
	RETURNING t.key), below AS (
	UPDATE {lower} AS t SET result = r.result
	FROM clock, unnest((SELECT $2::uuid[]), (SELECT $3::bytea[])) AS r (key, result)
	WHERE t.key = r.key AND ` + record + ` AND NOT EXISTS (SELECT FROM {keys} AS u WHERE u.key = r.key)
	RETURNING t.key)
SELECT true FROM above UNION ALL SELECT true FROM below`

// heldBothSQL is heldSQL, likewise. A mark is written by who claims.
const heldBothSQL = clock + `
SELECT true FROM clock, {keys} AS t WHERE t.key = ANY ($2::uuid[]) AND t.xmin = pg_current_xact_id_if_assigned()::xid
UNION ALL
SELECT true FROM clock, {lower} AS t WHERE t.key = ANY ($2::uuid[]) AND t.xmin = pg_current_xact_id_if_assigned()::xid`

// removeBothSQL is removeSQL, likewise. A record that is lifted meanwhile is
// found by the next call.
const removeBothSQL = clock + `, was AS MATERIALIZED (
	SELECT t.key, t.owner IS NOT NULL OR t.until > clock.now AS live FROM clock, {keys} AS t WHERE t.key = $2::uuid FOR UPDATE OF t), below AS MATERIALIZED (
	SELECT t.key, t.owner IS NOT NULL OR t.until > clock.now AS live FROM clock, {lower} AS t WHERE t.key = $2::uuid AND ` + record + ` FOR UPDATE OF t), removed AS (
	UPDATE {keys} AS t SET ` + removedRow + ` FROM was, clock WHERE t.key = was.key RETURNING was.live), removedBelow AS (
	UPDATE {lower} AS t SET ` + removedRow + ` FROM below, clock WHERE t.key = below.key RETURNING below.live)
SELECT live FROM removed UNION ALL SELECT live FROM removedBelow`

// bothTables stands in a listing where one table would.
const bothTables = `(SELECT * FROM {keys} UNION ALL
	SELECT t.* FROM {lower} AS t WHERE ` + record + ` AND NOT EXISTS (SELECT FROM {keys} AS u WHERE u.key = t.key))`

const bothSampled = `(SELECT * FROM {keys} TABLESAMPLE SYSTEM ($2) UNION ALL
	SELECT t.* FROM {lower} AS t TABLESAMPLE SYSTEM ($2) WHERE ` + record + ` AND NOT EXISTS (SELECT FROM {keys} AS u WHERE u.key = t.key)) AS t`
