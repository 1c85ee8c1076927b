package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/store/pgstore"
)

// Examine checks an outbox: what waits in it, who reads it, whether the server keeps its
// table small, and whether commits of writers last. It changes nothing. It blocks until
// the server has answered. Errors are those of [Open].
func Examine(ctx context.Context, dsn string, opts *Options) ([]doctor.Finding, error) {
	return examine(ctx, dsn, opts, time.Minute, mostHeld)
}

// examine warns of rows that wait, and of transactions that are open, for longer than
// patience, and of deleted rows that are kept for more transactions than held.
func examine(ctx context.Context, dsn string, opts *Options, patience time.Duration, held int64) (_ []doctor.Finding, err error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	conn, sql, err := once(ctx, dsn, o.Names)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	e := &examination{conn: conn, sql: sql, keep: o.Keep, patience: patience, held: held}
	for _, look := range []func(context.Context) error{e.waiting, e.writers, e.horizon, e.holders, e.prepared, e.table, e.identity, e.commits, e.log, e.wakeup} {
		if err := look(ctx); err != nil {
			return e.findings, fmt.Errorf("outbox: examine: %w", err)
		}
	}
	return e.findings, nil
}

// wakeup looks whether notifications can wake relays.
func (e *examination) wakeup(ctx context.Context) error {
	pooled, err := isPooled(ctx, e.conn)
	f := doctor.Finding{Subject: "outbox.notify", Found: "the relay is woken by NOTIFY, besides polling"}
	if pooled {
		f = doctor.Finding{Severity: doctor.Notice, Subject: f.Subject, Found: "a pooler is between: NOTIFY does not wake the relay, and it polls", Cost: "an idle relay finds a row up to a second later", Remedy: "nothing, or name the server itself in the store of the relay"}
	}
	e.findings = append(e.findings, f)
	return err
}

// once opens a connection and checks the tables.
func once(ctx context.Context, dsn string, names pgstore.Names) (*pgx.Conn, *statements, error) {
	pool, sql, err := connect(ctx, dsn, names)
	if err != nil {
		return nil, nil, err
	}
	config := pool.Config().ConnConfig
	pool.Close()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("outbox: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return conn, sql, nil
}

// examination is one run of Examine.
type examination struct {
	conn           *pgx.Conn
	sql            *statements
	keep, patience time.Duration
	held           int64 // see mostHeld
	slot           *slot // nil if relays read the table
	findings       []doctor.Finding
}

// judge adds a finding. It is Fine unless bad is set, which makes it a warning.
func (e *examination) judge(bad bool, subject, found, cost, remedy string) {
	severity := doctor.Fine
	if bad {
		severity = doctor.Warning
	}
	e.find(severity, subject, found, cost, remedy)
}

// find adds a finding.
func (e *examination) find(severity doctor.Severity, subject, found, cost, remedy string) {
	f := doctor.Finding{Severity: severity, Subject: subject, Found: found}
	if severity != doctor.Fine {
		f.Cost, f.Remedy = cost, remedy
	}
	e.findings = append(e.findings, f)
}

// waiting looks for the oldest row, and for shards with rows and no owner.
func (e *examination) waiting(ctx context.Context) error {
	var relays int
	if err := e.conn.QueryRow(ctx, e.sql.relays).Scan(&relays); err != nil {
		return err
	}
	shards, err := e.sql.states(ctx, e.conn)
	if err != nil {
		return err
	}
	var oldest time.Duration
	orphans, lacking := 0, 0
	for _, s := range shards {
		oldest = max(oldest, s.oldest)
		if s.lacks {
			lacking++
		}
		if s.owner == "" && s.oldest > e.patience {
			orphans++
		}
	}
	found := "no row waits"
	if oldest > 0 {
		found = "the oldest row waits for " + oldest.Round(time.Second).String()
	}
	e.judge(oldest > e.patience, "outbox.oldest", found, "consumers do not know of it yet", "look at the log of the relay, and at semel parked ls")
	if e.slot != nil {
		return nil // shards have no relays then
	}
	if lacking > 0 {
		e.judge(true, "outbox.shards", fmt.Sprintf("%d of %d shards are missing from %s: it was emptied or restored", lacking, shardCount, e.sql.shardTable), "their rows are not delivered", "start a relay, which adds them: semel outbox relay FILE; if one runs, its log says why it cannot")
		return nil
	}
	e.judge(orphans > 0, "outbox.shards", fmt.Sprintf("%d live relays, and %d shards without a relay whose rows wait for more than %s", relays, orphans, e.patience), "their rows are not delivered", "semel outbox relay FILE")
	return nil
}

// writers looks for long transactions that have written to the outbox.
func (e *examination) writers(ctx context.Context) error {
	var count int
	var oldest time.Duration
	var pid int32
	if err := e.conn.QueryRow(ctx, e.sql.longWriters, e.sql.table).Scan(&count, &oldest, &pid); err != nil {
		return err
	}
	found := fmt.Sprintf("%d transactions that write to it are open", count)
	if count > 0 {
		found += fmt.Sprintf(", the oldest for %s (pid %d)", oldest.Round(time.Second), pid)
	}
	e.judge(oldest > e.patience, "outbox.writers", found, "the relay reads the numbers of rows since then again and again, and the server cannot remove deleted rows", terminate(pid))
	return nil
}

func terminate(pid int32) string { return fmt.Sprintf("end it: SELECT pg_terminate_backend(%d)", pid) }

// horizonSQL returns the oldest transaction of this database whose snapshot or id keeps the
// server from removing deleted rows, and how many sessions hide when theirs began. A
// vacuum does not hold anything up.
const horizonSQL = `WITH held AS (
	SELECT a.pid, extract(epoch FROM clock_timestamp() - a.xact_start) AS age, concat_ws(', ', nullif(a.application_name, ''), 'user ' || a.usename, a.state) AS who
	FROM pg_stat_activity AS a
	WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
		AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND a.pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum))
SELECT coalesce(a.pid, 0), coalesce(a.age, 0)::float8, coalesce(a.who, ''), (SELECT count(*) FROM held WHERE age IS NULL)
FROM (SELECT) AS one LEFT JOIN (SELECT * FROM held WHERE age IS NOT NULL ORDER BY age DESC LIMIT 1) AS a ON true`

// horizon looks for long transactions of any session. They need not touch the outbox.
func (e *examination) horizon(ctx context.Context) error {
	var pid int32
	var seconds float64
	var who string
	var hidden int
	if err := e.conn.QueryRow(ctx, horizonSQL).Scan(&pid, &seconds, &who, &hidden); err != nil {
		return err
	}
	age := time.Duration(seconds * float64(time.Second))
	const subject, cost = "outbox.horizon", "the server cannot remove deleted rows, and the relay reads past them"
	switch {
	case age > e.patience:
		e.judge(true, subject, fmt.Sprintf("a transaction is open for %s (pid %d, %s)", age.Round(time.Second), pid, who), cost, terminate(pid))
	case hidden > 0:
		e.find(doctor.Notice, subject, fmt.Sprintf("%d sessions hide from this role when their transactions began", hidden), "if one is open for long, "+cost, "GRANT pg_read_all_stats to this role")
	default:
		e.judge(false, subject, "no transaction is open for long", "", "")
	}
	return nil
}

// holdersSQL returns who else keeps the server from removing deleted rows: a standby server
// that reports its queries, or a replication slot with the report of one. It returns the one
// with the oldest transaction, and how many transactions have begun since.
const holdersSQL = `SELECT * FROM (
	SELECT 'standby', coalesce(nullif(application_name, ''), client_addr::text, 'pid ' || pid), true, age(backend_xmin) AS age FROM pg_stat_replication WHERE backend_xmin IS NOT NULL
	UNION ALL
	SELECT 'slot', slot_name, active, age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS h ORDER BY age DESC LIMIT 1`

// mostHeld is how many transactions may begin before their deleted rows can be removed.
const mostHeld = 1_000_000

// holders looks for standby servers and replication slots that hold the horizon.
func (e *examination) holders(ctx context.Context) error {
	var kind, name string
	var active bool
	var age int64
	const subject = "outbox.standbys"
	switch err := e.conn.QueryRow(ctx, holdersSQL).Scan(&kind, &name, &active, &age); {
	case errors.Is(err, pgx.ErrNoRows):
		e.judge(false, subject, "no standby server and no replication slot keeps deleted rows", "", "")
		return nil
	case err != nil:
		return err
	}
	found, remedy := fmt.Sprintf("%s %s keeps rows that were deleted in the last %d transactions", kind, name, age), "end the long query on the standby server, or set hot_standby_feedback = off there"
	if kind == "slot" && !active {
		found += ", and no standby server uses it"
		remedy = "if its standby server is gone: SELECT pg_drop_replication_slot('" + strings.ReplaceAll(name, "'", "''") + "')"
	}
	e.judge(age > e.held, subject, found, "the server cannot remove deleted rows, and the relay reads past them", remedy)
	return nil
}

// preparedSQL returns the prepared transactions of this database: their number, the age of
// the oldest in seconds, and its name.
const preparedSQL = `SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(prepared)), 0)::float8, coalesce((array_agg(gid ORDER BY prepared))[1], '')
FROM pg_prepared_xacts WHERE database = current_database()`

// prepared looks for prepared transactions, which no session ends.
func (e *examination) prepared(ctx context.Context) error {
	var count int
	var seconds float64
	var name string
	if err := e.conn.QueryRow(ctx, preparedSQL).Scan(&count, &seconds, &name); err != nil {
		return err
	}
	age := time.Duration(seconds * float64(time.Second))
	found := fmt.Sprintf("%d prepared transactions", count)
	if count > 0 {
		found += fmt.Sprintf(", the oldest for %s (%s)", age.Round(time.Second), name)
	}
	name = "'" + strings.ReplaceAll(name, "'", "''") + "'"
	e.judge(age > e.patience, "outbox.prepared", found, "the server cannot remove deleted rows; rows of the outbox that it wrote are not delivered", "end it: COMMIT PREPARED "+name+", or ROLLBACK PREPARED "+name)
	return nil
}

// tableSQL returns whether autovacuum is on for the table and for its long values, the
// share of changed rows at which it runs, and the deleted rows of both.
const tableSQL = `SELECT current_setting('autovacuum')::boolean AND coalesce((SELECT option_value::boolean FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_enabled'), true),
	coalesce((SELECT option_value::boolean FROM pg_options_to_table(t.reloptions) WHERE option_name = 'autovacuum_enabled'), true),
	coalesce((SELECT option_value::float8 FROM pg_options_to_table(c.reloptions) WHERE option_name = 'autovacuum_vacuum_scale_factor'), current_setting('autovacuum_vacuum_scale_factor')::float8),
	coalesce(pg_stat_get_dead_tuples(c.oid), 0) + coalesce(pg_stat_get_dead_tuples(t.oid), 0)
FROM pg_class AS c LEFT JOIN pg_class AS t ON t.oid = c.reltoastrelid WHERE c.oid = $1::text::regclass`

// table looks at what keeps the table small.
func (e *examination) table(ctx context.Context) error {
	var vacuums, long bool
	var share float64
	var dead int64
	if err := e.conn.QueryRow(ctx, tableSQL, e.sql.table).Scan(&vacuums, &long, &share, &dead); err != nil {
		return err
	}
	const subject, cost = "outbox.autovacuum", "the relay becomes slow, because it reads past deleted rows"
	alter := "ALTER TABLE " + e.sql.table
	switch {
	case !vacuums:
		e.judge(true, subject, "autovacuum is off", cost, alter+" RESET (autovacuum_enabled), and set autovacuum = on in postgresql.conf")
	case !long:
		e.judge(true, subject, "autovacuum is off for the long values of the table", "deleted payloads stay on the disk", alter+" RESET (toast.autovacuum_enabled)")
	case share > 0.05:
		e.find(doctor.Notice, subject, fmt.Sprintf("autovacuum runs when %.0f%% of the rows have changed", 100*share), cost, alter+" SET (autovacuum_vacuum_scale_factor = 0.01)")
	default:
		e.judge(dead > 1_000_000, subject, fmt.Sprintf("autovacuum is on, %d deleted rows are in the table", dead), cost, "look for transactions that are open for long, and for replication slots that are behind")
	}
	return nil
}

// identitySQL returns the replica identity of the table, and whether its deletions are
// published.
const identitySQL = `SELECT c.relreplident::text, EXISTS (
	SELECT FROM pg_publication AS p JOIN pg_publication_tables AS t ON t.pubname = p.pubname
	WHERE p.pubdelete AND t.schemaname = (SELECT nspname FROM pg_namespace WHERE oid = c.relnamespace) AND t.tablename = c.relname)
FROM pg_class AS c WHERE c.oid = $1::text::regclass`

// identity looks at what logical replication needs of the table.
func (e *examination) identity(ctx context.Context) error {
	var identity string
	var published bool
	if err := e.conn.QueryRow(ctx, identitySQL, e.sql.table).Scan(&identity, &published); err != nil {
		return err
	}
	const subject = "outbox.replica_identity"
	remedy := "ALTER TABLE " + e.sql.table + " REPLICA IDENTITY DEFAULT"
	switch {
	case identity == "n" && published:
		e.find(doctor.Broken, subject, "nothing, and a publication has the table", "the server refuses to delete rows, so nothing is acknowledged", remedy)
	case identity == "n":
		e.judge(true, subject, "nothing", "when a publication has the table, the server refuses to delete rows", remedy)
	case identity == "f":
		e.judge(true, subject, "full", "each deletion writes the whole row to the log of the server, and from version 18 on it may refuse to delete rows of a published table", remedy)
	case identity == "i":
		e.judge(false, subject, "an index", "", "")
	default:
		e.judge(false, subject, "the primary key", "", "")
	}
	return nil
}

// commitsSQL returns synchronous_commit of this session, and for which roles that may write
// to the outbox a setting turns it off; "" is all roles.
const commitsSQL = `SELECT current_setting('synchronous_commit'), ARRAY(
	SELECT coalesce(r.rolname, '') FROM pg_db_role_setting AS s LEFT JOIN pg_roles AS r ON r.oid = s.setrole
	WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
		AND EXISTS (SELECT FROM unnest(s.setconfig) AS c WHERE c ~* '^synchronous_commit=(off|false|no|0)$')
		AND (s.setrole = 0 OR r.oid IS NOT NULL AND has_table_privilege(r.oid, $1::text::regclass, 'INSERT'))
	ORDER BY 1)`

// commits looks at the durability of commits.
func (e *examination) commits(ctx context.Context) error {
	var commit string
	var roles []string
	if err := e.conn.QueryRow(ctx, commitsSQL, e.sql.table).Scan(&commit, &roles); err != nil {
		return err
	}
	found, remedy := commit, "synchronous_commit = on for the roles that write to the outbox"
	if commit != "off" && len(roles) > 0 {
		for i, role := range roles {
			if roles[i] = "role " + role; role == "" {
				roles[i] = "all roles in this database"
			}
		}
		found += ", and off for " + strings.Join(roles, ", ")
		remedy = "ALTER ROLE NAME RESET synchronous_commit, or the same with IN DATABASE, or ALTER DATABASE; psql shows the settings with \\drds"
	}
	e.judge(commit == "off" || len(roles) > 0, "synchronous_commit", found, "a row that was delivered may vanish in a crash of the server", remedy)
	return nil
}

// logSQL returns whether this role may keep rows, and the number of partitions. Then come
// the days after today that have one, and the hours for which the oldest should be gone.
const logSQL = `SELECT has_function_privilege($2 || '(interval, integer)', 'EXECUTE') AND has_table_privilege($1, 'INSERT'), count(d.day),
	coalesce(max(d.day) - (now() AT TIME ZONE 'UTC')::date, -1),
	coalesce(extract(epoch FROM now() AT TIME ZONE 'UTC' - $3::bigint * interval '1 microsecond' - (min(d.day) + 1)) / 3600, 0)::float8
FROM (SELECT) AS one LEFT JOIN (
	SELECT to_date(right(c.relname, 8), 'YYYYMMDD') AS day FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
	WHERE i.inhparent = to_regclass($1) AND c.relname ~ '_\d{8}$') AS d ON true`

// log looks at the partitions of rows that are kept.
func (e *examination) log(ctx context.Context) error {
	var there, may bool
	if err := e.conn.QueryRow(ctx, e.sql.check, e.sql.log).Scan(&there); err != nil {
		return err
	}
	const subject = "outbox.log"
	if !there {
		if e.keep > 0 {
			return logFailure(e.sql, pgstore.ErrSchema)
		}
		return nil
	}
	var count, ahead int
	var overdue float64
	if err := e.conn.QueryRow(ctx, logSQL, e.sql.log, e.sql.maintainName, e.keep.Microseconds()).Scan(&may, &count, &ahead, &overdue); err != nil {
		return err
	}
	by := fmt.Sprintf("SELECT %s('%d seconds')", e.sql.maintainName, int(e.keep.Seconds()))
	switch {
	case e.keep == 0 && count > 0:
		e.find(doctor.Notice, subject, fmt.Sprintf("%d partitions of delivered rows, and this pipeline keeps none", count), "no relay drops them", "drop the partitions of "+e.sql.log+", or set keep of the source")
	case e.keep == 0:
	case !may:
		e.find(doctor.Broken, subject, "this role lacks a right to keep delivered rows", "the relay does not start", "GRANT INSERT, SELECT ON "+e.sql.log+" and EXECUTE ON FUNCTION "+e.sql.maintainName+" to this role")
	case count == 0:
		e.judge(false, subject, "no partition yet: a relay makes them when it starts", "", "")
	case ahead < 1:
		e.judge(true, subject, "no partition for tomorrow", "without a partition nothing is acknowledged", by+" makes it, or says why not")
	case overdue > 1:
		e.judge(true, subject, fmt.Sprintf("%d partitions, the oldest should be gone for %.0f hours", count, overdue), "delivered rows take space on the disk", by+" drops it, or says why not")
	default:
		e.judge(false, subject, fmt.Sprintf("%d partitions", count), "", "")
	}
	return nil
}

// sampleSize is the number of rows that Sample reads at a time.
const sampleSize = 500

// Sample hands the rows of an outbox to fn, in the order of their numbers, until fn
// returns false, there are no more, or ctx ends, which is not an error. It changes
// nothing. Errors are those of [Open].
func Sample(ctx context.Context, dsn string, names pgstore.Names, fn func(*semel.Message) bool) (err error) {
	conn, sql, err := once(ctx, dsn, names)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	for after := int64(0); ; {
		rows, err := conn.Query(ctx, sql.sample, after, sampleSize)
		if err != nil {
			return ended(ctx, err)
		}
		list, err := (&answer{}).take(rows)
		if err != nil {
			return ended(ctx, err)
		}
		for _, r := range list {
			if !fn(&r.item.Message) {
				return nil
			}
			after = r.seq
		}
		if len(list) == 0 {
			return nil
		}
	}
}

// ended returns an error, unless ctx has ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("outbox: sample: %w", err)
}
