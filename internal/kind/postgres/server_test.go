package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	brokerpostgres "github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// migrated returns a new database with the tables of a store.
func migrated(t *testing.T) (dsn string) {
	t.Helper()
	dsn = servers.Database(t)
	f := kindtest.Parse(t, kindtest.WithStore("{ postgres: { dsn: '"+dsn+"' } }"))
	if applied, err := tables(f, time.Minute).Migrate(t.Context()); err != nil || len(applied) == 0 {
		t.Fatalf("%d steps, %v", len(applied), err)
	}
	return dsn
}

// tables returns the tables of the first store of a file.
func tables(f *config.File, patience time.Duration) config.Tables {
	return f.Stores[0].Spec.(config.Database).Tables(f, patience)
}

// connect returns a connection to a database, until the end of the test.
func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, conn interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// examined checks the findings about a kind: each of wants is the start of a line, and the
// error has the text wantErr.
func examined(t *testing.T, f *config.File, of config.Kind, wantErr string, wants ...string) {
	t.Helper()
	lines, err := kindtest.Examine(t, f, of)
	if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
		t.Errorf("%T: %v, want %q", of, err, wantErr)
	}
	for _, want := range wants {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("%T: %q, want %s", of, lines, want)
		}
	}
}

func TestAStoreNeedsItsTables(t *testing.T) {
	t.Parallel()
	dsn := servers.Database(t)
	f := kindtest.Parse(t, "stores: { s: { postgres: { dsn: '"+dsn+"', prefix: x_ } } }")
	s := f.Stores[0].Spec.(*postgres.Store)
	if _, err := kindtest.OpenStore(t, f, "s"); !errors.Is(err, pgstore.ErrSchema) {
		t.Errorf("it opens without its tables: %v", err)
	}
	examined(t, f, s, "", "broken open: ")
	of := tables(f, time.Minute)
	before, err := of.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	applied, err := of.Migrate(t.Context())
	if err != nil || len(applied) == 0 || len(applied) < len(before) {
		t.Errorf("%d of %d steps are applied, %v", len(applied), len(before), err)
	}
	if again, err := of.Migrate(t.Context()); err != nil || len(again) != 0 {
		t.Errorf("%d steps are applied again, %v", len(again), err)
	}
	after, err := of.Status(t.Context())
	if err != nil || slices.ContainsFunc(after, func(step config.Migration) bool { return step.Applied.IsZero() }) {
		t.Errorf("%+v, %v", after, err)
	}
	if script, err := of.SQL(); err != nil || !strings.Contains(script, "x_keys") {
		t.Errorf("%v in:\n%s", err, script)
	}
	store, err := kindtest.OpenStore(t, f, "s")
	if err != nil {
		t.Fatal(err)
	}
	kindtest.Remembers(t, store, "1")
	examined(t, f, s, "", "fine ")
	execute(t, connect(t, dsn), "INSERT INTO x_migrations (version, name) VALUES (9999, 'future')")
	examined(t, f, s, "", "notice schema: a newer version of semel changed the tables, by step 9999 (future)")
}

// TestMigrationErrorNamesTheMissingPrivilege has a role without rights.
func TestMigrationErrorNamesTheMissingPrivilege(t *testing.T) {
	t.Parallel()
	dsn := servers.Database(t)
	admin := connect(t, dsn)
	role := "r" + strings.TrimSuffix(servicestest.Prefix(), ":")
	execute(t, admin, "CREATE ROLE "+role+" LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	t.Cleanup(func() { _, _ = admin.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	server, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("host=%s port=%d dbname=%s user=%s sslmode=disable", server.Host, server.Port, server.Database, role)
	f := kindtest.Parse(t, kindtest.WithStore("{ postgres: { dsn: '"+own+"' } }"))
	_, err = tables(f, time.Minute).Migrate(t.Context())
	if want := "user " + role + " may not create tables: "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `GRANT CREATE ON SCHEMA "public" TO `+role) {
		t.Errorf("%v, want %s", err, want)
	}
	down := kindtest.Parse(t, kindtest.WithStore("{ postgres: { dsn: 'postgres://"+servicestest.FreeAddr(t)+"/d?sslmode=disable' } }"))
	if _, err := tables(down, time.Minute).Status(t.Context()); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("a server that is down: %v", err)
	}
	examined(t, down, down.Stores[0].Spec, "refused")
}

// TestAMigrationDoesNotWaitForeverForALock has a session that holds the lock of a table.
func TestAMigrationDoesNotWaitForeverForALock(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	holder := connect(t, dsn)
	execute(t, holder, "BEGIN", "LOCK semel_migrations")
	f := kindtest.Parse(t, kindtest.WithStore("{ postgres: { dsn: '"+dsn+"' } }"))
	of := tables(f, 5*time.Second) // in which a slow machine connects
	if _, err := of.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "waited 5s for a lock of another migration, or of a transaction that uses these tables") {
		t.Errorf("%v", err)
	}
	execute(t, holder, "ROLLBACK")
	if _, err := of.Migrate(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestTheDoctorPlansTheStatementOfASink has tables that fit, and tables, columns and unique
// keys that are missing.
func TestTheDoctorPlansTheStatementOfASink(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	execute(t, connect(t, dsn), `CREATE TABLE orders (id text PRIMARY KEY, v bigint)`)
	for sink, want := range map[string]string{
		"table: orders, columns: { id: .id, v: .v }":                        "fine sink.postgres.table: the server can plan the statement",
		"table: orders, columns: { id: .id, v: .v }, key: [id], version: v": "fine sink.postgres.table: the server can plan the statement",
		"table: orders, columns: { id: .id, v: .v }, key: [v]":              "broken sink.postgres.table: no unique index of table orders has the columns (v)",
		"table: orders, columns: { id: .id, x: .v }":                        "broken sink.postgres.table: table orders has no column x",
		"table: Orders, columns: { id: .id }":                               "broken sink.postgres.table: table Orders does not exist",
		"statement: 'INSERT INTO orders (id) VALUES ($1)', args: [.id]":     "fine sink.postgres.statement: the server can plan the statement",
		"statement: 'INSERT INTO order (id) VALUES ($1)', args: [.id]":      "broken sink.postgres.statement: syntax error at or near",
		"outbox: {}": "fine sink.postgres.outbox: the server can plan the statement",
	} {
		f := kindtest.Parse(t, "stores: { s: { postgres: { dsn: '"+dsn+"' } } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { postgres: { store: s, "+sink+" } } } }")
		examined(t, f, f.Pipelines[0].Sink, "", want)
	}
	empty := servers.Database(t)
	f := kindtest.Parse(t, "stores: { s: { postgres: { dsn: '"+empty+"' } } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { postgres: { store: s, outbox: {} } } } }")
	examined(t, f, f.Pipelines[0].Sink, "", "broken sink.postgres.outbox: the database has no outbox")
}

// TestAnExaminationEndsAtALock has a session that holds the table of a sink.
func TestAnExaminationEndsAtALock(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	holder := connect(t, dsn)
	execute(t, holder, "CREATE TABLE orders (id text)", "SET application_name = 'holder'", "BEGIN", "LOCK orders")
	f := kindtest.Parse(t, kindtest.WithSink("{ postgres: { dsn: '"+dsn+"', table: orders, columns: { id: .id } } }"))
	for tries := 1; ; tries++ { // the error names the holder if it was found before the wait was over
		_, err := kindtest.Examine(t, f, f.Pipelines[0].Sink)
		if err != nil && strings.Contains(err.Error(), "a statement waited for") {
			break
		}
		if tries == 5 {
			t.Fatalf("%v, want that a statement waited for the holder", err)
		}
	}
	execute(t, holder, "ROLLBACK")
	examined(t, f, f.Pipelines[0].Sink, "", "fine sink.postgres.table: the server can plan the statement")
}

// TestRowsAndKeysAreOneTransaction delivers with the session of a sink in the database of the
// store, and with a sink alone.
func TestRowsAndKeysAreOneTransaction(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	conn := connect(t, dsn)
	execute(t, conn, "CREATE TABLE orders (id text)")
	f := kindtest.Parse(t, "stores: { s: { postgres: { dsn: '"+dsn+"' } } }\npipelines: { p: { key: { id: .id }, store: s, source: { file: { paths: [in] } }, sink: { postgres: { store: s, table: orders, columns: { id: .id }, outbox: { aggregate: .id, topic: header:t } } } } }")
	p := f.Pipelines[0]
	keys, err := kindtest.OpenStore(t, f, "s")
	if err != nil {
		t.Fatal(err)
	}
	env := &config.Env{File: f, Pipeline: p, Keys: keys}
	session, source, err := p.Sink.(config.SessionSink).OpenSession(t.Context(), env)
	if err != nil || source != nil {
		t.Fatalf("source %v, %v", source, err)
	}
	for _, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		it := &pipeline.Item{Call: semel.Call{Key: semel.Key{Scope: "p", ID: "1"}}}
		it.Message.Body = []byte(`{"id":"1"}`)
		session.Process(t.Context(), []*pipeline.Item{it})
		if it.Err != nil || it.Decision != want {
			t.Errorf("decision %v, %v; want %v", it.Decision, it.Err, want)
		}
	}
	if err := session.Close(t.Context()); err != nil {
		t.Error(err)
	}
	kindtest.Deliver(t, kindtest.Parse(t, kindtest.WithSink("{ postgres: { dsn: '"+dsn+"', table: orders, columns: { id: .id } } }")), `{"id":"a"}`, `{"id":"b"}`)
	var ids string
	if err := conn.QueryRow(t.Context(), "SELECT string_agg(id, ' ' ORDER BY id) FROM orders").Scan(&ids); err != nil || ids != "1 a b" {
		t.Errorf("%q, %v", ids, err)
	}
}

// TestEventsPassThroughTheOutbox writes an event with a sink, finds it, and reads it with
// the source of the outbox.
func TestEventsPassThroughTheOutbox(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	f := kindtest.Parse(t, `
stores: { s: { postgres: { dsn: "`+dsn+`" } }, keys: { embedded: { path: keys } } }
pipelines:
  writer: { key: { id: .id }, store: keys, source: { file: { paths: [in] } }, sink: { postgres: { store: s, outbox: { aggregate: .id, topic: orders } } } }
  relay:  { key: { id: "header:semel-key" }, source: { outbox: { store: s } }, sink: { file: { path: out } } }
`)
	relay := kindtest.Parse(t, `
stores: { s: { postgres: { dsn: "`+dsn+`" } } }
pipelines: { relay: { key: { id: "header:semel-key" }, source: { outbox: { store: s } }, sink: { rabbitmq: { servers: ["h:1"], exchange: shop, routing_key: paid } } } }
`)
	source := relay.Pipelines[0].Source.(*postgres.Outbox)
	examined(t, relay, source, "", "fine ")
	kindtest.Deliver(t, f, `{"id":"1"}`, `{"id":"2"}`)
	if got, want := kindtest.Sample(t, relay), []string{`{"id":"1"}`, `{"id":"2"}`}; !slices.Equal(got, want) {
		t.Errorf("the sample is %q, want %q", got, want)
	}
	found, looked := kindtest.Trace(t, relay, source, `{"id":"1"}`)
	if len(found) != 1 || !strings.HasPrefix(found[0], "outbox of s, row ") || !strings.HasSuffix(found[0], ": written to the outbox; it waits, and no relay owns its shard, to be sent to exchange shop, routing key paid") ||
		!slices.Equal(looked, []string{"outbox of s: rows that relay has not delivered; a delivered row is gone"}) {
		t.Errorf("found %q, looked at %q", found, looked)
	}
	alone := kindtest.Parse(t, "stores: { s: { postgres: { dsn: '"+dsn+"' } }, keys: { embedded: { path: keys } } }\npipelines: { writer: { key: { id: .id }, store: keys, source: { file: { paths: [in] } }, sink: { postgres: { store: s, outbox: {} } } } }")
	for file, want := range map[*config.File]int{alone: 1, f: 0} { // the relay of f looks for the row itself
		found, looked := kindtest.Trace(t, file, file.Pipelines[0].Sink, `{"id":"2"}`)
		if len(found) != want || len(looked) != want+1 || !strings.Contains(looked[0], "it cannot be searched") {
			t.Errorf("found %q, looked at %q", found, looked)
		}
	}
	if got, want := kindtest.Receive(t, relay, 2), []string{`{"id":"1"}`, `{"id":"2"}`}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	if found, _ := kindtest.Trace(t, relay, source, `{"id":"1"}`); len(found) != 0 {
		t.Errorf("a delivered row is found: %q", found)
	}
	missing := kindtest.Parse(t, "stores: { s: { postgres: { dsn: '"+servers.Database(t)+"' } } }\npipelines: { relay: { key: { id: 'header:semel-key' }, source: { outbox: { store: s } }, sink: { stdout: {} } } }")
	examined(t, missing, missing.Pipelines[0].Source, "", "broken source.outbox.store: ")
}

func TestTwoRelaysOfAnOutboxAreRefused(t *testing.T) {
	t.Parallel()
	const relay = "{ key: { id: 'header:semel-key' }, source: { outbox: { store: s } }, sink: { file: { path: %s } } }"
	kindtest.Refused(t, [][2]string{
		{"stores: { s: { postgres: { dsn: 'host=h' } } }\npipelines: { p: " + fmt.Sprintf(relay, "a") + ", q: " + fmt.Sprintf(relay, "b") + " }", "pipelines.q.source.outbox.store: p reads the same outbox (line 2)"},
		{"stores: { s: { postgres: { dsn: 'host=h' } } }\npipelines: { p: { key: { id: 'header:semel-key' }, source: { outbox: { store: s, slot: a } }, sink: { stdout: {} } } }", "pipelines.p.source.outbox.slot: it needs mode: wal: write that too, or leave it out"},
	})
}

// TestPostgresKindOpensDeadLettersAndMaintenance opens the two services of a store
// next to its keys.
func TestPostgresKindOpensDeadLettersAndMaintenance(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithStore("{ postgres: { dsn: '"+migrated(t)+"' } }"))
	s := f.Stores[0].Spec.(*postgres.Store)
	letters, err := s.OpenDeadLetters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Close(); err != nil {
		t.Error(err)
	}
	store, err := kindtest.OpenStore(t, f, "s")
	if err != nil {
		t.Fatal(err)
	}
	clean := s.Clean(store)
	if clean == nil {
		t.Fatal("the store deletes its expired keys by itself")
	}
	ctx, cancel := context.WithCancel(t.Context())
	passes := 0
	if err := clean(ctx, func(gone int64, err error) {
		if passes++; gone != 0 || err != nil {
			t.Errorf("%d keys are gone, %v", gone, err)
		}
		cancel()
	}); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if passes == 0 {
		t.Error("no pass is reported")
	}
}

func TestAWrongAddressIsFoundWithoutConnecting(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{"postgres://u@h:5432/d": true, "host=h port=5432": true, "postgres://u@h:x/d": false, "host=h sslmode=perhaps": false} {
		s := &postgres.Store{DSN: schema.NewAddress(dsn)}
		if field, err := s.CheckAddress(true); field != "dsn" || (err == nil) != want {
			t.Errorf("%s: %s, %v; want it right: %v", dsn, field, err, want)
		}
	}
}

// TestErrorsOfTheServerHaveACauseAndARemedy has the errors that a store, a sink and an outbox
// get from a server.
func TestErrorsOfTheServerHaveACauseAndARemedy(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, "stores: { db: { postgres: { dsn: 'postgres://app@h/shop' } } }\n"+
		"pipelines: { p: { key: { id: 'header:semel-key' }, source: { outbox: { store: db, keep: 1d } }, sink: { postgres: { dsn: 'postgres://app@h/shop', table: orders, columns: { id: .id }, key: [id] } } } }")
	store, p := f.Stores[0].Spec, f.Pipelines[0]
	sink, outbox := p.Sink, p.Source
	server := func(code, message string) error {
		return fmt.Errorf("postgres: %w", &pgconn.PgError{Code: code, Message: message})
	}
	for _, c := range []struct {
		of   config.Kind
		path string
		err  error
		want string // cause: remedy
	}{
		{store, "stores.db.postgres", server("28P01", "x"), "password refused for user app: correct stores.db.postgres.dsn"},
		{store, "stores.db.postgres", server("28000", `role "app" does not exist`), `role "app" does not exist: create the role or let it connect (pg_hba.conf), or correct stores.db.postgres.dsn`},
		{store, "stores.db.postgres", server("28000", "no pg_hba.conf entry, no encryption"), "no pg_hba.conf entry, no encryption: write sslmode=require in stores.db.postgres.dsn, or let app connect without TLS (pg_hba.conf)"},
		{store, "stores.db.postgres", server("3D000", "x"), "database shop does not exist: create it: createdb shop, or correct stores.db.postgres.dsn"},
		{store, "stores.db.postgres", server("53300", "too many clients"), "too many clients: lower pool_max_conns in stores.db.postgres.dsn, or raise max_connections of the server"},
		{store, "stores.db.postgres", server("53100", "x"), "the server has no disk space: x: free or add space on its disk"},
		{store, "stores.db.postgres", server("57P01", "x"), "the server ended the connection: x: it stops or restarts, or a person ended the session: wait for it"},
		{store, "stores.db.postgres", server("57P03", "it starts"), "it starts: the server is starting, stopping or recovering: wait for it"},
		{store, "stores.db.postgres", server("25006", "x"), "the server is read-only: x: name the primary in stores.db.postgres.dsn, or add target_session_attrs=read-write"},
		{store, "stores.db.postgres", server("42501", "permission denied for database shop"), "permission denied for database shop: GRANT CONNECT ON DATABASE shop TO app"},
		{store, "stores.db.postgres", server("42501", "permission denied for table semel_keys"), `user app: permission denied for table semel_keys: GRANT SELECT, INSERT, UPDATE, DELETE ON "public"."semel_keys" TO "app"`},
		{store, "stores.db.postgres", server("42501", "permission denied for table semel_migrations"), `user app: permission denied for table semel_migrations: GRANT SELECT ON "public"."semel_migrations" TO "app"`},
		{store, "stores.db.postgres", server("42501", "permission denied for schema public"), `user app: permission denied for schema public: GRANT USAGE ON SCHEMA public TO "app"`},
		{store, "stores.db.postgres", server("42501", "permission denied for sequence ids"), `user app: permission denied for sequence ids: GRANT USAGE ON SEQUENCE "public"."ids" TO "app"`},
		{store, "stores.db.postgres", &brokerpostgres.LockError{By: "process 7", Err: io.EOF}, "a statement waited for process 7: "},
		{store, "stores.db.postgres", fmt.Errorf("pgstore: open: the tables are missing: run x: %w", pgstore.ErrSchema), "the tables are missing: semel migrate up --config dir/semel.yaml --store-name db"},
		{store, "stores.db.postgres", errors.New("server refused TLS connection"), "the server has no TLS: switch it on there (ssl = on), or write sslmode=disable in stores.db.postgres.dsn if the network is safe"},
		{store, "stores.db.postgres", brokerpostgres.ErrSilent, "the server does not answer: is it stopped or overloaded, and can this machine still reach it? Correct stores.db.postgres.dsn"},
		{store, "stores.db.postgres", fmt.Errorf("pgstore: ready: no answer within 3s: %w", semel.ErrStoreUnavailable), "the server does not answer: is it stopped or overloaded, and can this machine still reach it? Correct stores.db.postgres.dsn"},
		{store, "stores.db.postgres", io.EOF, ""},
		{sink, "sink.postgres", server("55P03", "x"), "a statement waited too long for a lock: x: see who holds it: SELECT pid"},
		{sink, "sink.postgres", server("57014", "x"), "x: raise statement_timeout, or see who holds a lock: SELECT pid"},
		{sink, "sink.postgres", server("42501", "permission denied for table orders"), "user app: permission denied for table orders: grant the privilege: GRANT SELECT, INSERT, UPDATE ON orders TO app"},
		{sink, "sink.postgres", server("42P10", "x"), "no unique index of table orders has the columns (id): CREATE UNIQUE INDEX ON orders (id), or correct sink.postgres.key"},
		{outbox, "source.outbox", server("42501", "permission denied for table semel_outbox"), "user app: permission denied for table semel_outbox: GRANT SELECT, DELETE ON"},
		{outbox, "source.outbox", fmt.Errorf("x: %w", pgstore.ErrSchema), "the database has no outbox: semel migrate up --config dir/semel.yaml --store-name db"},
		{outbox, "source.outbox", io.EOF, ""},
	} {
		got := ""
		if said := c.of.Advise(f, p, c.path, c.err); said != nil {
			got = said.Cause + ": " + said.Remedy
		}
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%T: %v: %q, want %q", c.of, c.err, got, c.want)
		}
	}
}
