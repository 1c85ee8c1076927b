package outbox_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/outboxrow"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

// maxBytes is the limit that outbox.Message names.
const maxBytes = 8 << 20

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// migrated returns a pool on a database that has the tables, and its address.
func migrated(t *testing.T) (*pgxpool.Pool, string) {
	t.Helper()
	address := servers.Database(t)
	pool, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pgstore.Migrate(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	return pool, address
}

// payloads returns the payloads in the outbox, in the order of its rows.
func payloads(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	var all string
	if err := pool.QueryRow(t.Context(), "SELECT coalesce(string_agg(coalesce(convert_from(payload, 'UTF8'), '-'), ' ' ORDER BY seq), '') FROM semel_outbox").Scan(&all); err != nil {
		t.Fatal(err)
	}
	return all
}

func numbered(n int) []outbox.Message {
	list := make([]outbox.Message, n)
	for i := range list {
		list[i] = outbox.Message{Aggregate: "a", Topic: "t", Payload: fmt.Append(nil, i)}
	}
	return list
}

// ship is the code of the example and of docs/guides/outbox.md.
func ship(ctx context.Context, guard *pgstore.Guard, order, request string) error {
	key := semel.Key{Scope: "shipments", ID: request}
	_, err := guard.DoTx(ctx, key, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if _, err := tx.Exec(ctx, "UPDATE orders SET state = 'shipped' WHERE id = $1", order); err != nil {
			return nil, err
		}
		return nil, outbox.Write(ctx, tx, outbox.Message{
			Aggregate: "order-" + order, // the events of one order keep their order
			Topic:     "orders",
			Payload:   []byte(`{"event":"shipped","order":"` + order + `"}`),
		})
	})
	return err
}

// The key of the request, the row and the event are one transaction. The example
// needs a server, so a test runs it.
func ExampleWrite() {
	ctx := context.Background()
	store, err := pgstore.Connect(ctx, os.Getenv("DATABASE_URL"), &pgstore.Options{Migrate: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ship(ctx, guard, "42", "request-1"))
}

func TestKeyRowAndEventAreOneTransaction(t *testing.T) {
	t.Parallel()
	pool, _ := migrated(t)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE orders (id text, state text CHECK (state <> 'shipped' OR id <> '13')); INSERT INTO orders VALUES ('42', 'new'), ('13', 'new')"); err != nil {
		t.Fatal(err)
	}
	store, err := pgstore.New(t.Context(), pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := pgstore.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ship(t.Context(), guard, "42", "request-1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := ship(t.Context(), guard, "13", "request-2"); err == nil {
		t.Error("the row was refused, and there is no error")
	}
	failed := errors.New("the effect failed after it wrote")
	if _, err := guard.DoTx(t.Context(), semel.Key{Scope: "shipments", ID: "request-3"}, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		return nil, errors.Join(outbox.Write(ctx, tx, outbox.Message{Payload: []byte("of an effect that failed")}), failed)
	}); !errors.Is(err, failed) {
		t.Error(err)
	}
	if got := payloads(t, pool); got != `{"event":"shipped","order":"42"}` {
		t.Errorf("the outbox has %s", got)
	}
}

func TestMessagesKeepTheirOrderAndFields(t *testing.T) {
	t.Parallel()
	pool, address := migrated(t)
	list := numbered(3000)
	later := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	id := "018f3c5a-0000-7000-8000-00000000000A"
	list = append(list, outbox.Message{ID: id, DeliverAt: later, Headers: []semel.Header{{Name: "b", Value: []byte("\x00\"ä")}, {Name: "a"}, {Name: "b", Value: []byte("2")}}})
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprint(&want, i, " ")
	}
	want.WriteString("-")
	check := func(how string) {
		t.Helper()
		if got := payloads(t, pool); got != want.String() {
			t.Errorf("%s: the outbox has %.200s", how, got)
		}
		var shards, ids int
		var headers, aggregate string
		var at time.Time
		err := pool.QueryRow(t.Context(), "SELECT (SELECT count(DISTINCT shard) FROM semel_outbox WHERE aggregate = 'a'), (SELECT count(DISTINCT id) FROM semel_outbox), headers::text, deliver_at, coalesce(aggregate, 'none') FROM semel_outbox WHERE id = $1", id).
			Scan(&shards, &ids, &headers, &at, &aggregate)
		if err != nil || shards != 1 || ids != 3001 || headers != `{"b":"\u0000\"ä","a":"","b":"2"}` || !at.Equal(later) || aggregate != "none" {
			t.Errorf("%s: %d shards, %d ids, headers %s, at %v, aggregate %s, %v", how, shards, ids, headers, at, aggregate, err)
		}
		if _, err := pool.Exec(t.Context(), "DELETE FROM semel_outbox"); err != nil {
			t.Fatal(err)
		}
	}
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, list...) }); err != nil {
		t.Fatal(err)
	}
	check("pgx")
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	behind := config.Copy()
	behind.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // as behind a pooler
	conn, err := pgx.ConnectConfig(t.Context(), behind)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if err := outbox.Write(t.Context(), tx, list[:2999]...); err != nil {
			return err
		}
		for _, m := range list[2999:] {
			if err := outbox.Write(t.Context(), tx, m); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	check("one at a time, behind a pooler")
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		var b pgx.Batch
		err := errors.Join(outbox.Queue(&b, list[:2999]...), outbox.Queue(&b), outbox.Queue(&b, list[2999]), outbox.Queue(&b, list[3000]))
		return errors.Join(err, tx.SendBatch(t.Context(), &b).Close())
	}); err != nil {
		t.Fatal(err)
	}
	check("in a batch")
	for how, mode := range map[string]pgx.QueryExecMode{"sql": pgx.QueryExecModeCacheStatement, "sql with texts": pgx.QueryExecModeSimpleProtocol} {
		config := config.Copy()
		config.DefaultQueryExecMode = mode
		db := stdlib.OpenDB(*config)
		defer db.Close()
		commit(t, db, list)
		check(how)
	}
}

func commit(t *testing.T, db *sql.DB, list []outbox.Message) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(outbox.WriteSQL(t.Context(), tx, list...), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

func TestWriteRefusesInvalidMessages(t *testing.T) {
	t.Parallel()
	err := outbox.Write(t.Context(), nil, outbox.Message{ID: "7"}, outbox.Message{}, outbox.Message{Aggregate: "\xff", Topic: "a\x00", Headers: []semel.Header{{Name: "bytes", Value: []byte{0xff}}}},
		outbox.Message{Payload: make([]byte, maxBytes), Topic: "t"}, outbox.Message{DeliverAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatal(err)
	}
	for _, want := range []string{`message 0: ID: "7" is not a UUID`, "message 2: Aggregate: not a text", "message 2: Topic: not a text", `message 2: Headers: header 0 ("bytes"): not a text in UTF-8: encode the value`,
		"message 3: Payload: the message has 8388609 bytes, and at most 8388608", "message 4: DeliverAt: the year 10000"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
	if err := outbox.Write(t.Context(), nil); err != nil { // nothing to write
		t.Error(err)
	}
	if _, err := outbox.New(pgstore.Names{Schema: "a b"}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Error(err)
	}
}

// TestLargestMessageIsWritten has the limit in Go and the one of the table agree.
func TestLargestMessageIsWritten(t *testing.T) {
	t.Parallel()
	pool, _ := migrated(t)
	write := func(m outbox.Message) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, m) })
	}
	headers := []semel.Header{{Name: "ä", Value: []byte(strings.Repeat("{[", 4000))}}
	text, err := outboxrow.EncodeHeaders(headers)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(outbox.Message{Topic: "ö", Aggregate: "ü", Headers: headers, Payload: make([]byte, maxBytes-len(text)-4)}); err != nil {
		t.Error(err)
	}
	if _, err := pool.Exec(t.Context(), "INSERT INTO semel_outbox (payload, topic) VALUES ($1, 'ö')", make([]byte, maxBytes-1)); err == nil || !strings.Contains(err.Error(), "size_limit") {
		t.Errorf("one byte more: %v", err)
	}
}

// TestWriterNeedsOnlyInsert writes in every way under a role that may only insert.
func TestWriterNeedsOnlyInsert(t *testing.T) {
	t.Parallel()
	pool, _ := migrated(t)
	role := "semel_writer_" + strings.ToLower(rand.Text()[:10])
	if _, err := pool.Exec(t.Context(), "CREATE ROLE "+role+"; GRANT INSERT ON semel_outbox TO "+role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+role); err != nil {
			return err
		}
		if err := outbox.Write(t.Context(), tx, numbered(2)...); err != nil {
			return err
		}
		if err := outbox.Write(t.Context(), tx, numbered(1)...); err != nil {
			return err
		}
		var id string
		const given = "018f3c5a-0000-7000-8000-00000000000a"
		if err := tx.QueryRow(t.Context(), `SELECT semel_outbox_write('t', '2', 'a', '{"h":"1"}', $1)`, given).Scan(&id); err != nil || id != given {
			t.Errorf("the function returned %s, %v", id, err)
		}
		return tx.QueryRow(t.Context(), "SELECT semel_outbox_write('t', '3')").Scan(&id)
	}); err != nil {
		t.Fatal(err)
	}
	if got := payloads(t, pool); got != "0 1 0 2 3" {
		t.Error(got)
	}
}

func TestMissingTableIsNamed(t *testing.T) {
	t.Parallel()
	pool, _ := migrated(t)
	w, err := outbox.New(pgstore.Names{Prefix: "other_"})
	if err != nil {
		t.Fatal(err)
	}
	err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return w.Write(t.Context(), tx, outbox.Message{}) })
	if !errors.Is(err, pgstore.ErrSchema) || !strings.Contains(err.Error(), "semel migrate up") {
		t.Error(err)
	}
}
