package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
)

var _ semel.Doctor = (*Store)(nil)

// Examine implements [semel.Doctor]. It asks for about ten things on one
// connection, in statements that change nothing. What the role may not see, as
// other sessions without pg_monitor, is not judged.
func (s *Store) Examine(ctx context.Context) ([]semel.Finding, error) {
	if err := s.enter("examine", 0, 0); err != nil {
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
		e.server, e.settings, e.standbys, e.pooler, e.privileges, e.tables, e.cleaning, e.form, e.transactions, e.clock,
	} {
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
	findings []semel.Finding
}

// ask reads one row.
func (e *examination) ask(ctx context.Context, sql string, args []any, into ...any) error {
	return e.queryRow(ctx, e.conn, sql, args...).Scan(into...)
}

// judge adds a finding, which is Fine unless it is bad.
func (e *examination) judge(bad bool, severity semel.Severity, subject, found, cost, remedy string) {
	f := semel.Finding{Subject: subject, Found: found}
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
	e.judge(number < minServer, semel.Broken, "server_version", version,
		"clean-up needs to read ranges of pages, which this version cannot", "use PostgreSQL 14 or newer")
	role := "primary"
	if standby {
		role = "standby"
	}
	e.judge(standby, semel.Broken, "pg_is_in_recovery", role,
		"a standby takes no claims, and a look at it misses keys that were committed just now", "connect to the primary: target_session_attrs=read-write")
	return nil
}

// demand is a setting with the values that keep the promise.
type demand struct {
	name     string
	good     []string
	severity semel.Severity
	cost     string
	remedy   string
}

var demands = [...]demand{
	{"fsync", []string{"on"}, semel.Broken,
		"a crash of the machine may lose or corrupt any key that was acknowledged", "set fsync = on"},
	{"full_page_writes", []string{"on"}, semel.Broken,
		"a crash of the machine may leave pages half written, and with them keys that were acknowledged", "set full_page_writes = on"},
	{"synchronous_commit", []string{"on", "remote_apply", "remote_write", "local"}, semel.Broken,
		"a crash forgets keys of the last moments that were acknowledged: their effects are repeated", "set synchronous_commit = on for this role"},
	{"default_transaction_isolation", []string{"read committed"}, semel.Broken,
		"a claim that meets another fails instead of seeing what that has committed", "set default_transaction_isolation = 'read committed' for this role"},
	{"default_transaction_read_only", []string{"off"}, semel.Broken,
		"no key can be claimed", "set default_transaction_read_only = off for this role"},
	{"autovacuum", []string{"on"}, semel.Warning,
		"tables of keys only grow, and become slow", "set autovacuum = on"},
	{"data_checksums", []string{"on"}, semel.Notice,
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

// pooler compares the process that the connection was told of with the one that
// answers: a pooler makes the first up.
func (e *examination) pooler(ctx context.Context) error {
	var pid uint32
	if err := e.ask(ctx, "SELECT pg_backend_pid()", nil, &pid); err != nil {
		return err
	}
	if pid == e.conn.Conn().PgConn().PID() {
		e.judge(false, semel.Fine, "pooler", "none", "", "")
		return nil
	}
	const (
		found = "between this process and the server"
		lost  = "in transaction mode a statement that was prepared on one connection is missing on the next, unless the pooler follows them: "
		newer = ", or use PgBouncer 1.21 or newer with max_prepared_statements"
	)
	switch {
	case e.opts.Prepare:
		e.judge(true, semel.Warning, "pooler", found, lost+"calls fail", "leave Prepare off"+newer)
	case e.conn.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement:
		e.judge(true, semel.Warning, "pooler", found+", and the pool of connections prepares by name",
			lost+"transactions with an effect fail", "set default_query_exec_mode=cache_describe"+newer)
	default:
		e.judge(true, semel.Notice, "pooler", found, "none: no session is needed", "")
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

func (e *examination) judgeBloat(live, dead int64, size string) {
	const few = 100_000
	e.judge(dead > few && dead > live/2, semel.Notice, "bloat", fmt.Sprintf("about %d rows and %d dead ones in %s", live, dead, size),
		"the promise holds; disk and time are lost to rows that nobody needs",
		"look for what keeps autovacuum from its work: an old transaction, a replication slot, or too small an autovacuum_vacuum_cost_limit")
}

// lag is how long ago the last clean-up may be.
const lag = time.Hour

func (e *examination) cleaning(ctx context.Context) error {
	var since pgtype.Interval
	err := e.ask(ctx, "SELECT clock_timestamp() - at FROM "+e.opts.quoted("meta")+" WHERE name = 'cleaned'", nil, &since)
	if err != nil {
		return err
	}
	ago := duration(since)
	e.judge(ago > lag, semel.Notice, "clean-up", fmt.Sprintf("the last that went over the whole table ended %v ago", ago.Round(time.Second)),
		"the promise holds; keys that are forgotten take disk", "let one process run the maintenance of the store")
	return nil
}

// old is from when on a transaction is worth knowing of.
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
	e.judge(oldest > old, semel.Warning, "oldest transaction", fmt.Sprintf("%v old", oldest.Round(time.Second)),
		"a key that it has written makes others wait, and no dead row of any table is cleaned up while it lasts",
		"end it; set idle_in_transaction_session_timeout")
}

// apart is how far the clocks of client and server may differ.
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
	e.judge(off > apart, semel.Notice, "clock", fmt.Sprintf("%v from the server's", off.Round(time.Millisecond)),
		"leases and windows go by the server's clock alone; only messages with a time of their own are taken for late too early or too late",
		"let both follow the same time servers")
}

// duration takes months for 30 days, as PostgreSQL does where it must.
func duration(i pgtype.Interval) time.Duration {
	return time.Duration(i.Microseconds)*time.Microsecond + time.Duration(i.Days+30*i.Months)*24*time.Hour
}
