package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/store/pgstore"
)

// SlotError means that a relay cannot use the replication slot of an outbox until an
// operator changes the slot, the publication or a setting.
type SlotError struct {
	// Cause says what is wrong. Remedy is the SQL that corrects it, or an instruction.
	Cause, Remedy string
	// Err is the error of the server, or nil.
	Err error
}

// Error implements error.
func (e *SlotError) Error() string { return "outbox: " + e.Cause + ": " + e.Remedy }

// Unwrap returns the error of the server.
func (e *SlotError) Unwrap() error { return e.Err }

// Statements about a slot. $1 is its name, which is that of the publication too.
const (
	// slotSQL reads the state of the slot and of the publication. The columns
	// that only some versions have are read as JSON.
	slotSQL = `SELECT current_setting('wal_level'), current_setting('server_version_num')::integer, current_database(), current_user::text,
	p.pubname IS NOT NULL, coalesce(p.pubinsert, false), t.of IS NOT NULL, coalesce(t.of->>'rowfilter', ''), m.slot IS NOT NULL,
	s.slot_name IS NOT NULL, coalesce(s.plugin, ''), coalesce(s.database, ''), s.temporary IS TRUE, coalesce(s.active_pid, 0), coalesce(s.wal_status, ''), coalesce(to_jsonb(s)->>'invalidation_reason', ''),
	coalesce(s.safe_wal_size, -1), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::bigint,
	current_setting('max_slot_wal_keep_size'), coalesce(current_setting('idle_replication_slot_timeout', true), '')
FROM (SELECT) AS one
LEFT JOIN pg_publication AS p ON p.pubname = $1
LEFT JOIN LATERAL (SELECT to_jsonb(l) AS of FROM pg_publication_tables AS l WHERE l.pubname = $1 AND format('"%s"."%s"', l.schemaname, l.tablename) = $2 LIMIT 1) AS t ON true
LEFT JOIN {slots} AS m ON m.slot = $1
LEFT JOIN pg_replication_slots AS s ON s.slot_name = $1`
	// ownerSQL describes the process that reads the slot, and how long ago it answered.
	ownerSQL = `SELECT coalesce(a.application_name, ''), coalesce(now() - r.reply_time, now() - r.backend_start, interval '0') FROM pg_stat_activity AS a LEFT JOIN pg_stat_replication AS r ON r.pid = a.pid WHERE a.pid = $1`
	// createSlotSQL creates the slot. From version 17 on, standbys may copy it.
	createSlotSQL   = `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`
	createSlotSQL17 = `SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, false, true)`
	usedSQL         = `INSERT INTO {slots} (slot) VALUES ($1) ON CONFLICT DO NOTHING`
	// endSQL ends a connection of this process that the server still has.
	endSQL = `SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE pid = $1 AND application_name = $2`
	// oldestSQL returns the oldest transaction that has written, for which a new slot waits.
	oldestSQL = `SELECT pid, now() - xact_start FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1`
)

// slot is the replication slot of an outbox.
type slot struct {
	name         string
	table        string // the quoted name of the outbox
	pool         *pgxpool.Pool
	slots        string
	look, used   string
	snapshot     string
	rows, due    string
	late, remove string
}

// newSlot returns the slot of an outbox. Its name defaults to that of the table.
func newSlot(pool *pgxpool.Pool, names pgstore.Names, name string) (*slot, error) {
	table, err := names.Table("outbox")
	if err != nil {
		return nil, err
	}
	slots, err := names.Table("outbox_slots")
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = cmp.Or(names.Prefix, pgstore.DefaultPrefix) + "outbox"
		if s := cmp.Or(names.Schema, pgstore.DefaultSchema); s != pgstore.DefaultSchema {
			name = s + "_" + name
		}
		name = name[:min(len(name), maxSlotName)]
	}
	if !isSlotName(name) {
		return nil, fmt.Errorf("slot %q is not a name of a-z, 0-9 and _ with at most %d bytes: %w", name, maxSlotName, semel.ErrInvalidRequest)
	}
	fill := strings.NewReplacer("{slots}", slots, "{outbox}", table).Replace
	return &slot{
		name: name, table: table, pool: pool, slots: slots, look: fill(slotSQL), used: fill(usedSQL),
		snapshot: fill(snapshotSQL), rows: fill(rowsSQL), due: fill(dueSQL), late: fill(missedSQL), remove: fill(removeRowsSQL),
	}, nil
}

const maxSlotName = 63

func isSlotName(name string) bool {
	return name != "" && len(name) <= maxSlotName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// slotState is what a server knows of a slot.
type slotState struct {
	walLevel                string
	version                 int
	database, user          string
	published, inserts, has bool // the publication: it exists, has inserts, has the table
	filter                  string
	used                    bool // a relay has used the slot
	exists                  bool
	plugin, of              string
	temporary               bool
	pid                     int32 // of the process that reads it, or 0
	status, invalid         string
	safe, retained, behind  int64
	mostRetained, mostIdle  string
}

func (s *slot) state(ctx context.Context) (*slotState, error) {
	var st slotState
	err := s.pool.QueryRow(ctx, s.look, s.name, s.table).Scan(&st.walLevel, &st.version, &st.database, &st.user,
		&st.published, &st.inserts, &st.has, &st.filter, &st.used,
		&st.exists, &st.plugin, &st.of, &st.temporary, &st.pid, &st.status, &st.invalid,
		&st.safe, &st.retained, &st.behind, &st.mostRetained, &st.mostIdle)
	if refused(err, "42P01") {
		return nil, fmt.Errorf("there is no table %s: run semel migrate up: %w", s.slots, pgstore.ErrSchema)
	}
	return &st, err
}

// publish is the SQL that creates the publication. It has no deletes, because relays delete
// every row.
func (s *slot) publish() string {
	return `CREATE PUBLICATION ` + pgx.Identifier{s.name}.Sanitize() + ` FOR TABLE ` + s.table + ` WITH (publish = 'insert')`
}

// forget is the SQL that drops the slot and its row in the table of slots.
func (s *slot) forget() string {
	return fmt.Sprintf("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '%s'; DELETE FROM %s WHERE slot = '%[1]s'", s.name, s.slots)
}

// again is the SQL after which a relay creates the slot again, and what that relay does. A
// program that waits for the repair continues by itself, as semel run does.
func (s *slot) again() string {
	return s.forget() + "; a relay that waits, or the next one that starts, creates it again and delivers what is in the table"
}

// judge returns a *SlotError if an operator must act before a relay can read or create the
// slot.
func (s *slot) judge(st *slotState) error {
	publication := pgx.Identifier{s.name}.Sanitize()
	wrong := func(cause, remedy string) error { return &SlotError{Cause: cause, Remedy: remedy} }
	switch {
	case st.walLevel != "logical":
		return wrong("mode: wal needs the server setting wal_level = logical, and it is "+st.walLevel, "ALTER SYSTEM SET wal_level = 'logical', and restart the server; or write mode: table")
	case st.exists && (st.of != st.database || st.plugin != "pgoutput" || st.temporary):
		return wrong(fmt.Sprintf("replication slot %s is not one for this outbox: it has the plugin %s and belongs to database %s", s.name, cmp.Or(st.plugin, "none"), cmp.Or(st.of, "none")), "write another name in source.outbox.slot")
	case st.exists && (st.status == "lost" || st.invalid != ""):
		return wrong(fmt.Sprintf("the server has invalidated replication slot %s (%s)", s.name, cmp.Or(st.invalid, "its write-ahead log was removed")), s.again())
	case !st.exists && st.used:
		return wrong("replication slot "+s.name+" is gone: it was dropped, or the server is a restored or promoted one", s.again())
	case st.exists && !st.published:
		return wrong("replication slot "+s.name+" is there, and publication "+s.name+" is not", s.publish()+"; "+s.again())
	case st.published && !st.inserts:
		return wrong("publication "+s.name+" has no inserts", "ALTER PUBLICATION "+publication+" SET (publish = 'insert')")
	case st.published && !st.has:
		return wrong("publication "+s.name+" does not have the table "+s.table, "ALTER PUBLICATION "+publication+" ADD TABLE "+s.table)
	case st.published && st.filter != "":
		return wrong("publication "+s.name+" has only the rows with "+st.filter, "ALTER PUBLICATION "+publication+" SET TABLE "+s.table)
	}
	return nil
}

// setUp creates the publication if it does not exist and never did.
func (s *slot) setUp(ctx context.Context) (*slotState, error) {
	st, err := s.state(ctx)
	if err == nil {
		err = s.judge(st)
	}
	if err != nil || st.published {
		return st, err
	}
	_, err = s.pool.Exec(ctx, s.publish())
	switch {
	case refused(err, "42710"): // another relay was faster
		return st, nil
	case refused(err, "42501"):
		return nil, &SlotError{Cause: "there is no publication " + s.name + ", and user " + st.user + " may not create it: " + messageOf(err), Remedy: s.publish(), Err: err}
	}
	return st, err
}

// create creates the slot if it does not exist. It waits for the transactions that have
// written when it begins. It returns an error if another relay creates it in the meantime.
func (s *slot) create(ctx context.Context, st *slotState) error {
	if st.exists {
		return nil
	}
	sql := createSlotSQL
	if st.version >= 170000 {
		sql = createSlotSQL17
	}
	_, err := s.pool.Exec(ctx, sql, s.name)
	switch {
	case refused(err, "42710"):
		// The slot may not be complete: it returns only what commits after that. A snapshot
		// from before would miss what commits in between.
		return fmt.Errorf("another relay is creating replication slot %s", s.name)
	case refused(err, "53400"):
		return &SlotError{Cause: "the server has no replication slot left", Remedy: "raise its setting max_replication_slots, and restart it", Err: err}
	case refused(err, "42501"):
		return s.noRight(st.user, err)
	case err != nil:
		return fmt.Errorf("create replication slot %s: %w", s.name, err)
	}
	return nil
}

// settle waits for the transactions that are open when it begins. A commit may be in the log
// before the position of a new slot, so that the slot does not return it, although the
// transaction is not visible yet. The server makes it visible when the commit is on the disk, and
// on synchronous standbys. The snapshot of the first session would miss it.
func (s *slot) settle(ctx context.Context) error {
	var after string // a number that is higher than theirs
	err := s.pool.QueryRow(ctx, `SELECT pg_current_xact_id()::text`).Scan(&after)
	for settled := false; err == nil && !settled; {
		if err = s.pool.QueryRow(ctx, `SELECT pg_snapshot_xmin(pg_current_snapshot()) > $1::text::xid8`, after).Scan(&settled); err == nil && !settled {
			err = retry.Sleep(ctx, busyPause)
		}
	}
	if err != nil {
		return fmt.Errorf("wait for the transactions before replication slot %s: %w", s.name, err)
	}
	return nil
}

func (s *slot) noRight(user string, err error) error {
	return &SlotError{Cause: "user " + user + " may not replicate", Remedy: "ALTER ROLE " + pgx.Identifier{user}.Sanitize() + " REPLICATION", Err: err}
}

// connect opens a replication connection to the database of the pool.
func (s *slot) connect(ctx context.Context, name string) (*pgconn.PgConn, error) {
	config := s.pool.Config().ConnConfig.Config.Copy()
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["application_name"] = name
	// Values that come as text have a form that does not depend on the role.
	config.RuntimeParams["datestyle"], config.RuntimeParams["bytea_output"] = "ISO", "hex"
	conn, err := pgconn.ConnectConfig(ctx, config)
	switch {
	case refused(err, "08P01"):
		return nil, &SlotError{Cause: "the server at the address of the store passes no replication connections, as PgBouncer: " + messageOf(err), Remedy: "give the pipeline a store with the address of the PostgreSQL server itself, or write mode: table", Err: err}
	case refused(err, "42501"):
		return nil, s.noRight(config.User, err)
	case refused(err, "53300") && strings.Contains(messageOf(err), "max_wal_senders"):
		return nil, &SlotError{Cause: "the server has no replication connection left: " + messageOf(err), Remedy: "raise its setting max_wal_senders, and restart it", Err: err}
	case err != nil:
		return nil, fmt.Errorf("connect for replication: %w", err)
	}
	return conn, nil
}

// silence is how long the process that reads a slot may not answer before it counts as half
// dead. It answers every 10 s.
const silence = 30 * time.Second

// standby means that another process reads the slot.
type standby struct {
	pid    int32
	name   string
	silent time.Duration // since its last answer
}

// Error implements error.
func (e *standby) Error() string {
	return fmt.Sprintf("standby: another relay reads the slot (%s, pid %d in the server)", cmp.Or(e.name, "unknown"), e.pid)
}

// halfDead returns an error if the process no longer answers the server.
func (e *standby) halfDead(slot string) error {
	if e.silent < silence {
		return nil
	}
	return &SlotError{
		Cause:  fmt.Sprintf("the connection that reads replication slot %s (pid %d, %s) has not answered the server for %s", slot, e.pid, cmp.Or(e.name, "unknown"), e.silent.Round(time.Second)),
		Remedy: fmt.Sprintf("if that relay is dead: SELECT pg_terminate_backend(%d); the server does so itself after wal_sender_timeout", e.pid),
	}
}

// owner describes the process that reads the slot. It ends the connection if that was one
// of this process.
func (s *slot) owner(ctx context.Context, pid int32, name string) error {
	by := &standby{pid: pid}
	switch err := s.pool.QueryRow(ctx, ownerSQL, pid).Scan(&by.name, &by.silent); {
	case errors.Is(err, pgx.ErrNoRows): // it has just ended, or is another role's
	case err != nil:
		return err
	case name != "" && by.name == name:
		_, err := s.pool.Exec(ctx, endSQL, pid, name)
		return cmp.Or(err, error(by))
	}
	return by
}

// refused reports whether the server refused with this code.
func refused(err error, code string) bool {
	of, ok := errors.AsType[*pgconn.PgError](err)
	return ok && of.Code == code
}

// messageOf returns the server's message.
func messageOf(err error) string {
	if of, ok := errors.AsType[*pgconn.PgError](err); ok {
		return of.Message
	}
	return err.Error()
}

// ExamineWAL checks the outbox of a relay that reads it through a replication slot. It
// changes nothing. It blocks until the server has answered. Errors are those of [Open].
func ExamineWAL(ctx context.Context, dsn string, opts *WALOptions) (_ []doctor.Finding, err error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	pool, sql, err := connect(ctx, dsn, o.Names)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	of, err := newSlot(pool, o.Names, o.Slot)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w: %w", semel.ErrStoreUnavailable, err)
	}
	defer conn.Release()
	e := &examination{conn: conn.Conn(), sql: sql, slot: of, keep: o.Keep, patience: time.Minute, held: mostHeld}
	for _, look := range []func(context.Context) error{e.waiting, e.writers, e.horizon, e.holders, e.prepared, e.table, e.identity, e.commits, e.log, e.replication} {
		if err := look(ctx); err != nil {
			return e.findings, fmt.Errorf("outbox: examine: %w", err)
		}
	}
	return e.findings, nil
}

// replication looks at the slot, the publication and the settings that they need.
func (e *examination) replication(ctx context.Context) error {
	st, err := e.slot.state(ctx)
	if err != nil {
		return err
	}
	err = e.slot.judge(st)
	if err == nil {
		var conn *pgconn.PgConn
		if conn, err = e.slot.connect(ctx, "semel doctor"); err == nil {
			err = conn.Close(ctx)
		}
	}
	if wrong, ok := errors.AsType[*SlotError](err); ok {
		e.find(doctor.Broken, "outbox.slot", wrong.Cause, "nothing is read", wrong.Remedy)
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.reader(ctx, st); err != nil {
		return err
	}
	e.judge(st.mostRetained == "-1", "max_slot_wal_keep_size", cmp.Or(strings.Replace(st.mostRetained, "-1", "unlimited", 1), "unknown"), "while no relay runs, or its target is down, the server keeps its write-ahead log until the disk is full", "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()")
	if st.mostIdle != "" {
		e.judge(st.mostIdle != "0", "idle_replication_slot_timeout", st.mostIdle, "the server invalidates the slot if no relay runs for that long", "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()")
	}
	return nil
}

// reader checks which process reads the slot, and how much log the slot retains.
func (e *examination) reader(ctx context.Context, st *slotState) error {
	if !st.exists {
		e.judge(false, "outbox.slot", "slot "+e.slot.name+" is created by the first relay", "", "")
		return nil
	}
	found, dead := fmt.Sprintf("slot %s is %s, and no relay reads it", e.slot.name, st.status), error(nil)
	if st.pid != 0 {
		by, ok := errors.AsType[*standby](e.slot.owner(ctx, st.pid, ""))
		if ok {
			found, dead = fmt.Sprintf("slot %s is %s, read by %s (pid %d)", e.slot.name, st.status, by.name, by.pid), by.halfDead(e.slot.name)
		}
	}
	switch wrong, ok := errors.AsType[*SlotError](dead); {
	case ok:
		e.judge(true, "outbox.slot", wrong.Cause, "nothing is delivered", wrong.Remedy)
	case st.pid == 0:
		e.judge(true, "outbox.slot", found, "nothing is delivered, and the server keeps its write-ahead log", "semel outbox relay FILE; or, to do without: "+e.slot.forget())
	default:
		e.judge(st.status == "unreserved", "outbox.slot", found, "the server is about to remove log that the slot needs", "see why the relay is behind, and raise max_slot_wal_keep_size")
	}
	retained := fmt.Sprintf("the slot retains %d MB of the write-ahead log, %d MB of it unconfirmed", st.retained>>20, st.behind>>20)
	if st.safe >= 0 {
		retained += fmt.Sprintf("; the server may write %d MB more before it invalidates the slot", st.safe>>20)
	}
	e.judge(st.retained > 4<<30 || st.safe >= 0 && st.safe < 1<<30, "outbox.slot-wal", retained, "the disk of the server may become full, or the slot is lost", "see why the relay is behind: a target that is down, a message that is retried, or a transaction that is open for long")
	return nil
}
