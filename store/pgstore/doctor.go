package pgstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/doctor"
)

// Examine checks whether the server is configured to keep the store's promise. Each
// check yields one finding, even if all is well. An error means that the examination
// itself failed; it comes with the findings so far. Examine makes about ten checks on
// one connection, with statements that change nothing. It does not judge what the role may not
// see. Without pg_monitor, for example, a role may not see other sessions.
func (s *Store) Examine(ctx context.Context) ([]doctor.Finding, error) {
	if err := s.enter(ctx, "examine", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: examine: %w", failure(err))
	}
	defer conn.Release()
	e := &examination{Store: s, conn: conn}
	for _, look := range []func(context.Context) error{
		e.server, e.settings, e.standbys, e.pooler, e.privileges, e.tables, e.emptied, e.cleaning, e.form, e.transactions, e.clock,
	} {
		if err := look(ctx); err != nil {
			return e.findings, fmt.Errorf("pgstore: examine: %w", failure(err))
		}
	}
	return e.findings, nil
}

// ExamineServer checks the server of a database whose keys are not used, such as one that
// only has an outbox. It needs no table, and no right on one. Otherwise it is as Examine.
// The address is that of [Connect].
func ExamineServer(ctx context.Context, address string) ([]doctor.Finding, error) {
	var o Options
	pool, err := poolOf(ctx, address, &o)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: examine: %w", failure(err))
	}
	defer conn.Release()
	e := &examination{Store: &Store{opts: o, pool: pool}, conn: conn}
	for _, look := range []func(context.Context) error{e.server, e.settings, e.standbys, e.pooler, e.transactions, e.clock} {
		if err := look(ctx); err != nil {
			return e.findings, fmt.Errorf("pgstore: examine: %w", failure(err))
		}
	}
	return e.findings, nil
}

// examination is one run of Examine.
type examination struct {
	*Store
	conn     *pgxpool.Conn
	findings []doctor.Finding
}

// ask reads one row.
func (e *examination) ask(ctx context.Context, sql string, args []any, into ...any) error {
	return e.queryRow(ctx, e.conn, sql, args...).Scan(into...)
}

// judge adds a finding. Its severity is Fine unless bad is set.
func (e *examination) judge(bad bool, severity doctor.Severity, subject, found, cost, remedy string) {
	f := doctor.Finding{Subject: subject, Found: found}
	if bad {
		f.Severity, f.Cost, f.Remedy = severity, cost, remedy
	}
	e.findings = append(e.findings, f)
}

func (e *examination) server(ctx context.Context) error {
	var version string
	var number int
	var standby bool
	err := e.ask(ctx, "SELECT current_setting('server_version'), current_setting('server_version_num')::int, pg_is_in_recovery()", nil, &version, &number, &standby)
	if err != nil {
		return err
	}
	e.judge(number < minServer, doctor.Broken, "server_version", version,
		"clean-up needs to read ranges of pages, which this version cannot", "use PostgreSQL 14 or newer")
	role := "primary"
	if standby {
		role = "standby"
	}
	e.judge(standby, doctor.Broken, "pg_is_in_recovery", role,
		"a standby takes no claims, and a look at it misses keys that were committed just now", "connect to the primary: target_session_attrs=read-write")
	return nil
}

// demand is a setting and the values that keep the promise.
type demand struct {
	name     string
	good     []string
	severity doctor.Severity
	cost     string
	remedy   string
}

var demands = [...]demand{
	{"fsync", []string{"on"}, doctor.Broken,
		"a crash of the machine may lose or corrupt any key that was acknowledged", "set fsync = on"},
	{"full_page_writes", []string{"on"}, doctor.Broken,
		"a crash of the machine may leave pages half written, and with them keys that were acknowledged", "set full_page_writes = on"},
	{"synchronous_commit", []string{"on", "remote_apply", "remote_write", "local"}, doctor.Broken,
		"a crash forgets keys of the last moments that were acknowledged: their effects are repeated", "set synchronous_commit = on for this role"},
	{"default_transaction_isolation", []string{"read committed"}, doctor.Broken,
		"a claim that meets another fails instead of seeing what that has committed", "set default_transaction_isolation = 'read committed' for this role"},
	{"default_transaction_read_only", []string{"off"}, doctor.Broken,
		"no key can be claimed", "set default_transaction_read_only = off for this role"},
	{"autovacuum", []string{"on"}, doctor.Warning,
		"tables of keys only grow, and become slow", "set autovacuum = on"},
	{"data_checksums", []string{"on"}, doctor.Notice,
		"a page that rots on the disk goes unnoticed", "pg_checksums --enable, while the server is stopped"},
}

func (e *examination) settings(ctx context.Context) error {
	for _, d := range demands {
		var value string
		if err := e.ask(ctx, "SELECT current_setting($1)", []any{d.name}, &value); err != nil {
			return err
		}
		good := false
		for _, v := range d.good {
			good = good || v == value
		}
		e.judge(!good, d.severity, d.name, value, d.cost, d.remedy)
	}
	return nil
}

// pooler detects a pooler. It compares the process id reported at connection
// start with that of the answering process: a pooler invents the first one.
func (e *examination) pooler(ctx context.Context) error {
	var pid uint32
	if err := e.ask(ctx, "SELECT pg_backend_pid()", nil, &pid); err != nil {
		return err
	}
	if pid == e.conn.Conn().PgConn().PID() {
		e.judge(false, doctor.Fine, "pooler", "none", "", "")
		return nil
	}
	const (
		found = "between this process and the server"
		lost  = "in transaction mode a statement that was prepared on one connection is missing on the next, unless the pooler follows them: "
		newer = ", or use PgBouncer 1.21 or newer with max_prepared_statements"
	)
	switch {
	case e.opts.Prepare:
		e.judge(true, doctor.Warning, "pooler", found, lost+"calls fail", "leave Prepare off"+newer)
	case e.conn.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement:
		e.judge(true, doctor.Warning, "pooler", found+", and the pool of connections prepares by name",
			lost+"transactions with an effect fail", "set default_query_exec_mode=cache_describe"+newer)
	default:
		e.judge(true, doctor.Notice, "pooler", found, "none: no session is needed", "")
	}
	return nil
}

func (e *examination) tables(ctx context.Context) error {
	var live, dead int64
	var size string
	err := e.ask(ctx, `SELECT coalesce(sum(s.n_live_tup), 0)::bigint, coalesce(sum(s.n_dead_tup), 0)::bigint, pg_size_pretty(coalesce(sum(pg_total_relation_size(s.relid)), 0))
		FROM pg_stat_user_tables AS s
		WHERE s.relid = to_regclass($1) OR s.relid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1))`,
		[]any{e.opts.quoted("keys")}, &live, &dead, &size)
	if err != nil {
		return err
	}
	e.judgeBloat(live, dead, size)
	return nil
}

// emptied shows what Emptied has found.
func (e *examination) emptied(ctx context.Context) error {
	var found *string
	err := e.ask(ctx, "SELECT string_agg(substr(name, length('emptied ') + 1) || ' before ' || to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') || ' UTC', ', ' ORDER BY name) FROM "+e.opts.quoted("meta")+" WHERE name LIKE 'emptied %' AND at > clock_timestamp() - $1::bigint * interval '1 microsecond'",
		[]any{emptiedFor.Microseconds()}, &found)
	if err != nil {
		return err
	}
	said := "none"
	if found != nil {
		said = *found
	}
	e.judge(found != nil, doctor.Broken, "emptied tables", said,
		"keys that were in the table are forgotten, so repeated messages have their effect again; parked messages or rows of an outbox are lost",
		"restore the rows from a backup; after that, or if it was meant, this finding goes after a week, or with DELETE FROM "+e.opts.quoted("meta")+" WHERE name LIKE 'emptied %'")
	return nil
}

func (e *examination) judgeBloat(live, dead int64, size string) {
	const few = 100_000
	e.judge(dead > few && dead > live/2, doctor.Notice, "bloat", fmt.Sprintf("about %d rows and %d dead ones in %s", live, dead, size),
		"the promise holds; dead rows take disk and time",
		"find what keeps autovacuum from its work: an old transaction, a replication slot, or an autovacuum_vacuum_cost_limit that is too small")
}

// lag is the maximum time since the last clean-up.
const lag = time.Hour

func (e *examination) cleaning(ctx context.Context) error {
	var since pgtype.Interval
	err := e.ask(ctx, "SELECT clock_timestamp() - at FROM "+e.opts.quoted("meta")+" WHERE name = 'cleaned'", nil, &since)
	if err != nil {
		return err
	}
	ago := duration(since)
	e.judge(ago > lag, doctor.Notice, "clean-up", fmt.Sprintf("the last complete one ended %v ago", ago.Round(time.Second)),
		"the promise holds; expired keys take disk", "let one process clean up: semel run, or Store.Maintain")
	return nil
}

// old is the age from which an open transaction is reported.
const old = 5 * time.Minute

func (e *examination) transactions(ctx context.Context) error {
	var age pgtype.Interval
	err := e.ask(ctx, `SELECT coalesce(max(clock_timestamp() - t.began), '0') FROM (
		SELECT xact_start AS began FROM pg_stat_activity WHERE backend_type = 'client backend'
		UNION ALL SELECT prepared FROM pg_prepared_xacts) AS t`, nil, &age)
	if err != nil {
		return err
	}
	e.judgeTransactions(duration(age))
	return nil
}

func (e *examination) judgeTransactions(oldest time.Duration) {
	e.judge(oldest > old, doctor.Warning, "oldest transaction", fmt.Sprintf("%v old", oldest.Round(time.Second)),
		"other deliveries wait for the keys that it has written, and autovacuum removes no row that died since it began",
		"find it: SELECT pid, application_name, state, xact_start FROM pg_stat_activity ORDER BY xact_start LIMIT 1, end it with pg_terminate_backend(PID), and set idle_in_transaction_session_timeout")
}

// apart is the maximum difference between the clocks of client and server.
const apart = time.Second

func (e *examination) clock(ctx context.Context) error {
	before := time.Now()
	var server time.Time
	if err := e.ask(ctx, "SELECT clock_timestamp()", nil, &server); err != nil {
		return err
	}
	after := time.Now()
	var off time.Duration
	switch {
	case server.Before(before):
		off = before.Sub(server)
	case server.After(after):
		off = server.Sub(after)
	}
	e.judgeClock(off)
	return nil
}

func (e *examination) judgeClock(off time.Duration) {
	e.judge(off > apart, doctor.Notice, "clock", fmt.Sprintf("%v from the server's", off.Round(time.Millisecond)),
		"leases and windows go by the server's clock alone; only messages with a time of their own are taken for late too early or too late",
		"let both follow the same time servers")
}

// duration counts a month as 30 days, as PostgreSQL does.
func duration(i pgtype.Interval) time.Duration {
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days+30*i.Months)*24*time.Hour
}

// need is a privilege that a role needs on a table or sequence.
type need struct{ relation, privilege string }

// needs returns the privileges that the store's calls need. partitions are the
// partitions of the table of keys. PostgreSQL checks the privileges of the table
// that a statement names: claims name the parent, and clean-up names the
// partitions.
func (s *Store) needs(partitions []string) (needs []need) {
	add := func(relation string, privileges ...string) {
		for _, p := range privileges {
			needs = append(needs, need{relation, p})
		}
	}
	add(s.opts.quoted("meta"), "SELECT", "INSERT", "UPDATE")
	add(s.opts.quoted("migrations"), "SELECT")
	add(s.opts.quoted("tokens"), "USAGE")
	if s.hasher.times != nil {
		add(s.opts.quoted("times"), "SELECT", "UPDATE")
	}
	add(s.opts.quoted("keys"), "SELECT", "INSERT", "UPDATE", "DELETE")
	for _, partition := range partitions {
		add(partition, "SELECT", "UPDATE", "DELETE")
	}
	return needs
}

const partitionsSQL = `SELECT array(SELECT format('%I.%I', n.nspname, c.relname)
	FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
	WHERE i.inhparent = to_regclass($1) ORDER BY c.oid)`

const lackingSQL = `SELECT current_user, array(
	SELECT need.privilege || ' on ' || need.relation FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS need (relation, privilege, n)
	WHERE NOT CASE need.privilege WHEN 'USAGE' THEN has_sequence_privilege(need.relation, need.privilege) ELSE has_table_privilege(need.relation, need.privilege) END
	ORDER BY need.n)`

// privileges checks the privileges of this role.
func (e *examination) privileges(ctx context.Context) error {
	var partitions []string
	if err := e.ask(ctx, partitionsSQL, []any{e.opts.quoted("keys")}, &partitions); err != nil {
		return err
	}
	role, lacking, err := e.lacking(ctx, e.needs(partitions))
	if err != nil {
		return err
	}
	found := fmt.Sprintf("role %s has what it needs", role)
	if len(lacking) > 0 {
		found = fmt.Sprintf("role %s lacks %s", role, listed(lacking))
	}
	e.judge(len(lacking) > 0, doctor.Broken, "privileges", found, "calls that need them fail", grants(role, lacking))
	if err := e.audits(ctx); err != nil || e.hasher.times == nil {
		return err
	}
	return e.truncates(ctx, partitions)
}

// grants returns the statements that give a role what it lacks.
func grants(role string, lacking []string) string {
	var statements []string
	of := map[string]int{} // the statement for each relation
	for _, need := range lacking {
		privilege, relation, _ := strings.Cut(need, " on ")
		if i, ok := of[relation]; ok {
			statements[i] = strings.Replace(statements[i], " ON ", ", "+privilege+" ON ", 1)
			continue
		}
		of[relation] = len(statements)
		sequence := ""
		if privilege == "USAGE" {
			sequence = "SEQUENCE "
		}
		statements = append(statements, "GRANT "+privilege+" ON "+sequence+relation+" TO "+pgx.Identifier{role}.Sanitize())
	}
	return listed(statements)
}

// audits checks whether this role may write the audit log.
func (e *examination) audits(ctx context.Context) error {
	var may bool
	if err := e.ask(ctx, "SELECT has_table_privilege($1, 'INSERT') AND has_table_privilege($1, 'SELECT')", []any{e.opts.quoted("audit")}, &may); err != nil {
		return err
	}
	found := "this role may write it"
	if !may {
		found = "this role may not write it"
	}
	e.judge(!may, doctor.Notice, "audit log", found, "none for claims; an operator with this role cannot remove or resolve keys, or settle parked messages",
		"GRANT INSERT, SELECT ON "+e.opts.quoted("audit")+" TO the role of the operator")
	return nil
}

// truncates checks whether this role may clean up, if clean-up truncates tables.
func (e *examination) truncates(ctx context.Context, tables []string) error {
	var needs []need
	for _, table := range tables {
		needs = append(needs, need{table, "TRUNCATE"})
	}
	_, lacking, err := e.lacking(ctx, needs)
	if err != nil {
		return err
	}
	found := "this role may"
	if len(lacking) > 0 {
		found = "this role lacks " + listed(lacking)
	}
	e.judge(len(lacking) > 0, doctor.Notice, "truncate", found, "none for claims; clean-up by this role fails", "GRANT TRUNCATE to the role that runs the maintenance")
	return nil
}

// lacking returns this role and the privileges that it lacks.
func (e *examination) lacking(ctx context.Context, needs []need) (role string, lacking []string, err error) {
	relations, privileges := make([]string, len(needs)), make([]string, len(needs))
	for i, n := range needs {
		relations[i], privileges[i] = n.relation, n.privilege
	}
	err = e.ask(ctx, lackingSQL, []any{relations, privileges}, &role, &lacking)
	return role, lacking, err
}

// listed names the first few of many.
func listed(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// replication is a primary's view of its standbys.
type replication struct {
	names, commit string // synchronous_standby_names, synchronous_commit
	// synchronous counts the standbys that commits wait for. asynchronous counts
	// the others that could take over. unseen counts those whose type this role may
	// not see.
	synchronous, asynchronous, unseen int
}

// standbysSQL counts the servers that follow this one. A logical subscriber and a
// backup cannot take over, but commits wait for a subscriber that is named.
const standbysSQL = `SELECT pg_is_in_recovery(), current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
	count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')),
	count(*) FILTER (WHERE r.sync_state NOT IN ('sync', 'quorum') AND r.state <> 'backup' AND s.pid IS NULL),
	count(*) FILTER (WHERE r.sync_state IS NULL AND s.pid IS NULL)
FROM pg_stat_replication AS r
LEFT JOIN (SELECT active_pid AS pid FROM pg_replication_slots WHERE slot_type = 'logical') AS s ON s.pid = r.pid`

// standbys judges what a failover would lose. It does not judge a server that is
// itself a standby.
func (e *examination) standbys(ctx context.Context) error {
	var r replication
	var standby bool
	err := e.ask(ctx, standbysSQL, nil, &standby, &r.names, &r.commit, &r.synchronous, &r.asynchronous, &r.unseen)
	if err == nil && !standby {
		e.judgeStandbys(r)
	}
	return err
}

func (e *examination) judgeStandbys(r replication) {
	found := fmt.Sprintf("%d standbys, %d of them synchronous, synchronous_standby_names = '%s'", r.synchronous+r.asynchronous+r.unseen, r.synchronous, r.names)
	const forgets = "a failover to an asynchronous standby forgets the keys that had not reached it: their effects are repeated"
	switch {
	case r.names == "":
		e.judge(r.asynchronous+r.unseen > 0, doctor.Warning, "synchronous_standby_names", found, forgets,
			"name at least one standby in synchronous_standby_names, or fail over to none that lags")
	case r.commit == "local" || r.commit == "off":
		e.judge(true, doctor.Warning, "synchronous standbys", found+", synchronous_commit = "+r.commit,
			"commits do not wait for the synchronous standby: a failover forgets keys, whose effects are repeated", "set synchronous_commit = on for this role")
	case r.unseen == 0 && r.synchronous < awaited(r.names):
		e.judge(true, doctor.Broken, "synchronous_standby_names", found,
			"no key can be claimed: every commit waits for standbys that are not there",
			"start the standbys that are named, or change synchronous_standby_names")
	default:
		e.judge(r.asynchronous > 0, doctor.Warning, "synchronous_standby_names", found, forgets,
			"fail over to synchronous standbys alone, or name all of them in synchronous_standby_names")
	}
}

var numbered = regexp.MustCompile(`(?i)^\s*(?:first|any)?\s*([0-9]+)\s*\(`)

// awaited returns the number of standbys that a commit waits for, given a
// non-empty synchronous_standby_names.
func awaited(names string) int {
	if m := numbered.FindStringSubmatch(names); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return 1
}

// form checks the parts of a clean-up form other than the table of keys.
func (e *examination) form(ctx context.Context) error {
	if e.hasher.times == nil {
		return nil
	}
	return e.floor(ctx)
}

func (e *examination) floor(ctx context.Context) error {
	var behind pgtype.Interval
	var raised bool
	err := e.ask(ctx, "SELECT clock_timestamp() - age * interval '1 microsecond' - floor, floor > 'epoch' FROM "+e.opts.quoted("times"), nil, &behind, &raised)
	if err != nil {
		return err
	}
	if raised {
		e.judgeFloor(duration(behind))
	} else { // the finding about clean-up says for how long none has run
		e.judge(false, doctor.Fine, "oldest message", "of any age: no clean-up has run yet", "", "")
	}
	return nil
}

func (e *examination) judgeFloor(behind time.Duration) {
	m := e.hasher.times
	e.judge(behind > m.width()+lag, doctor.Notice, "oldest message", fmt.Sprintf("up to %v old, %v more than need be", (m.age+max(behind, 0)).Round(time.Second), max(behind, 0).Round(time.Second)),
		"the promise holds; expired keys take disk", "let one process clean up: semel run, or Store.Maintain")
}

// lasting are the tables whose rows stay until the program removes them one by one, with the
// column that says since when a row is there.
var lasting = [...]struct{ table, since string }{{"keys", "seen"}, {"parked", "at"}, {"outbox", "created"}}

// places finds, for each table, the objects that hold its rows and their files, and the last
// note of them. TRUNCATE gives a table another file; a table that is made again is another object.
const places = `SELECT t.name, coalesce(string_agg(p.oid::text || '/' || pg_relation_filenode(p.oid), ',' ORDER BY p.oid), ''), m.value, m.at
FROM unnest($1::text[], $2::text[]) AS t (name, qualified)
JOIN pg_class AS c ON c.oid = to_regclass(t.qualified) AND has_table_privilege(c.oid, 'SELECT')
JOIN pg_class AS p ON p.oid = c.oid OR p.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid)
LEFT JOIN {meta} AS m ON m.name = 'place of ' || t.name
GROUP BY t.name, m.value, m.at`

// Emptied returns the tables of keys, parked messages and the outbox that have lost all their rows
// in one step since a process asked last. The step is TRUNCATE, a restore, or a table that was made
// again. VACUUM FULL and the like move the rows, which does not count. Emptied notes what the
// tables are now, so one process gets the answer once; Examine shows it for a week. A loss by
// DELETE looks like the work of the program and is not noticed. Emptied blocks until the server
// has answered, and may be called at any time.
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

// emptied compares the files of a table with the files that were noted at a time, and notes the
// new ones.
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
