package outbox_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestDoctorFindsUndeliveredRows(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	if _, err := relay.Examine(t.Context(), address, nil); !errors.Is(err, pgstore.ErrSchema) {
		t.Error(err)
	}
	pool := migrated(t, address)
	examine := func(want ...string) {
		t.Helper()
		findings, err := relay.Examine(t.Context(), address, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			severity, rest, _ := strings.Cut(w, " ")
			subject, found, _ := strings.Cut(rest, ": ")
			if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
				return f.Severity.String() == severity && f.Subject == subject && strings.HasPrefix(f.Found, found)
			}) {
				t.Errorf("%+v, want %s", findings, w)
			}
		}
	}
	examine("fine outbox.oldest: no row waits", "fine outbox.shards: 0 live relays, and 0 shards", "fine outbox.writers: 0 transactions that write", "fine outbox.horizon: no transaction is open for long",
		"fine outbox.prepared: 0 prepared transactions", "fine outbox.autovacuum: autovacuum is on", "fine outbox.replica_identity: the primary key", "fine synchronous_commit: on")
	if err := write(t.Context(), pool, event("a", "1")); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "UPDATE semel_outbox SET created = created - interval '1 hour'")
	exec(t, pool, "ALTER TABLE semel_outbox SET (autovacuum_enabled = false)")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := outbox.Write(t.Context(), tx, event("a", "2")); err != nil {
		t.Fatal(err)
	}
	examine("warning outbox.oldest: the oldest row waits for 1h0m", "warning outbox.shards: 0 live relays, and 1 shards without a relay whose rows wait",
		"fine outbox.writers: 1 transactions that write to it are open, the oldest for ", "warning outbox.autovacuum: autovacuum is off")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "TRUNCATE semel_outbox")
	if err := write(t.Context(), pool, outbox.Message{DeliverAt: time.Now().Add(-time.Hour)}, outbox.Message{DeliverAt: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "ALTER TABLE semel_outbox SET (autovacuum_enabled = on, toast.autovacuum_enabled = off)")
	exec(t, pool, "ALTER TABLE semel_outbox REPLICA IDENTITY NOTHING")
	examine("warning outbox.oldest: the oldest row waits for 1h0m", "warning outbox.autovacuum: autovacuum is off for the long values", "warning outbox.replica_identity: nothing")
	exec(t, pool, "ALTER TABLE semel_outbox RESET (toast.autovacuum_enabled, autovacuum_vacuum_scale_factor)")
	exec(t, pool, "CREATE PUBLICATION everything FOR TABLE semel_outbox")
	examine("notice outbox.autovacuum: autovacuum runs when 20% of the rows", "broken outbox.replica_identity: nothing, and a publication has the table")
	exec(t, pool, "ALTER TABLE semel_outbox REPLICA IDENTITY FULL")
	examine("warning outbox.replica_identity: full")
}

// TestDoctorFindsOldTransactionsAndRiskySettings has a server of its own, because it changes what
// other tests would see.
func TestDoctorFindsOldTransactionsAndRiskySettings(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "5"}})
	address := servicestest.NewDatabase(t, server.URL())
	pool := migrated(t, address)
	idle, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Rollback(t.Context())
	var pid int
	if err := idle.QueryRow(t.Context(), "SELECT pg_backend_pid() FROM txid_current()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "BEGIN; INSERT INTO semel_outbox DEFAULT VALUES; PREPARE TRANSACTION 'it''s'")
	defer exec(t, pool, "ROLLBACK PREPARED 'it''s'")
	exec(t, pool, "CREATE ROLE fast; ALTER ROLE fast SET synchronous_commit = off; GRANT INSERT ON semel_outbox TO fast; CREATE ROLE other; ALTER ROLE other SET synchronous_commit = off; CREATE ROLE looker LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO looker")
	feedBack(t, server.URL(), "gone")
	findings, err := relay.ExamineAfter(t.Context(), address, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []doctor.Finding{
		{Subject: "outbox.horizon", Found: "a transaction is open for ", Remedy: fmt.Sprintf("end it: SELECT pg_terminate_backend(%d)", pid)},
		{Subject: "outbox.prepared", Found: `1 prepared transactions, the oldest for \d+s \(it's\)`, Remedy: "end it: COMMIT PREPARED 'it''s', or ROLLBACK PREPARED 'it''s'"},
		{Subject: "outbox.standbys", Found: "slot gone keeps rows that were deleted in the last ", Remedy: "if its standby server is gone: SELECT pg_drop_replication_slot('gone')"},
		{Subject: "synchronous_commit", Found: "on, and off for role fast"},
	} {
		if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
			return f.Severity == doctor.Warning && f.Subject == want.Subject && regexp.MustCompile("^"+want.Found).MatchString(f.Found) && strings.HasPrefix(f.Remedy, want.Remedy) && !strings.Contains(f.Found, "other")
		}) {
			t.Errorf("%+v, want %+v", findings, want)
		}
	}
	of, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	of.User = url.User("looker")
	if findings, err = relay.Examine(t.Context(), of.String(), nil); err != nil || !has(findings, doctor.Notice, "outbox.horizon", "1 sessions hide from this role") {
		t.Errorf("%+v, %v", findings, err)
	}
}

func TestSampleReadsWithoutAShard(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	exec(t, pool, "INSERT INTO semel_outbox (aggregate, payload) SELECT 'a', convert_to(n::text, 'UTF8') FROM generate_series(1, 1102) AS n")
	var got []string
	if err := relay.Sample(t.Context(), address, pgstore.Names{}, func(m *semel.Message) bool {
		got = append(got, string(m.Body))
		return len(got) < 1101
	}); err != nil || len(got) != 1101 || got[0] != "1" || got[1100] != "1101" {
		t.Errorf("%d messages, %v", len(got), err)
	}
	eventually(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 1102 AND (SELECT count(*) FROM semel_outbox_shards WHERE epoch > 0) = 0")
}

// feedBack creates a physical replication slot, and reports an old transaction through it, as
// a standby server with hot_standby_feedback does. Then it goes away.
func feedBack(t *testing.T, address, slot string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	exec(t, pool, "SELECT pg_create_physical_replication_slot($1)", slot)
	var xid uint32
	if err := pool.QueryRow(t.Context(), "SELECT txid_current()").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	system, err := pglogrepl.IdentifySystem(t.Context(), conn)
	if err == nil {
		err = pglogrepl.StartReplication(t.Context(), conn, slot, system.XLogPos, pglogrepl.StartReplicationOptions{Mode: pglogrepl.PhysicalReplication})
	}
	if err != nil {
		t.Fatal(err)
	}
	report := append([]byte{'h'}, make([]byte, 24)...) // time, xmin, epoch, and both for catalogs
	binary.BigEndian.PutUint32(report[9:], xid)
	conn.Frontend().Send(&pgproto3.CopyData{Data: report})
	if err := conn.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT count(*) = 1 FROM pg_replication_slots WHERE xmin IS NOT NULL AND slot_name = '"+slot+"'")
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT count(*) = 0 FROM pg_replication_slots WHERE active")
	exec(t, pool, "SELECT txid_current()")
}
