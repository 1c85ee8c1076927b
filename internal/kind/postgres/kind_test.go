package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	brokerpostgres "github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/postgres"
)

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, postgres.NewSink, kindtest.Case{
		Least:   `{ store: rows, table: orders, columns: { id: .id } }`,
		Secrets: []string{`{ dsn: "postgres://u:` + kindtest.Secret + `@h/d", table: orders, columns: { id: .id } }`},
	})
}

func TestOutboxSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, postgres.NewOutbox, kindtest.Case{Least: `{ store: rows }`})
}

func TestStorePassesTheKindSuite(t *testing.T) {
	kindtest.Store(t, postgres.NewStore, kindtest.Case{
		Least:   `{ dsn: "host=h" }`,
		Secrets: []string{`{ dsn: "host=h password=` + kindtest.Secret + `" }`},
	})
}

// A trigger may put a part of a message into a name. Probes show names of the
// configuration alone.
func TestProbesShowOnlyNamesFromTheConfiguration(t *testing.T) {
	t.Parallel()
	table := &postgres.Sink{Table: "app.orders", Columns: []brokerpostgres.Column{{Name: "id", From: ".id"}}}
	statement := &postgres.Sink{Statement: "INSERT INTO orders (id) VALUES ($1)"}
	for _, c := range []struct {
		sink          *postgres.Sink
		code, message string
		want          string
		public        bool
	}{
		{table, "42P01", `relation "app.orders" does not exist`, "table app.orders does not exist: create it, or correct sink.postgres.table", true},
		{table, "42P01", `relation "log_alice" does not exist`, "table log_alice does not exist: create it, or correct the trigger of app.orders", false},
		{table, "42703", `column "id" of relation "orders" does not exist`, "table orders has no column id: add it, or correct sink.postgres.columns", true},
		{statement, "42703", `column "id" of relation "orders" does not exist`, `column "id" of relation "orders" does not exist: add it, or correct sink.postgres.statement`, true},
		{statement, "42601", `syntax error at or near "alice"`, `syntax error at or near "alice": correct sink.postgres.statement`, false},
	} {
		got := c.sink.Advise(&config.File{}, nil, "sink.postgres", fmt.Errorf("postgres: %w", &pgconn.PgError{Code: c.code, Message: c.message}))
		if got == nil || got.Error() != c.want || got.Public != c.public {
			t.Errorf("%s %s becomes %v (public: %v), want %s", c.code, c.message, got, got != nil && got.Public, c.want)
		}
	}
	if got := table.Advise(&config.File{}, nil, "sink.postgres", &pgconn.PgError{Code: "22P02", Message: "invalid input: alice"}); got != nil {
		t.Errorf("the fault of a message: %v", got)
	}
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	db := kindtest.ReadStore[*postgres.Store](t, `{ postgres: { dsn: "host=localhost dbname=app password='x y z w'", schema: once, prefix: s_, cleanup: delete, partitions: 8 } }`)
	if db.Schema != "once" || db.Prefix != "s_" || db.Cleanup != "delete" || db.Partitions != 8 || db.DSN.String() != "host=localhost dbname=app password=[hidden]" {
		t.Errorf("store: %+v", db)
	}
	if ages := kindtest.ReadStore[*postgres.Store](t, `{ postgres: { dsn: "host=h", cleanup: message-time, message_age: 7d } }`); ages.Cleanup != "message-time" || ages.MessageAge != 168*time.Hour {
		t.Errorf("store: %+v", ages)
	}
	table := kindtest.ReadSink[*postgres.Sink](t, "{ postgres: { store: db, table: app.rows, columns: { id: .id, at: time }, key: [id], version: at } }")
	if table.Store.Name != "db" || table.Table != "app.rows" || !slices.Equal(table.Columns, []brokerpostgres.Column{{Name: "id", From: ".id"}, {Name: "at", From: "time"}}) || !slices.Equal(table.Key, []string{"id"}) || table.Version != "at" {
		t.Errorf("table: %+v", table)
	}
	statement := kindtest.ReadSink[*postgres.Sink](t, `{ postgres: { dsn: "host=other", statement: "SELECT f($1, $2)", args: [body, "header:x"] } }`)
	if statement.Statement != "SELECT f($1, $2)" || !slices.Equal(statement.Args, []string{"body", "header:x"}) || statement.DSN.Reveal() != "host=other" {
		t.Errorf("statement: %+v", statement)
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithStore("{ postgres: {} }"), "stores.s.postgres: dsn is missing"},
		{kindtest.WithStore("{ postgres: { dsn: 'mysql://h/d' } }"), "stores.s.postgres.dsn: not an address of a PostgreSQL server: write postgres://user:password@host:5432/database"},
		{kindtest.WithStore("{ postgres: { dsn: 'postgres://u:a@b@h/d' } }"), "stores.s.postgres.dsn: the address cannot be parsed: in the password of a URL write %2F for /, %3F for ?, %23 for # and %40 for @; elsewhere put a value with blanks in single quotes"},
		{kindtest.WithStore("{ postgres: { dsn: 'host=h', schema: 'a;b', prefix: A } }"), "stores.s.postgres.schema: \"a;b\": write lower-case letters, digits and _, a letter first\nstores.s.postgres.prefix: \"A\": write lower-case letters, digits and _, a letter first"},
		{kindtest.WithStore("{ postgres: { dsn: 'host=h', cleanup: sweep } }"), "stores.s.postgres.cleanup: \"sweep\": write one of delete, message-time"},
		{kindtest.WithStore("{ postgres: { dsn: 'host=h', partitions: 0 } }"), "stores.s.postgres.partitions: \"0\": must be between 1 and 1024"},
		{kindtest.WithStore("{ postgres: { dsn: 'host=h', message_age: 1d } }"), "stores.s.postgres.message_age: it needs cleanup: message-time: write that too, or leave it out"},
		{kindtest.WithSink("{ postgres: { store: db } }"), "pipelines.p.sink.postgres: one of statement, table, outbox is missing"},
		{kindtest.WithSink("{ postgres: { store: db, statement: x, outbox: {} } }"), "pipelines.p.sink.postgres.outbox: a statement writes to the outbox itself, with semel_outbox_write"},
		{kindtest.WithSink("{ postgres: { dsn: 'host=h', outbox: {} } }"), "pipelines.p.sink.postgres.outbox: it needs store"},
		{kindtest.WithSink("{ postgres: { store: db, outbox: { aggregate: order } } }"), `pipelines.p.sink.postgres.outbox.aggregate: "order": write a path such as .amount`},
		{kindtest.WithSink("{ postgres: { statement: x } }"), "pipelines.p.sink.postgres: one of store, dsn is missing"},
		{kindtest.WithSink("{ postgres: { store: keys, statement: x } }"), "pipelines.p.sink.postgres.store: keys is embedded: name a store of the kind postgres"},
		{kindtest.WithSink("{ postgres: { store: db, table: t } }"), "pipelines.p.sink.postgres: columns is missing"},
		{kindtest.WithSink("{ postgres: { store: db, table: 'a.b.c', columns: { a: .a } } }"), "pipelines.p.sink.postgres.table: \"a.b.c\": write table, schema.table or"},
		{kindtest.WithSink("{ postgres: { store: db, table: t, columns: { '': .a } } }"), "pipelines.p.sink.postgres.columns: this is not a column name: a name has 1 to 63 bytes, not 0"},
		{kindtest.WithSink("{ postgres: { store: db, table: t, columns: { a: amount } } }"), `pipelines.p.sink.postgres.columns.a: "amount": write a path such as .amount, header:NAME, or record-key`},
		{kindtest.WithSink("{ postgres: { store: db, table: t, columns: {} } }"), "pipelines.p.sink.postgres.columns: it has no column"},
		{kindtest.WithSink("{ postgres: { store: db, statement: x, columns: { a: .a } } }"), "pipelines.p.sink.postgres.columns: it is for a table: leave it out"},
		{kindtest.WithSink("{ postgres: { store: db, table: t, columns: { id: .a, version: .v }, key: [idd], version: v } }"), "pipelines.p.sink.postgres.key: idd is not among the columns: did you mean id?\nversion"},
		{"stores: { db: { postgres: { dsn: 'host=h' } } }\npipelines: { p: { key: { id: .id }, source: { outbox: { store: db } }, sink: { postgres: { store: db, outbox: {} } } } }", "pipelines.p.sink.postgres.outbox: the pipeline reads the same outbox"},
	})
}

// TestEventsOfTwoPipelinesNeedKeysOfTheirOwn has two pipelines that write to one outbox.
func TestEventsOfTwoPipelinesNeedKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	const (
		writer = "  %s: { source: { file: { paths: [a] } }, key: { id: .id }, store: db, sink: { postgres: { store: db, outbox: {} } } }\n"
		relay  = "  relay: { source: { outbox: { store: db } }, key: { id: [%s] }, sink: { file: { path: out } } }\n"
		told   = "warning loss pipelines.one.sink.postgres.outbox: the outbox of db, to which two writes too"
	)
	for _, c := range []struct {
		pipelines string
		want      bool
	}{
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(relay, `"header:semel-key"`), false},
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(writer, "two"), true},
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(writer, "two") + fmt.Sprintf(relay, `"header:semel-key"`), true},
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(writer, "two") + fmt.Sprintf(relay, `{ all: ["header:semel-pipeline", "header:semel-key"] }`), false},
	} {
		f := kindtest.Parse(t, "stores: { db: { postgres: { dsn: 'host=h' } } }\npipelines:\n"+c.pipelines)
		if got := strings.Join(kindtest.Findings(f), "\n"); strings.Contains(got, told) != c.want {
			t.Errorf("%s\nhas %s", c.pipelines, got)
		}
	}
}
