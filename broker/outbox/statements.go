package outbox

import (
	"strings"

	"github.com/semel-dev/semel/store/pgstore"
)

// shardCount is the number of shards of every outbox.
const shardCount = 64

// statements are the statements on the tables of one outbox. Each is a short
// transaction of its own.
type statements struct {
	// Quoted names: of the outbox, and of the tables of rows that are kept, of the pipeline
	// that the outbox belongs to, and of shards.
	table, log, pipeline, shardTable        string
	maintainName                            string
	fast, late, lateUnheld                  string
	rows, writers, remove                   string
	look, live, renew, take, release, leave string
	check, relays, shards, longWriters      string
	sample, lag, find                       string
	keep, keepRows, maintain, findKept      string
	addShards, bound, bind, retarget        string
}

// columns are what a message is made of.
const columns = `o.shard, o.seq, o.id, o.aggregate, o.topic, o.payload, o.headers::text, o.created`

// behindShard are the rows of a shard behind a number, in their order. It compares rows instead
// of shards, so that the planner cannot choose the primary key. A walk along the key reads the
// rows of all shards for each shard, and with millions of rows looks cheaper.
const behindShard = `FROM {outbox} AS o WHERE (o.shard, o.seq) > (s.shard, s.next) AND (o.shard, o.seq) <= (s.shard, 9223372036854775807) AND o.deliver_at IS NULL ORDER BY o.shard, o.seq LIMIT `

// fastSQL reads the rows of shards behind the ones that were read last. The planner knows
// $4, the greatest limit, and not those of the shards; without it, the estimate is so high
// that the server compiles the statement each time (jit).
const fastSQL = `SELECT ` + columns + `
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS s (shard, next, most)
CROSS JOIN LATERAL (
	SELECT * FROM (SELECT * ` + behindShard + `$4) AS o ORDER BY o.shard, o.seq LIMIT s.most
) AS o`

// lateSQL finds rows that an earlier read has passed: rows of transactions that committed later,
// and rows whose time has come. It finds the rows in flight too. It compares shard and number,
// because with rows, as in fastSQL, the estimate is too high.
const lateSQL = `SELECT s.shard, o.seq, o.due
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS s (shard, settled, next, most, due)
CROSS JOIN LATERAL (
	(SELECT l.seq, false AS due FROM {outbox} AS l WHERE l.shard = s.shard AND l.deliver_at IS NULL AND l.seq > s.settled AND l.seq <= s.next{unheld l} ORDER BY l.seq LIMIT s.most)
	UNION ALL
	(SELECT d.seq, true FROM {outbox} AS d WHERE d.shard = s.shard AND d.deliver_at <= statement_timestamp(){unheld d} ORDER BY d.deliver_at, d.seq LIMIT s.due)
) AS o`

// lateOf returns lateSQL, without the rows of the aggregates in $6 if some are held. Without
// that, the server reads only the indexes.
func lateOf(held bool) string {
	l, d := "", ""
	if held {
		l, d = unheld("l", "$6"), unheld("d", "$6")
	}
	return strings.NewReplacer("{unheld l}", l, "{unheld d}", d).Replace(lateSQL)
}

// unheld is the condition that the aggregate of a row is not in a list.
func unheld(table, list string) string {
	return ` AND (` + table + `.aggregate IS NULL OR ` + table + `.aggregate <> ALL (` + list + `::text[]))`
}

// rowsSQL reads rows by their numbers.
const rowsSQL = `SELECT ` + columns + ` FROM {outbox} AS o WHERE o.seq = ANY ($1::bigint[]) ORDER BY o.seq`

// writersSQL returns the transactions that may have written to the outbox and have
// not ended. An insert holds this lock before it takes a number, and until its
// transaction has become visible.
const writersSQL = `SELECT DISTINCT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = $1::text::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND mode = 'RowExclusiveLock' AND granted`

// removeSQL deletes rows whose shards the relay still owns, under the epoch in which
// it read them. It compares the id too: after TRUNCATE … RESTART IDENTITY another message
// may have the number.
const removeSQL = `DELETE FROM {outbox} AS o
USING unnest($2::bigint[], $3::smallint[], $4::bigint[], $5::uuid[]) AS a (seq, shard, epoch, id), {shards} AS s
WHERE o.seq = a.seq AND o.id = a.id AND s.shard = a.shard AND s.owner = $1 AND s.epoch = a.epoch`

// keepSQL moves such rows to the log, with how many attempts each took and why it was
// parked or dropped, if it was.
const keepSQL = `WITH gone AS (
	DELETE FROM {outbox} AS o
	USING unnest($2::bigint[], $3::smallint[], $4::bigint[], $5::uuid[], $6::integer[], $7::text[]) AS a (seq, shard, epoch, id, attempts, failure), {shards} AS s
	WHERE o.seq = a.seq AND o.id = a.id AND s.shard = a.shard AND s.owner = $1 AND s.epoch = a.epoch
	RETURNING o.*, a.attempts, a.failure)
` + toLog

// toLog moves the rows in gone. $1 is the relay.
const toLog = `INSERT INTO {log} (seq, id, created, delivered, deliver_at, attempts, aggregate, topic, relay, failure, headers, payload)
SELECT seq, id, created, clock_timestamp(), deliver_at, attempts, aggregate, topic, $1, nullif(failure, ''), headers, payload FROM gone`

// maintainSQL makes the partitions of the log and drops old ones. It returns why one could
// not be dropped.
const maintainSQL = `SELECT {maintain}($1::bigint * interval '1 microsecond')`

// lease is the end of a lease that begins now.
const lease = `clock_timestamp() + $2::bigint * interval '1 microsecond'`

const (
	// lookSQL returns how many other relays live, whether a shard is free, and how many
	// shards there are.
	lookSQL = `SELECT (SELECT count(*) FROM {relays} WHERE until > clock_timestamp() AND owner <> $1), EXISTS (SELECT FROM {shards} WHERE until <= clock_timestamp()), (SELECT count(*) FROM {shards})`
	// addShardsSQL adds the shards that are missing. They are free when all leases that began
	// before have ended, because their owners may not know yet of the loss.
	addShardsSQL = `INSERT INTO {shards} (shard, until) SELECT n, ` + lease + ` FROM generate_series(0, $1::int - 1) AS n ON CONFLICT (shard) DO NOTHING`
	// liveSQL says that the relay lives, and forgets those that do not.
	liveSQL = `WITH gone AS (DELETE FROM {relays} WHERE until < clock_timestamp() - interval '1 hour' AND owner <> $1)
INSERT INTO {relays} (owner, until) VALUES ($1, ` + lease + `) ON CONFLICT (owner) DO UPDATE SET until = excluded.until`
	// renewSQL extends leases, also one that ended, as long as there is no other owner.
	renewSQL = `UPDATE {shards} AS s SET until = ` + lease + `
FROM unnest($3::smallint[], $4::bigint[]) AS m (shard, epoch)
WHERE s.shard = m.shard AND s.epoch = m.epoch AND s.owner = $1
RETURNING s.shard`
	// takeSQL takes free shards, except some.
	takeSQL = `UPDATE {shards} AS s SET owner = $1, epoch = s.epoch + 1, until = ` + lease + `
FROM (SELECT f.shard FROM {shards} AS f WHERE f.until <= clock_timestamp() AND f.shard <> ALL ($4::smallint[]) ORDER BY f.until, f.shard LIMIT $3 FOR UPDATE SKIP LOCKED) AS f
WHERE s.shard = f.shard
RETURNING s.shard, s.epoch`
	// releaseSQL gives shards back.
	releaseSQL = `UPDATE {shards} AS s SET owner = NULL, until = '-infinity'
FROM unnest($2::smallint[], $3::bigint[]) AS m (shard, epoch)
WHERE s.shard = m.shard AND s.epoch = m.epoch AND s.owner = $1`
	// leaveSQL says that the relay is gone, and gives all its shards back.
	leaveSQL = `WITH gone AS (DELETE FROM {relays} WHERE owner = $1)
UPDATE {shards} SET owner = NULL, until = '-infinity' WHERE owner = $1`
)

// checkSQL reports whether a table exists. A migration creates all of them.
const checkSQL = `SELECT to_regclass($1) IS NOT NULL`

const (
	// boundSQL returns the pipeline that the outbox belongs to, and its target. bindSQL sets
	// both unless they are set. retargetSQL changes the target $2 of the pipeline $1 to $3.
	boundSQL    = `SELECT pipeline, target FROM {pipeline}`
	bindSQL     = `INSERT INTO {pipeline} (pipeline, target) VALUES ($1, $2) ON CONFLICT (one) DO NOTHING`
	retargetSQL = `UPDATE {pipeline} SET target = $3, since = clock_timestamp() WHERE pipeline = $1 AND target = $2`
)

const (
	// relaysSQL returns the number of live relays.
	relaysSQL = `SELECT count(*) FROM {relays} WHERE until > clock_timestamp()`
	// shardsSQL returns the epoch and the owner of each shard, and for how many seconds its
	// oldest row waits: by the indexes, however many wait. A shard that is missing from the
	// table has no owner. Rows have no age if their time is infinite, and at most 99 years.
	shardsSQL = `SELECT s.shard, coalesce(t.epoch, 0), coalesce(CASE WHEN t.until > clock_timestamp() THEN t.owner END, ''), t.shard IS NULL,
	least(greatest(CASE WHEN isfinite(o.created) THEN extract(epoch FROM clock_timestamp() - o.created) END, CASE WHEN isfinite(d.deliver_at) THEN extract(epoch FROM clock_timestamp() - d.deliver_at) END, 0), 99 * 365.0 * 86400)::float8
FROM (SELECT n::smallint AS shard, 0 AS next FROM generate_series(0, $1::int - 1) AS n) AS s
LEFT JOIN {shards} AS t ON t.shard = s.shard
LEFT JOIN LATERAL (SELECT o.created ` + behindShard + `1) AS o ON true
LEFT JOIN LATERAL (SELECT l.deliver_at FROM {outbox} AS l WHERE l.shard = s.shard AND l.deliver_at <= statement_timestamp() ORDER BY l.deliver_at, l.seq LIMIT 1) AS d ON true
ORDER BY s.shard`
	// longWritersSQL returns the number of open transactions that may have written, and
	// the age and process of the oldest.
	longWritersSQL = `SELECT count(*), coalesce(max(now() - a.xact_start), interval '0'), coalesce((array_agg(a.pid ORDER BY a.xact_start))[1], 0)
FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE a.datname = current_database() AND l.locktype = 'relation' AND l.relation = $1::text::regclass AND l.mode = 'RowExclusiveLock' AND l.granted`
	// lagSQL counts rows of shards, and says whether one may have more. A count of all rows of a
	// long backlog would take long.
	lagSQL = `SELECT coalesce(sum(n), 0)::bigint, coalesce(bool_or(n >= $2::bigint), false) FROM (
	SELECT count(*) AS n FROM (SELECT shard, 0 AS next FROM unnest($1::smallint[]) AS s (shard)) AS s
	CROSS JOIN LATERAL (SELECT ` + behindShard + `$2::bigint) AS o GROUP BY s.shard
) AS counts`
	// sampleSQL reads rows in their order.
	sampleSQL = `SELECT ` + columns + ` FROM {outbox} AS o WHERE o.seq > $1 ORDER BY o.seq LIMIT $2`
)

func newStatements(names pgstore.Names) (*statements, error) {
	var tables []string // {word}, name, and so on
	for _, name := range []string{"outbox", "outbox_shards", "outbox_relays", "outbox_log", "outbox_log_maintain", "outbox_pipeline"} {
		table, err := names.Table(name)
		if err != nil {
			return nil, err
		}
		tables = append(tables, "{"+name[strings.LastIndex(name, "_")+1:]+"}", table)
	}
	fill := strings.NewReplacer(tables...).Replace
	return &statements{
		table: fill("{outbox}"), log: fill("{log}"), pipeline: fill("{pipeline}"), shardTable: fill("{shards}"), maintainName: fill("{maintain}"), fast: fill(fastSQL), late: fill(lateOf(false)), lateUnheld: fill(lateOf(true)), rows: fill(rowsSQL), writers: writersSQL, remove: fill(removeSQL),
		look: fill(lookSQL), live: fill(liveSQL), renew: fill(renewSQL), take: fill(takeSQL), release: fill(releaseSQL), leave: fill(leaveSQL),
		check: checkSQL, relays: fill(relaysSQL), shards: fill(shardsSQL), longWriters: longWritersSQL, sample: fill(sampleSQL), lag: fill(lagSQL), find: fill(findSQL),
		keep: fill(keepSQL), keepRows: fill(keepRowsSQL), maintain: fill(maintainSQL), findKept: fill(findKeptSQL),
		addShards: fill(addShardsSQL), bound: fill(boundSQL), bind: fill(bindSQL), retarget: fill(retargetSQL),
	}, nil
}
